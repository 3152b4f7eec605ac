//! `tmpcopyup`: a tmpfs that begins with a copy of what it covers, by descriptors and never through a symlink.

use super::resolve::NEW_FILE;
use crate::error::{Context, Error, Kind, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, XattrFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Directories within directories that we follow at most.
const DEEPEST: u32 = 512;

/// Flags of a directory that is read, for those who copy.
const READ_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Copies everything below `from` (a place) into `to` (the root of a mount).
pub(super) fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    let from = rustix::fs::openat(from, ".", READ_DIRECTORY, Mode::empty())
        .failing(Kind::Mount, || "read the covered directory")?;
    let to =
        rustix::fs::openat(to, ".", READ_DIRECTORY, Mode::empty()).failing(Kind::Mount, || "open the new tmpfs")?;
    directory(from.as_fd(), to.as_fd(), 0)
}

fn directory(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: u32) -> Result<()> {
    if depth > DEEPEST {
        return Err(Error::new(Kind::Mount, format!("directories are nested deeper than {DEEPEST}")));
    }
    let step = || "copy a directory";
    let mut entries = Dir::read_from(from).failing(Kind::Mount, step)?;
    while let Some(entry) = entries.read() {
        let entry = entry.failing(Kind::Mount, step)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let status = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Mount, step)?;
        let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => {
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700)).failing(Kind::Mount, step)?;
                let below = rustix::fs::openat(from, name, READ_DIRECTORY, Mode::empty()).failing(Kind::Mount, step)?;
                let made = rustix::fs::openat(to, name, READ_DIRECTORY, Mode::empty()).failing(Kind::Mount, step)?;
                directory(below.as_fd(), made.as_fd(), depth + 1)?;
                attributes(below.as_fd(), made.as_fd())?;
            }
            FileType::RegularFile => {
                let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut source: std::fs::File =
                    rustix::fs::openat(from, name, read, Mode::empty()).failing(Kind::Mount, step)?.into();
                let mut copy: std::fs::File = rustix::fs::openat(to, name, NEW_FILE, Mode::from_raw_mode(0o600))
                    .failing(Kind::Mount, step)?
                    .into();
                std::io::copy(&mut source, &mut copy).failing(Kind::Mount, || "copy a file")?;
                attributes(source.as_fd(), copy.as_fd())?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new()).failing(Kind::Mount, step)?;
                rustix::fs::symlinkat(target.as_c_str(), to, name).failing(Kind::Mount, step)?;
            }
            kind => rustix::fs::mknodat(to, name, kind, mode, status.st_rdev).failing(Kind::Mount, step)?,
        }
        // The owner first: a change of it clears the setuid bit.
        let (uid, gid) = (rustix::fs::Uid::from_raw(status.st_uid), rustix::fs::Gid::from_raw(status.st_gid));
        rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Mount, step)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
            rustix::fs::chmodat(to, name, mode, AtFlags::empty()).failing(Kind::Mount, step)?;
        }
    }
    Ok(())
}

/// Extended attributes; those that the tmpfs cannot hold are left out, as cp(1) does.
fn attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    let mut names = vec![0_u8; 64 << 10];
    let Ok(length) = rustix::fs::flistxattr(from, &mut names[..]) else { return Ok(()) };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 << 10];
        let Ok(size) = rustix::fs::fgetxattr(from, name, &mut value[..]) else { continue };
        match rustix::fs::fsetxattr(to, name, &value[..size], XattrFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {}
            Err(errno) => return Err(errno).failing(Kind::Mount, || "copy an extended attribute"),
        }
    }
    Ok(())
}
