//! The state of a container (runtime.md "State"), for the stdin of hooks and for seccomp agents.

use crate::error::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

words! {
    /// The status of a container.
    #[derive(Default)]
    pub enum Status {
        /// `create` runs.
        #[default]
        Creating = "creating",
        /// Created; waits for `start`.
        Created = "created",
        /// Its program runs.
        Running = "running",
        /// All of its processes are frozen.
        Paused = "paused",
        /// Its program has ended.
        Stopped = "stopped",
    }
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The specification's version.
    pub oci_version: String,
    /// The container's name.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// The first process; 0 without one.
    pub pid: i32,
    /// Absolute.
    pub bundle: String,
    /// The caller's annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub annotations: BTreeMap<String, String>,
}
