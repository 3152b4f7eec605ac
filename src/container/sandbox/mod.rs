//! Containers that a supervisor watches: each is a task's or a courier's, and ends with its supervisor.
//!
//! In: a [`spec::Container`](crate::spec::Container) and a [`Place`]. Out: a [`Running`] container, and after it nothing.
//! Each thing that is made registers its undo before the next is made: [`Running`] and its parts undo on drop.

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

/// Where a container's own things are; all of it is ours, none of it is shown inside.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The container's name: of its cgroup, and in errors.
    pub id: String,
    /// An empty directory over which init mounts its stage.
    pub stage: PathBuf,
    /// Where its disk is made; that file system holds what the container writes.
    pub workshop: Workshop,
    /// A directory for the whole machine with the locks of id ranges.
    pub id_ranges: PathBuf,
    /// The file of the disk, where everything writable is on one.
    pub disk: DiskFile,
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
