//! A copy of a tree that becomes the container's own: each file's owner n is the container's id n from then on.
//!
//! The tree is in a directory that only brig can enter, and no process runs in it yet.

use crate::error::{Context, Kind, Result};
use crate::files::{Bounds, DIRECTORY, Walk, WalkStep};
use crate::ns::Range;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chmodat, chownat, openat, statat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The owner of a file whose id a container does not have (`overflowuid`, proc_sys_kernel(5)), as with an idmapped mount.
const NOBODY: u32 = 65_534;

/// Gives everything in and below `tree` to the ids from `base` on.
pub(super) fn give(tree: &Path, base: u32) -> Result<()> {
    let step = || format!("give `{}` to the sandbox", tree.display());
    let top = openat(CWD, tree, DIRECTORY, Mode::empty()).failing(Kind::Store, step)?;
    let mut walk = Walk::through(top, Bounds::NONE, ()).failing(Kind::Store, step)?;
    while let Some(next) = walk.next().failing(Kind::Store, step)? {
        let WalkStep::Entry(kind) = next else { continue };
        let shown = || format!("{}: `{}`", step(), walk.name().to_string_lossy().escape_debug());
        walk.side(0).and_then(|directory| one(directory, walk.name(), base)).failing(Kind::Store, shown)?;
        if kind == FileType::Directory {
            walk.descend(()).failing(Kind::Store, step)?;
        }
    }
    walk.side(0).and_then(|directory| one(directory, c".", base)).failing(Kind::Store, step)
}

fn one(directory: BorrowedFd<'_>, name: &CStr, base: u32) -> std::result::Result<(), Errno> {
    let status = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Another name of it was here before.
    if status.st_uid >= base {
        return Ok(());
    }
    let inside = |id: u32| base + if id < Range::SIZE { id } else { NOBODY };
    let (uid, gid) = (Uid::from_raw(inside(status.st_uid)), Gid::from_raw(inside(status.st_gid)));
    chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    // A new owner clears the set-id bits, chown(2); a link has none.
    if status.st_mode & 0o6000 != 0 && FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
        chmodat(directory, name, Mode::from_raw_mode(status.st_mode & 0o7777), AtFlags::empty())?;
    }
    Ok(())
}
