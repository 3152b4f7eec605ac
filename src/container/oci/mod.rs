//! Containers that an engine manages by verbs, with a record between two verbs. A container outlives its creator.

mod broker;
mod bundle;
mod checkpoint;
mod converse;
mod create;
mod creation;
mod delete;
mod exec;
mod features;
mod freeze;
mod group;
mod id;
mod look;
mod monitor;
mod notify;
mod prepare;
mod protect;
#[cfg(test)]
mod random;
mod receipt;
mod record;
mod signal;
mod socket;
mod start;
mod template;

pub use checkpoint::{Cgroups, Checkpoint, CriuOptions, Restoration, Restored};
pub use create::Created;
pub use creation::{Creation, SecretOpener};
pub use exec::{Executed, Execution};
pub use features::features;
pub use id::{ContainerId, parse_id, parse_user};
pub use look::Snapshot;
pub use notify::Notify;
pub use signal::signal_process;
pub use template::template;

use std::path::PathBuf;

/// The containers whose records are below one directory.
#[derive(Clone, Debug)]
pub struct Containers {
    root: PathBuf,
    is_default: bool,
}

impl Containers {
    /// By default of `/run/brig` (an ordinary user's: `$XDG_RUNTIME_DIR/brig`).
    pub fn new(root: Option<PathBuf>) -> Containers {
        let is_default = root.is_none();
        Containers { root: root.unwrap_or_else(default_root), is_default }
    }
}

/// As in runc: root only in a user namespace (rootless Podman) may not write to `/run`.
fn default_root() -> PathBuf {
    let is_user = || {
        !rustix::process::geteuid().is_root()
            || (!crate::ns::is_initial() && std::env::var_os("USER").is_none_or(|name| name != "root"))
    };
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) if is_user() => PathBuf::from(path).join("brig"),
        _ => PathBuf::from("/run/brig"),
    }
}
