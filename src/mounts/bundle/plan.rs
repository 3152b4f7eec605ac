//! The plan of a bundle's root.

use super::capped::Capped;
use super::options::Options;
use crate::error::{Context, Kind, Result};
use crate::mounts::device;
use crate::spec::root::Ids;
use crate::sys::mount::{MountAttr, set_attributes};
use rustix::mount::MountPropagationFlags;
use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct Bundle {
    /// Absolute, on the host.
    pub root: PathBuf,
    pub read_only: bool,
    /// Taken when the root is built.
    pub cap: RefCell<Option<Capped>>,
    /// Otherwise nothing is mounted: the mount namespace is the host's.
    pub own_mounts: bool,
    /// setns(2) has entered the root of a joined namespace.
    pub new_mounts: bool,
    pub entry: Entry,
    /// `linux.rootfsPropagation`.
    pub propagation: Option<MountPropagationFlags>,
    pub mounts: Vec<Mount>,
    /// Besides the default ones.
    pub devices: Vec<device::Node>,
    /// The container's user 0 and group 0, in our ids.
    pub owner: Ids,
    /// The SELinux context of files outside the mounts.
    pub label: String,
    /// Paths that read as empty.
    pub masked: Vec<PathBuf>,
    pub read_only_paths: Vec<PathBuf>,
    /// Directory of each v1 hierarchy (empty for v2), and path of the cgroup.
    pub groups: Vec<(String, PathBuf)>,
    /// Whatever the options of the cgroup mounts.
    pub groups_read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// pivot_root(2), which removes the old root.
    Pivot,
    /// A move over the old root, for hosts that run from a ramdisk.
    Move,
}

#[derive(Debug)]
pub(crate) struct Mount {
    /// An absolute path in the container.
    pub at: PathBuf,
    pub kind: String,
    pub source: PathBuf,
    pub options: Options,
    pub userns: Option<OwnedFd>,
    pub label: String,
    /// Of a bind mount, if the parent has copied it: init might not reach the source in a user namespace.
    pub tree: Option<OwnedFd>,
    /// Of fsopen(2), for a procfs of another PID namespace.
    pub context: Option<OwnedFd>,
}

impl Mount {
    /// A new procfs is of its maker's PID namespace.
    pub(crate) fn is_procfs(&self) -> bool {
        self.kind == "proc" && self.options.bind.is_none() && !self.options.remount
    }
}

pub(super) fn change(mounted: BorrowedFd<'_>, options: &Options) -> Result<()> {
    if options.set | options.clear == 0 {
        return Ok(());
    }
    let wanted = MountAttr { set: options.set, clear: options.clear, ..MountAttr::default() };
    set_attributes(mounted, c"", false, &wanted).failing(Kind::Mount, || "set the attributes of the mount")
}

pub(super) fn change_below(mounted: BorrowedFd<'_>, options: &Options) -> Result<()> {
    if options.set_below | options.clear_below == 0 {
        return Ok(());
    }
    let wanted = MountAttr { set: options.set_below, clear: options.clear_below, ..MountAttr::default() };
    set_attributes(mounted, c"", true, &wanted).failing(Kind::Mount, || "set the attributes of all mounts below")
}

pub(super) fn propagate(mounted: BorrowedFd<'_>, options: &Options) -> Result<()> {
    for flags in &options.propagation {
        let wanted =
            MountAttr { propagation: u64::from((*flags - MountPropagationFlags::REC).bits()), ..MountAttr::default() };
        set_attributes(mounted, c"", flags.contains(MountPropagationFlags::REC), &wanted)
            .failing(Kind::Mount, || "set the propagation of the mount")?;
    }
    Ok(())
}
