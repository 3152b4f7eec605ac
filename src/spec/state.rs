//! The state of a container (runtime.md "State"), for the stdin of hooks and for seccomp agents.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The status of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// `create` runs.
    #[default]
    Creating,
    /// Created; waits for `start`.
    Created,
    /// Its program runs.
    Running,
    /// All of its processes are frozen.
    Paused,
    /// Its program has ended.
    Stopped,
}

impl Status {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        }
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
