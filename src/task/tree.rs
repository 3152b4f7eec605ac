//! Copies a tree that a sandbox wrote to a place of ours: by descriptors only, files, folders and links only, owner and mode ours to say.

use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Visitor};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, copy_file_range, mkdirat, openat, openat2, readlinkat, statat,
    symlinkat,
};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Copies the directory `name` of `from` to the new directory `target`. Anything but a file, a folder or a symbolic link is an error: git makes
/// nothing else.
pub(super) fn copy(from: BorrowedFd<'_>, name: &Path, target: &Path) -> Result<()> {
    let step = || format!("copy a checkout to `{}`", target.display());
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let source = openat2(from, name, DIRECTORY, Mode::empty(), resolve).failing(Kind::Workspace, step)?;
    std::fs::create_dir(target).failing(Kind::Store, step)?;
    let copy = rustix::fs::open(target, DIRECTORY, Mode::empty()).failing(Kind::Store, step)?;
    let mut copy = Copy { target: copy, step: &step };
    files::walk(source, &mut copy)
}

/// A copy on its way: the directory of the copy that the walk is in.
struct Copy<'run> {
    target: OwnedFd,
    step: &'run dyn Fn() -> String,
}

impl Visitor for Copy<'_> {
    type Error = Error;

    fn failed(&self, cause: std::io::Error) -> Error {
        Error::os(Kind::Workspace, cause).doing((self.step)())
    }

    fn entry(&mut self, source: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<()> {
        copy_one(source, self.target.as_fd(), name, kind)
    }

    fn enter(&mut self, name: &CStr) -> Result<()> {
        self.target = openat(&self.target, name, DIRECTORY, Mode::empty()).failing(Kind::Store, self.step)?;
        Ok(())
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &CStr) -> Result<()> {
        // No other process changes the copy: it has no name that is known yet.
        self.target = openat(&self.target, c"..", DIRECTORY, Mode::empty()).failing(Kind::Store, self.step)?;
        Ok(())
    }
}

fn copy_one(source: BorrowedFd<'_>, target: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<()> {
    let step = || format!("copy `{}`", String::from_utf8_lossy(name.to_bytes()).escape_debug());
    let status = statat(source, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Workspace, step)?;
    // Its set-id and sticky bits mean nothing good outside.
    let mode = Mode::from_raw_mode(status.st_mode & 0o777 | 0o600);
    match kind {
        FileType::Directory => mkdirat(target, name, mode | Mode::from_raw_mode(0o700)).failing(Kind::Store, step),
        FileType::Symlink => {
            let to = readlinkat(source, name, Vec::new()).failing(Kind::Workspace, step)?;
            symlinkat(std::ffi::OsStr::from_bytes(to.to_bytes()), target, name).failing(Kind::Store, step)
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let from = openat(source, name, flags, Mode::empty()).failing(Kind::Workspace, step)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = openat(target, name, flags, mode).failing(Kind::Store, step)?;
            copy_bytes(&from, &to).failing(Kind::Store, step)
        }
        other => Err(Error::new(Kind::Workspace, format!("{other:?} is nothing that a repository has")).doing(step())),
    }
}

/// Across file systems copy_file_range(2) is refused by some; then by hand.
fn copy_bytes(from: &OwnedFd, to: &OwnedFd) -> std::io::Result<()> {
    loop {
        match copy_file_range(from, None, to, None, 1 << 30) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => {
                std::io::copy(&mut std::fs::File::from(from.try_clone()?), &mut std::fs::File::from(to.try_clone()?))?;
                break;
            }
        }
    }
    Ok(())
}
