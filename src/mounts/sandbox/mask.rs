//! Hides files of a copy-on-write folder by a layer with whiteouts between the folder and the changes.
//!
//! No process inside can remove a whiteout: the layer is outside of every mount of the sandbox, and overlayfs never
//! writes a lower layer. overlayfs takes owner, mode and times of a folder from the topmost layer, so these are copied.
//!
//! Hard links to a hidden file are hidden with it. A file that the host makes later is not.

use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{Bounds, DIRECTORY, HiddenMatcher, Stop, Walk, WalkStep, empty_directory};
use crate::spec::root::HiddenFiles;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, chmodat, chownat, fstat,
    mkdirat, mknodat, openat, openat2, statat, utimensat,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Each hidden path is an inode of the scratch file system.
const MOST: usize = 100_000;

/// `mask` may have been used before. Returns whether anything is hidden.
pub(super) fn make(tree: BorrowedFd<'_>, hidden: &HiddenFiles, mask: BorrowedFd<'_>) -> Result<bool> {
    let step = || "hide files of the folder";
    let open = |at: BorrowedFd<'_>| openat(at, ".", DIRECTORY, Mode::empty()).failing(Kind::Mount, step);
    empty_directory(open(mask)?).map_err(std::io::Error::from).failing(Kind::Mount, step)?;
    let matcher = HiddenMatcher::new(&hidden.flags, &hidden.lines)?;
    let paths = find(|| open(tree), &matcher).doing(step)?;
    let mut folders: BTreeMap<&[u8], Stat> = BTreeMap::new();
    for path in &paths {
        for end in path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end) {
            if !folders.contains_key(&path[..end]) {
                folders.insert(&path[..end], folder(tree, mask, &path[..end]).failing(Kind::Mount, step)?);
            }
        }
        mknodat(mask, name(path), FileType::CharacterDevice, Mode::empty(), 0)
            .failing(Kind::Mount, || format!("hide `{}`", String::from_utf8_lossy(path).escape_debug()))
            .hint(|| "whiteouts need kernel 5.8 for an ordinary user, and free inodes: raise --inodes")?;
    }
    // The deepest first, when nothing is made in them any more.
    for (path, status) in folders.iter().rev() {
        attributes(mask, path, status).failing(Kind::Mount, step)?;
    }
    Ok(!paths.is_empty())
}

fn name(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

struct Level {
    path: Vec<u8>,
    is_hidden: bool,
}

fn walk(
    top: OwnedFd,
    mut visit: impl FnMut(&Walk<1, Level>, FileType, &[u8], bool) -> std::result::Result<Option<bool>, Errno>,
) -> Result<()> {
    let failed = |stop: Stop| Error::os(Kind::Mount, std::io::Error::from(stop));
    let mut walk = Walk::through(top, Bounds::NONE, Level { path: Vec::new(), is_hidden: false }).map_err(failed)?;
    while let Some(next) = walk.next().map_err(failed)? {
        let WalkStep::Entry(kind) = next else { continue };
        let Some(level) = walk.state() else { continue };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(walk.name().to_bytes());
        let enters = visit(&walk, kind, &path, level.is_hidden).map_err(|errno| failed(Stop::System(errno)))?;
        let Some(is_hidden) = enters.filter(|_| kind == FileType::Directory) else { continue };
        match walk.descend(Level { path, is_hidden }) {
            // overlayfs reads the folder with this process's rights: what is closed here is closed there.
            Ok(()) | Err(Stop::System(Errno::ACCESS | Errno::NOENT)) => {}
            Err(stop) => return Err(failed(stop)),
        }
    }
    Ok(())
}

/// No path is below another one. Includes the other names of hidden files.
fn find(open: impl Fn() -> Result<OwnedFd>, matcher: &HiddenMatcher) -> Result<Vec<Vec<u8>>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut linked = HashSet::new();
    let status = |walk: &Walk<1, Level>| statat(walk.side(0)?, walk.name(), AtFlags::SYMLINK_NOFOLLOW);
    let inode = |status: &Stat| (status.st_dev, status.st_ino);
    walk(open()?, |walk, kind, path, is_below| {
        let is_hidden = is_below || matcher.hides(name(path), kind == FileType::Directory);
        if is_hidden && !is_below {
            found.push(path.to_vec());
        }
        if is_hidden && kind != FileType::Directory {
            let status = status(walk)?;
            if status.st_nlink > 1 {
                linked.insert(inode(&status));
            }
        }
        Ok(Some(is_hidden))
    })?;
    if !linked.is_empty() && !crate::sys::weaken::is_off("hidden-links") {
        let known: HashSet<Vec<u8>> = found.iter().cloned().collect();
        walk(open()?, |walk, kind, path, _| {
            if known.contains(path) {
                return Ok(None);
            }
            if kind != FileType::Directory && linked.contains(&inode(&status(walk)?)) {
                found.push(path.to_vec());
            }
            Ok(Some(false))
        })?;
    }
    if found.len() > MOST {
        return Err(Error::new(Kind::Usage, format!("more than {MOST} paths would be hidden"))
            .hint("hide the folder that contains them: a folder counts as one"));
    }
    Ok(found)
}

fn folder(tree: BorrowedFd<'_>, mask: BorrowedFd<'_>, path: &[u8]) -> std::result::Result<Stat, Errno> {
    let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let shown = openat2(tree, name(path), flags, Mode::empty(), plain)?;
    match mkdirat(mask, name(path), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => fstat(shown),
        Err(errno) => Err(errno),
    }
}

fn attributes(mask: BorrowedFd<'_>, path: &[u8], status: &Stat) -> std::result::Result<(), Errno> {
    let at = openat(mask, name(path), DIRECTORY, Mode::empty())?;
    let owner = (Some(Uid::from_raw(status.st_uid)), Some(Gid::from_raw(status.st_gid)));
    match chownat(&at, "", owner.0, owner.1, AtFlags::EMPTY_PATH) {
        // An ordinary user has one id. The folder is then the command's in its layer of changes, as a new one is.
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    chmodat(&at, ".", Mode::from_raw_mode(status.st_mode & 0o7777), AtFlags::empty())?;
    let time = |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = Timestamps {
        last_access: time(status.st_atime as _, status.st_atime_nsec as _),
        last_modification: time(status.st_mtime as _, status.st_mtime_nsec as _),
    };
    utimensat(at.as_fd(), ".", &times, AtFlags::empty())
}
