//! Containers of a task or courier, which end with their supervisor. A [`spec::Container`](crate::spec::Container) and
//! [`HostPaths`] become [`Running`]. Each part registers its undo, a drop, before the next is made.

pub(crate) mod archive;
mod enter;
mod entry;
mod launch;
mod link;
mod pasta;
mod running;
mod uncounted;
mod users;

use super::check::privileged;
pub(crate) use crate::cgroup::Leftover;
use crate::cgroup::{Hierarchy, leftovers, remove_leftover};
use crate::error::Result;
use crate::mounts::disk::maker::First;
pub(crate) use crate::mounts::disk::{DiskFile, Workshop};
pub(crate) use enter::{Entered, Visit};
pub(crate) use launch::launch;
pub(crate) use pasta::check as check_pasta;
pub(crate) use running::Running;
use std::path::{Path, PathBuf};
pub(crate) use uncounted::Queues;

/// Invisible inside.
#[derive(Clone, Debug)]
pub(crate) struct HostPaths {
    /// The name of its cgroup, and in errors.
    pub id: String,
    /// Empty: init mounts its stage over it.
    pub stage: PathBuf,
    /// Its file system holds what the container writes.
    pub workshop: Workshop,
    /// Locks of id ranges, for the whole machine.
    pub id_ranges: PathBuf,
    /// The file of the disk, if all writes go to one.
    pub disk: DiskFile,
}

/// Starts the slowest parts in children (`ns::ahead`, `mounts::disk::maker`).
pub(crate) fn begin_ahead() {
    if privileged() {
        let first = crate::ns::ahead::order().map(|with| First { with, work: crate::ns::ahead::bring });
        crate::mounts::disk::maker::begin(first);
    }
}

/// Starts a disk that a sandbox will probably need, in a child (`mounts::disk`).
pub(crate) fn begin_disk(workshop: &Workshop, bytes: u64, inodes: u64) {
    let size = crate::mounts::disk::Size { bytes, inodes, synchronous: false };
    crate::mounts::disk::begin_ahead(workshop, size);
}

/// All groups that this user could have made, running ones included.
pub(crate) fn groups() -> Vec<Leftover> {
    // Without a hierarchy no sandbox has a cgroup.
    Hierarchy::probe().map_or_else(|_| Vec::new(), |hierarchy| leftovers(&hierarchy))
}

/// Also those of its couriers, with their processes. Returns a result for each.
pub(crate) fn remove_groups(id: &str) -> Vec<(String, Result<bool>)> {
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy)
        .into_iter()
        .filter(|group| group.id == id || group.id.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')))
        .map(|group| (group.path.display().to_string(), remove_leftover(&group).map(|()| true)))
        .collect()
}

/// `directory` has the locks of their numbers.
pub(crate) fn left_devices(directory: &Path) -> Vec<String> {
    crate::net::leaks(directory)
}

pub(crate) fn remove_devices(directory: &Path) -> Vec<(String, Result<bool>)> {
    crate::net::reap(directory)
}
