//! The state of a container as the specification has it (runtime.md "State"): what hooks read on stdin and seccomp agents get.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where in its life a container is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is being made.
    #[default]
    Creating,
    /// Made, and waiting to be started.
    Created,
    /// Its program runs.
    Running,
    /// All of its processes stand still.
    Paused,
    /// Its program has ended.
    Stopped,
}

impl Status {
    /// The word for it.
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
    /// The version of the specification.
    pub oci_version: String,
    /// The container's name.
    pub id: String,
    /// Where it is in its life.
    pub status: Status,
    /// Its first process; 0 when there is none.
    pub pid: i32,
    /// The bundle, absolute.
    pub bundle: String,
    /// The caller's notes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub annotations: BTreeMap<String, String>,
}
