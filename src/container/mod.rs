//! A container as a thing that is made, watched and removed.
//!
//! In: a [`spec::Container`](crate::spec::Container) and a [`Place`]. Out: a [`Running`] container, and after it nothing.
//! Each thing that is made registers its undoing before the next is made: [`Running`] and what it holds undo on drop.

mod bundle;
mod check;
mod checkpoint;
mod converse;
mod copied;
mod create;
mod creation;
mod delete;
mod enter;
mod entry;
mod exec;
mod features;
mod freeze;
mod gateway;
mod group;
mod groups;
mod id;
pub mod ids;
mod launch;
mod left;
mod link;
mod look;
mod monitor;
mod notify;
mod passed;
mod pasta;
mod place;
mod possible;
mod prepare;
mod processors;
mod protect;
#[cfg(test)]
mod random;
mod receipt;
mod record;
mod running;
mod signal;
mod socket;
mod start;
mod template;
mod tree;
mod uncounted;

/// How many ids a sandbox of the machine's root has.
pub(crate) const IDS: u32 = crate::ns::Range::SIZE;

use crate::mounts::disk::maker::First;
pub(crate) use crate::mounts::disk::volatile::{
    backing_name, is_abandoned as is_begun_disk_abandoned, reap as remove_begun_disk,
};
pub(crate) use crate::sys::seccomp::{next_waiting, refuse};
pub(crate) use check::{Checked, check, nested, privileged, thoroughly as check_thoroughly};
pub(crate) use enter::{Entered, Visit};
pub(crate) use gateway::Wish;
pub(crate) use groups::{groups, remove_groups};
pub(crate) use launch::launch;
pub(crate) use pasta::check as check_pasta;
pub(crate) use place::{DiskFile, Place, Workshop};
pub(crate) use possible::{Possible, possible};
pub(crate) use running::Running;
pub(crate) use tree::called;
pub(crate) use uncounted::Queues;

/// The agent's filter as `linux.seccomp` of a config.json.
pub(crate) fn agent_filter() -> crate::error::Result<serde_json::Value> {
    use crate::error::{Error, Kind};
    serde_json::to_value(crate::seccomp::profile::agent_spec())
        .map_err(|cause| Error::new(Kind::Internal, cause.to_string()).doing("write the filter of system calls"))
}

pub use checkpoint::{Cgroups, Checkpoint, CriuOptions, Restoration, Restored};
pub use create::Created;
pub use creation::Creation;
pub use exec::{Executed, Execution};
pub use features::features;
pub use id::ContainerId;
pub use look::Snapshot;
pub use notify::Notify;
pub use signal::signal_process;
pub use template::template;

/// The devices of sandboxes that are gone; `directory` has the locks of their numbers.
pub(crate) fn left_devices(directory: &std::path::Path) -> Vec<String> {
    crate::net::leaks(directory)
}

/// Removes them. Says for each whether it is gone.
pub(crate) fn remove_devices(directory: &std::path::Path) -> Vec<(String, crate::error::Result<bool>)> {
    crate::net::reap(directory)
}

/// Begins what takes longest of a sandbox, in children (`ns::ahead`, `mounts::disk::maker`).
pub(crate) fn begin_ahead() {
    if privileged() {
        let first = crate::ns::ahead::order().map(|with| First { with, work: crate::ns::ahead::bring });
        crate::mounts::disk::maker::begin(first);
    }
}

/// Begins a disk that a sandbox will most probably want, in a child (`mounts::disk`).
pub(crate) fn begin_disk(workshop: &Workshop, bytes: u64, inodes: u64) {
    let size = crate::mounts::disk::Size { bytes, inodes, synchronous: false };
    crate::mounts::disk::begin_ahead(workshop, size);
}

/// Gives the program's own pages back while it only waits for a sandbox. What cannot be given back stays.
pub(crate) fn rest() {
    let _ = crate::start::pages::release();
}

pub use crate::spec::resources::Resources;
pub use crate::spec::state::Status;

use std::path::PathBuf;

/// The containers whose records are below one directory.
#[derive(Clone, Debug)]
pub struct Containers {
    root: PathBuf,
    is_default: bool,
}

/// Makes sure that a container cannot change the program that creates it or enters it: it may start this process anew, with the same arguments, so call
/// it first. Only a process with one thread may.
pub fn protect_own_executable() -> crate::error::Result<()> {
    crate::process::protect_own_executable()
}

/// Gives SIGCHLD its default action, so that the ends of our own children are told to us: a caller that ignores it (a daemon that wants no zombies)
/// hands that on to the programs that it starts, and then there is nobody to wait for. Call it first.
pub fn expect_children() {
    crate::sys::signal::restore_signal(libc::SIGCHLD);
}

impl Containers {
    /// Those of `root`; of `/run/brig` (an ordinary user's: `$XDG_RUNTIME_DIR/brig`) if the caller names none.
    pub fn new(root: Option<PathBuf>) -> Containers {
        let is_default = root.is_none();
        Containers { root: root.unwrap_or_else(default_root), is_default }
    }
}

/// As runc has it: whoever is root only in a user namespace, as under Podman for an ordinary user, is that user and may not write to `/run`.
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
