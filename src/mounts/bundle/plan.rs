//! The data of a bundle's root, and the attributes of its mounts.

use super::capped::Capped;
use super::options::Options;
use crate::error::{Context, Kind, Result};
use crate::mounts::device;
use crate::spec::root::Ids;
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use rustix::mount::MountPropagationFlags;
use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// The input of init for the root.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// The root directory on the host, absolute.
    pub root: PathBuf,
    /// Whether it becomes read-only at the end.
    pub read_only: bool,
    /// The capped root, if its changes are capped. Taken when the root is built.
    pub cap: RefCell<Option<Capped>>,
    /// Whether the container has its own mount namespace. Without one nothing is mounted: the namespace is the host's.
    pub own_mounts: bool,
    /// Whether that namespace is new. If it is joined, setns(2) has entered its root.
    pub new_mounts: bool,
    /// How the process leaves the old root.
    pub entry: Entry,
    /// `linux.rootfsPropagation`.
    pub propagation: Option<MountPropagationFlags>,
    /// The mounts, in this order.
    pub mounts: Vec<Mount>,
    /// Device nodes besides the default ones.
    pub devices: Vec<device::Node>,
    /// The container's user 0 and group 0, in our ids.
    pub owner: Ids,
    /// The SELinux context of files that are made outside the mounts.
    pub label: String,
    /// Paths that read as empty.
    pub masked: Vec<PathBuf>,
    /// Paths that cannot be written.
    pub read_only_paths: Vec<PathBuf>,
    /// The container's cgroups: directory of each v1 hierarchy (empty for v2), and path of the cgroup.
    pub groups: Vec<(String, PathBuf)>,
    /// Whether the cgroup mounts are read-only inside, whatever their options.
    pub groups_read_only: bool,
}

/// The call that makes the new root the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// pivot_root(2), which removes the old root.
    Pivot,
    /// A move over the old root, for hosts that run from a ramdisk.
    Move,
}

#[derive(Debug)]
pub(crate) struct Mount {
    /// The destination, an absolute path in the container.
    pub at: PathBuf,
    /// The file system's name.
    pub kind: String,
    /// The source.
    pub source: PathBuf,
    /// The options.
    pub options: Options,
    /// The user namespace that maps the owners.
    pub userns: Option<OwnedFd>,
    /// The SELinux context of its files.
    pub label: String,
    /// The tree of a bind mount, if the parent has copied it: init might not reach the source in a user namespace.
    pub tree: Option<OwnedFd>,
    /// A context of fsopen(2), for a procfs of another PID namespace.
    pub context: Option<OwnedFd>,
}

impl Mount {
    /// Whether it is a new procfs, of its maker's PID namespace.
    pub(crate) fn is_procfs(&self) -> bool {
        self.kind == "proc" && self.options.bind.is_none() && !self.options.remount
    }
}

/// Sets and clears the attributes of one mount.
pub(super) fn change(mounted: BorrowedFd<'_>, options: &Options, late: bool) -> Result<()> {
    let set = if late { options.set & !bits::RDONLY } else { options.set };
    if set | options.clear == 0 {
        return Ok(());
    }
    let wanted = MountAttr { set, clear: options.clear, ..MountAttr::default() };
    set_attributes(mounted, c"", false, &wanted).failing(Kind::Mount, || "set the attributes of the mount")
}

/// Sets and clears the attributes of one mount and of its submounts.
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
