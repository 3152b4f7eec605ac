//! Directories, links and files of a new root, made on descriptors.

use super::resolve;
use crate::error::{Context, Kind, Result};
use crate::spec::root::Ids;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Never reached through a symlink (CVE-2019-19921, CVE-2023-28642).
pub(super) fn real_directory(root: BorrowedFd<'_>, at: &Path) -> Result<OwnedFd> {
    let (parent, name) = resolve::parent(root, at)?;
    match rustix::fs::mkdirat(&parent, name.as_path(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, || format!("make `{}` in the root", at.display())),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent, name.as_path(), flags, Mode::empty())
        .failing(Kind::Mount, || format!("open `{}`, which must be a true directory of the root", at.display()))
}

pub(super) fn own(directory: BorrowedFd<'_>, name: &str, owner: Ids) -> Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    rustix::fs::chownat(directory, name, Some(uid), Some(gid), flags)
        .failing(Kind::Mount, || format!("give a file of the root to user {}", owner.uid))
}

pub(super) fn symlink(root: BorrowedFd<'_>, at: &Path, target: &Path) -> Result<()> {
    let (directory, name) = resolve::parent(root, at)?;
    link(directory.as_fd(), &name, target)
}

pub(super) fn link(directory: BorrowedFd<'_>, name: &Path, target: &Path) -> Result<()> {
    match rustix::fs::symlinkat(target, directory, name) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno).failing(Kind::Mount, || format!("make the link `{}`", name.display())),
    }
}

/// The image's file under that name is removed, never followed (CVE-2025-24965).
pub(super) fn file(root: BorrowedFd<'_>, at: &Path, content: &[u8], mode: u32, owner: Ids) -> Result<()> {
    let (directory, name) = resolve::parent(root, at)?;
    write(directory.as_fd(), &name, at, (content, mode), owner)
}

pub(super) fn write(
    directory: BorrowedFd<'_>,
    name: &Path,
    at: &Path,
    (content, mode): (&[u8], u32),
    owner: Ids,
) -> Result<()> {
    let step = || format!("write `{}` in the root", at.display());
    let open = || rustix::fs::openat(directory, name, resolve::NEW_FILE, Mode::from_raw_mode(mode));
    let file = match open() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty()).failing(Kind::Mount, step)?;
            open()
        }
        other => other,
    }
    .failing(Kind::Mount, step)?;
    own(file.as_fd(), "", owner)?;
    std::fs::File::from(file).write_all(content).failing(Kind::Mount, step)
}
