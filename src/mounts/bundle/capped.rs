//! A bundle's root under a cap: an overlay whose changes are on a small private file system (overlayfs.rst). The
//! bundle's directory is never written.

use crate::error::{Context, Kind, Result, Step as _};
use crate::mounts::disk::Pending;
use crate::mounts::mount::{attach, attach_to_host, clone_tree, restrict, tmpfs};
use crate::spec::root::{Attributes, Ids};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chmodat, chownat, fstat, mkdirat, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const LOWER: &str = "capped-lower";
const UPPER: &str = "capped-upper";
const WORK: &str = "capped-work";

#[derive(Debug)]
pub(crate) struct Cap {
    pub backing: Backing,
    /// Whether the overlay's marks are `user.overlay.*`, as a user namespace needs.
    pub user_xattr: bool,
    /// As the tables of mounts show it.
    pub source: String,
}

#[derive(Debug)]
pub(crate) enum Capped {
    /// The host does not see it.
    ToMake(Cap),
    /// A detached mount of the runtime.
    Made(OwnedFd),
}

#[derive(Debug)]
pub(crate) enum Backing {
    Image(Pending),
    /// A tmpfs, which the container's memory limit counts.
    Memory {
        bytes: u64,
        /// Files, directories and links.
        inodes: u64,
    },
}

/// The mount namespace propagates nothing to the host. Returns the covered root, detached, and the root directory of
/// the small file system.
pub(super) fn cover(root: &Path, cap: Cap) -> Result<(OwnedFd, OwnedFd)> {
    let step = || "cover the root with the capped disk";
    let disk = match cap.backing {
        Backing::Image(pending) => pending.wait(Ids::default())?,
        Backing::Memory { bytes, inodes } => tmpfs(bytes, inodes, 0o755, Ids::default(), Attributes::WRITABLE)?,
    };
    for name in [LOWER, UPPER, WORK] {
        mkdirat(&disk, name, Mode::from_raw_mode(0o755)).failing(Kind::Disk, step)?;
    }
    let lower = clone_tree(CWD, root)?;
    // Before Linux 6.15 layers must be attached in this namespace. Every container can reach this path, and the covered
    // root hides the layers.
    attach_to_host(&disk, root).doing(step)?;
    restrict(&lower, Attributes::READ_ONLY).doing(step)?;
    // The overlay's root has the attributes of its upper directory.
    let status = fstat(&lower).failing(Kind::Mount, step)?;
    let (uid, gid) = (Uid::from_raw(status.st_uid), Gid::from_raw(status.st_gid));
    chownat(&disk, UPPER, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?;
    chmodat(&disk, UPPER, Mode::from_raw_mode(status.st_mode), AtFlags::empty()).failing(Kind::Disk, step)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = openat(&disk, LOWER, flags, Mode::empty()).failing(Kind::Disk, step)?;
    attach(&lower, place.as_fd()).doing(step)?;
    // Before 6.15 layers are paths, which the kernel resolves from the working directory.
    rustix::process::fchdir(&disk).failing(Kind::Mount, step)?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Mount, step)?;
    let source = ("source", cap.source.as_str());
    for (key, value) in [source, ("lowerdir", LOWER), ("upperdir", UPPER), ("workdir", WORK), ("xino", "off")] {
        fsconfig_set_string(&context, key, value).failing(Kind::Mount, step)?;
    }
    // Not read after a crash.
    for flag in [Some("volatile"), cap.user_xattr.then_some("userxattr")].into_iter().flatten() {
        fsconfig_set_flag(&context, flag).failing(Kind::Mount, step)?;
    }
    fsconfig_create(&context).failing(Kind::Mount, step).hint(|| {
        "overlayfs must be there (`modprobe overlay`) and take the root's file system as a lower layer: an overlay over an overlay over an overlay is refused"
    })?;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).failing(Kind::Mount, step)?;
    let scratch = openat(&disk, ".", flags, Mode::empty()).failing(Kind::Disk, step)?;
    Ok((made, scratch))
}
