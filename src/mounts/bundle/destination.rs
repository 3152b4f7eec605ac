//! Where no mount of a config.json may land, whatever its path says: asked of the opened place, since the image's links lead anywhere in the root.
//!
//! The text of a path is judged before (`spec::config::check`); here it is what the text has become.

use super::plan::Mount;
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::resolve;
use crate::spec::config::check::{clean, may_be_covered};
use crate::sys::weaken;
use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, StatxFlags, fstatfs, openat2, statx};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The inode of a procfs's root (`PROC_ROOT_INO` of linux/proc_fs.h).
const PROC_ROOT: u64 = 1;

/// Refuses the root itself, and what is inside the container's /proc but for what may be covered there (CVE-2019-16884). A procfs elsewhere, such as the
/// host's as a volume, protects nothing and is the caller's.
pub(super) fn check(root: BorrowedFd<'_>, mount: &Mount, place: BorrowedFd<'_>) -> Result<()> {
    if weaken::is_off("destination") {
        return Ok(());
    }
    let found = Spot::of(place)?;
    if found == Spot::of(root)? {
        return Err(Error::new(Kind::Mount, "the root itself cannot be mounted over"));
    }
    if fstatfs(place).failing(Kind::Mount, || "read the type of a mount point")?.f_type != PROC_SUPER_MAGIC {
        return Ok(());
    }
    let Ok(proc) = resolve::open(root, Path::new("/proc")) else { return Ok(()) }; // then it is of no use to the container
    let top = Spot::of(proc.as_fd())?;
    if found.mount != top.mount {
        return Ok(());
    }
    let may = if found == top { mount.at == Path::new("/proc") } else { stands_for(proc.as_fd(), &mount.at, &found)? };
    if may { Ok(()) } else { Err(Error::new(Kind::Mount, "it cannot be mounted because it is inside /proc")) }
}

/// Refuses a bind mount at /proc of anything but a procfs: programs trust what they read there.
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

/// Whether `found` is the file that the path names, below /proc, and may be covered.
fn stands_for(proc: BorrowedFd<'_>, path: &Path, found: &Spot) -> Result<bool> {
    let Ok(inside) = path.strip_prefix("/proc") else { return Ok(false) };
    if !path.to_str().is_some_and(may_be_covered) || Spot::of(proc)?.inode != PROC_ROOT {
        return Ok(false);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(proc, inside, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(named) => Ok(Spot::of(named.as_fd())? == *found),
        Err(_) => Ok(false),
    }
}

/// What tells one place from all others.
#[derive(PartialEq, Eq)]
struct Spot {
    mount: u64,
    inode: u64,
}

impl Spot {
    fn of(place: BorrowedFd<'_>) -> Result<Spot> {
        let found = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID | StatxFlags::INO)
            .failing(Kind::Mount, || "look at a mount point")?;
        Ok(Spot { mount: found.stx_mnt_id, inode: found.stx_ino })
    }
}
