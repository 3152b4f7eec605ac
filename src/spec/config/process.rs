//! `process` of config.json, and of `exec --process`.

use crate::spec::resources::{is_default, nullable};
use serde::{Deserialize, Serialize};

/// `process`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Process {
    /// Whether standard streams are a terminal of the container.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub terminal: bool,
    /// The terminal's size.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub console_size: ConsoleSize,
    /// Its user.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub user: User,
    /// Program and arguments.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// `NAME=VALUE`; of two with one name the last counts.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub env: Vec<String>,
    /// Working directory.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub cwd: String,
    /// The five sets; absent means empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// setrlimit(2).
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub rlimits: Vec<Rlimit>,
    /// prctl(2), `PR_SET_NO_NEW_PRIVS`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub no_new_privileges: bool,
    /// AppArmor profile.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub apparmor_profile: String,
    /// SELinux label.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub selinux_label: String,
    /// /proc/PID/oom_score_adj.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// sched_setattr(2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
    /// ioprio_set(2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<IoPriority>,
    /// sched_setaffinity(2), for `exec` only.
    #[serde(rename = "execCPUAffinity", skip_serializing_if = "Option::is_none")]
    pub exec_cpu_affinity: Option<Affinity>,
}

/// `process.consoleSize`, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleSize {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
}

/// `process.user`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct User {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// umask(2); runc's 022 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Supplementary groups.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub additional_gids: Vec<u32>,
}

/// `process.capabilities`: names such as `CAP_CHOWN`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Limits all sets.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub bounding: Vec<String>,
    /// The kernel checks this set.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub effective: Vec<String>,
    /// Kept by programs with file capabilities; for `exec --cap` absent differs from empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inheritable: Option<Vec<String>>,
    /// Limits the effective set.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub permitted: Vec<String>,
    /// Kept by programs without file capabilities.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub ambient: Vec<String>,
}

/// One of `process.rlimits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rlimit {
    /// `RLIMIT_NOFILE` and so on.
    #[serde(rename = "type")]
    pub kind: String,
    /// Limits what the process may set itself.
    pub hard: u64,
    /// The current limit.
    pub soft: u64,
}

/// `process.scheduler`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scheduler {
    /// `SCHED_OTHER` and so on.
    pub policy: String,
    /// For SCHED_OTHER and SCHED_BATCH.
    pub nice: i32,
    /// For SCHED_FIFO and SCHED_RR.
    pub priority: i32,
    /// `SCHED_FLAG_…`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub flags: Vec<String>,
    /// For SCHED_DEADLINE, nanoseconds.
    pub runtime: u64,
    /// For SCHED_DEADLINE, nanoseconds.
    pub deadline: u64,
    /// For SCHED_DEADLINE, nanoseconds.
    pub period: u64,
}

/// `process.ioPriority`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IoPriority {
    /// `IOPRIO_CLASS_RT`, `IOPRIO_CLASS_BE` or `IOPRIO_CLASS_IDLE`.
    pub class: String,
    /// 0 (first) to 7.
    pub priority: i32,
}

/// `process.execCPUAffinity`: lists such as `0-3,7`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Affinity {
    /// Before the process moves into the container's cgroup.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub initial: String,
    /// After the move.
    #[serde(rename = "final", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub last: String,
}
