//! Detached mounts by descriptors (mount API of kernel 5.2; attributes 5.12).

use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::spec::root::Attributes;
use crate::spec::root::Ids;
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, fstat, openat2, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// 0 means unlimited.
pub(super) fn tmpfs(bytes: u64, inodes: u64, mode: u32, owner: Ids, attributes: Attributes) -> Result<OwnedFd> {
    labelled_tmpfs(bytes, inodes, mode, owner, attributes, "")
}

/// Without a SELinux context if `label` is empty.
pub(super) fn labelled_tmpfs(
    bytes: u64,
    inodes: u64,
    mode: u32,
    owner: Ids,
    attributes: Attributes,
    label: &str,
) -> Result<OwnedFd> {
    let options = [
        ("size", bytes.to_string()),
        ("nr_inodes", inodes.to_string()),
        ("mode", format!("{mode:o}")),
        ("uid", owner.uid.to_string()),
        ("gid", owner.gid.to_string()),
        ("context", label.to_owned()),
    ];
    let count = options.len() - usize::from(label.is_empty());
    new_file_system("tmpfs", &options[..count], attributes)
}

pub(super) fn new_file_system(name: &str, options: &[(&str, String)], attributes: Attributes) -> Result<OwnedFd> {
    let step = || format!("make a `{name}` file system");
    let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Mount, step)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, value.as_str())
            .failing(Kind::Mount, || format!("set `{key}={value}` of a `{name}` file system"))?;
    }
    fsconfig_create(&context).failing(Kind::Mount, step)?;
    let flags = MountAttrFlags::from_bits_retain(kept(attributes.0) as u32);
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).failing(Kind::Mount, step)
}

const HELD: &str = "/proc/self/fd";

/// Opens a checked path again. The kernel copies only mounts of the current namespace, and the held descriptor may come
/// from another. Both must be the same file.
fn open_held(path: &Path) -> Result<OwnedFd> {
    let step = || format!("open what is held as `{}`", path.display());
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Mount, step)?;
    let name = rustix::fs::readlink(path, Vec::new()).failing(Kind::Mount, step)?;
    let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let there = openat2(CWD, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), plain).failing(Kind::Mount, step)?;
    let inode = |open: &OwnedFd| fstat(open).map(|status| (status.st_dev, status.st_ino)).failing(Kind::Mount, step);
    if inode(&held)? == inode(&there)? {
        return Ok(there);
    }
    Err(Error::new(Kind::Policy, "it has moved since it was checked").doing(step()).hint("leave it where it is"))
}

const CLONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_EMPTY_PATH);

/// Without the mounts below.
pub(super) fn clone_tree(directory: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    if path.starts_with(HELD) {
        return clone_tree(open_held(path)?.as_fd(), Path::new(""));
    }
    open_tree(directory, path, CLONE).failing(Kind::Mount, || format!("take the tree `{}`", path.display())).map_err(|error| {
        match error.errno() {
            // In a user namespace the files under a mount must stay covered (mount_namespaces(7)).
            Some(libc::EINVAL) => error.hint("something is mounted below it, and without root it cannot be shown apart: name a folder without mounts below"),
            _ => error,
        }
    })
}

/// If the kernel refuses to copy one mount in a user namespace, the submounts are copied too, and the boolean is true.
/// `sandbox::submounts` covers those that must stay hidden.
pub(super) fn clone_read_only(path: &Path) -> Result<(OwnedFd, bool)> {
    match clone_tree(CWD, path) {
        Err(error) if error.errno() == Some(libc::EINVAL) => {}
        other => return other.map(|tree| (tree, false)),
    }
    let held = if path.starts_with(HELD) { Some(open_held(path)?) } else { None };
    let (directory, below) = held.as_ref().map_or((CWD, path), |held| (held.as_fd(), Path::new("")));
    clone_all(directory, below)
        .doing(|| format!("take the tree `{}` with the mounts below it", path.display()))
        .map(|tree| (tree, true))
}

/// Also for all mounts below.
pub(super) fn restrict_all(tree: &OwnedFd, attributes: Attributes) -> Result<()> {
    let wanted = MountAttr { set: kept(attributes.0), ..MountAttr::default() };
    set_attributes(tree.as_fd(), c"", !weaken::is_off("submount-attributes"), &wanted)
        .failing(Kind::Mount, || "set the attributes of a mount and of those below it")
}

/// With its submounts.
pub(super) fn clone_all(directory: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    open_tree(directory, path, CLONE | OpenTreeFlags::AT_RECURSIVE)
        .failing(Kind::Mount, || format!("take the tree `{}`", path.display()))
}

pub(crate) fn attach(tree: &OwnedFd, target: BorrowedFd<'_>) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).failing(Kind::Mount, || "attach a mount")
}

pub(super) fn attach_to_host(tree: &OwnedFd, path: &Path) -> Result<()> {
    move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || format!("attach what the root is built of at `{}`", path.display()))
}

/// In the mount table. statx(2), `STATX_MNT_ID`, kernel 5.8.
pub(super) fn mount_id(place: impl AsFd) -> Result<u64> {
    let found = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    found.map(|found| found.stx_mnt_id).failing(Kind::Mount, || "ask for the number of a mount")
}

pub(super) fn restrict(tree: &OwnedFd, attributes: Attributes) -> Result<()> {
    restrict_mapped(tree, attributes, None)
}

/// mount_setattr(2), `MOUNT_ATTR_IDMAP` (5.12).
pub(super) fn restrict_mapped(tree: &OwnedFd, attributes: Attributes, idmap: Option<&OwnedFd>) -> Result<()> {
    let mut wanted = MountAttr { set: kept(attributes.0), ..MountAttr::default() };
    if let Some(userns) = idmap {
        wanted.set |= bits::IDMAP;
        wanted.userns = userns.as_raw_fd() as u64;
    }
    set_attributes(tree.as_fd(), c"", false, &wanted)
        .failing(Kind::Mount, || "set the attributes of a mount")
        .hint(|| match idmap {
            Some(_) if is_overlay(tree) => "it is on an overlay, such as the root of a container, which cannot show other owners: run brig there as an ordinary user (setpriv --reuid 1000 --regid 1000 --clear-groups), or outside of the container",
            Some(_) => "the file system under this path cannot show other owners (idmapped mounts: ext4, xfs, btrfs, tmpfs from 6.3; not overlay, NFS, FUSE or 9p): put it on one that can",
            None => "brig needs mount_setattr(2), kernel 5.12 or newer",
        })
}

/// An overlayfs cannot be id-mapped.
fn is_overlay(tree: &OwnedFd) -> bool {
    /// linux/magic.h.
    const MAGIC: i128 = 0x794c_7630;
    rustix::fs::fstatfs(tree).is_ok_and(|found| i128::from(found.f_type) == MAGIC)
}

/// Those that no test has switched off.
pub(super) fn kept(attributes: u64) -> u64 {
    [("nosuid", bits::NOSUID), ("nodev", bits::NODEV), ("read-only-mounts", bits::RDONLY)]
        .into_iter()
        .filter(|(name, _)| weaken::is_off(name))
        .fold(attributes, |all, (_, bit)| all & !bit)
}
