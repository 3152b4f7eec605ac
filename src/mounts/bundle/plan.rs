//! What a bundle's root consists of, as data, and how the attributes of its mounts are set.

use super::capped::Cap;
use super::options::Options;
use crate::error::{Context, Kind, Result};
use crate::mounts::device;
use crate::spec::root::Ids;
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use rustix::mount::MountPropagationFlags;
use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Everything that init needs to build the root.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// The root directory on the host, absolute.
    pub root: PathBuf,
    /// Whether it is read-only in the end.
    pub read_only: bool,
    /// Where changes of it go, if they are capped. Taken when the root is built.
    pub cap: RefCell<Option<Cap>>,
    /// Whether there is a mount namespace of the container's own. Without one nothing is mounted: the host's namespace is not ours to change.
    pub own_mounts: bool,
    /// How the old root is left.
    pub entry: Entry,
    /// `linux.rootfsPropagation`.
    pub propagation: Option<MountPropagationFlags>,
    /// What is mounted, in this order.
    pub mounts: Vec<Mount>,
    /// Device nodes besides the default ones.
    pub devices: Vec<device::Node>,
    /// The container's user 0 and group 0, as we see them.
    pub owner: Ids,
    /// The SELinux context of what is made beside the mounts.
    pub label: String,
    /// Paths that read as empty.
    pub masked: Vec<PathBuf>,
    /// Paths that cannot be written.
    pub read_only_paths: Vec<PathBuf>,
    /// The container's own groups: the name of each v1 hierarchy's directory (empty for v2) and where the group is.
    pub groups: Vec<(String, PathBuf)>,
    /// Whether nothing of them may be changed from inside, whatever the mount says.
    pub groups_read_only: bool,
}

/// How the new root becomes the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// pivot_root(2): the old root is gone afterwards.
    Pivot,
    /// The new root is moved over the old one, for hosts that run from a ramdisk.
    Move,
}

/// One mount.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Where, absolute as the container sees it.
    pub at: PathBuf,
    /// The file system's name.
    pub kind: String,
    /// What is mounted.
    pub source: PathBuf,
    /// How.
    pub options: Options,
    /// The user namespace whose map shows the owners.
    pub userns: Option<OwnedFd>,
    /// The SELinux context of the files in it.
    pub label: String,
    /// The tree of a bind mount, where the parent has taken it: in a user namespace init might not reach the source.
    pub tree: Option<OwnedFd>,
    /// A context of fsopen(2), for a procfs of a PID namespace that is not that of the process that mounts it.
    pub context: Option<OwnedFd>,
}

impl Mount {
    /// Whether it is a new procfs, of the PID namespace of the process that makes it.
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

/// Sets and clears the attributes of one mount and of those below it.
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
