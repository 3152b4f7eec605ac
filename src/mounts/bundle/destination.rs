//! Refuses mounts at protected destinations. The check reads the opened file, since the image's links can lead to any
//! path of the root.

use super::plan::Mount;
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::resolve;
use crate::spec::config::check::{clean, may_be_covered};
use crate::sys::weaken;
use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, StatxFlags, fstatfs, openat2, statx};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// `PROC_ROOT_INO` of linux/proc_fs.h.
const PROC_ROOT: u64 = 1;

/// Refuses the root and all paths in the container's /proc but those that may be covered (CVE-2019-16884). A procfs
/// elsewhere, such as the host's as a volume, protects nothing.
pub(super) fn check(root: BorrowedFd<'_>, mount: &Mount, place: BorrowedFd<'_>) -> Result<()> {
    if weaken::is_off("destination") {
        return Ok(());
    }
    let found = Inode::of(place)?;
    if found == Inode::of(root)? {
        return Err(Error::new(Kind::Mount, "the root itself cannot be mounted over"));
    }
    if fstatfs(place).failing(Kind::Mount, || "read the type of a mount point")?.f_type != PROC_SUPER_MAGIC {
        return Ok(());
    }
    let Ok(proc) = resolve::open(root, Path::new("/proc")) else { return Ok(()) }; // the container cannot use it then
    let top = Inode::of(proc.as_fd())?;
    if found.mount != top.mount {
        return Ok(());
    }
    let may = if found == top { mount.at == Path::new("/proc") } else { stands_for(proc.as_fd(), &mount.at, &found)? };
    if may { Ok(()) } else { Err(Error::new(Kind::Mount, "it cannot be mounted because it is inside /proc")) }
}

/// Programs trust the files of /proc.
pub(super) fn check_kind(mount: &Mount, tree: BorrowedFd<'_>) -> Result<()> {
    if mount.at.to_str().is_none_or(|at| clean(at) != "/proc") {
        return Ok(());
    }
    let is_procfs = fstatfs(tree).failing(Kind::Mount, || "read the type of a file system")?.f_type == PROC_SUPER_MAGIC;
    if is_procfs || ["destination", "own-procfs"].into_iter().any(weaken::is_off) {
        return Ok(());
    }
    Err(Error::new(Kind::Mount, "\"/proc\" cannot be mounted because it is not of type proc"))
}

fn stands_for(proc: BorrowedFd<'_>, path: &Path, found: &Inode) -> Result<bool> {
    let Ok(inside) = path.strip_prefix("/proc") else { return Ok(false) };
    if !path.to_str().is_some_and(may_be_covered) || Inode::of(proc)?.inode != PROC_ROOT {
        return Ok(false);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(proc, inside, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(named) => Ok(Inode::of(named.as_fd())? == *found),
        Err(_) => Ok(false),
    }
}

#[derive(PartialEq, Eq)]
struct Inode {
    mount: u64,
    inode: u64,
}

impl Inode {
    fn of(place: BorrowedFd<'_>) -> Result<Inode> {
        let found = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID | StatxFlags::INO)
            .failing(Kind::Mount, || "look at a mount point")?;
        Ok(Inode { mount: found.stx_mnt_id, inode: found.stx_ino })
    }
}
