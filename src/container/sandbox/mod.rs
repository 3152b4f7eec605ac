//! Containers of a task or courier, which end with their supervisor. A [`spec::Container`](crate::spec::Container) and
//! [`HostPaths`] become [`Running`]. Each part registers its undo, a drop, before the next is made.

pub(crate) mod archive;
mod enter;
mod entry;
mod launch;
mod leftovers;
mod link;
mod pasta;
mod processors;
mod running;
mod uncounted;
mod users;

pub(crate) use crate::mounts::disk::{DiskFile, Workshop};
pub(crate) use enter::{Entered, Visit};
pub(crate) use launch::launch;
pub(crate) use leftovers::{groups, left_devices, remove_devices, remove_groups};
pub(crate) use pasta::check as check_pasta;
pub(crate) use running::Running;
pub(crate) use uncounted::Queues;

use super::check::privileged;
use crate::mounts::disk::maker::First;
use std::path::PathBuf;

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
