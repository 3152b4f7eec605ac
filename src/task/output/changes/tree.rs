//! Reads a hostile tree: on descriptors, one component or one checked path at a time.
//!
//! openat2(2) with all of `RESOLVE_BENEATH`, `NO_SYMLINKS`, `NO_MAGICLINKS` and `NO_XDEV` (kernel 5.6) follows no link,
//! and reaches nothing outside the tree or on another mount. A FIFO or a device is never opened: the type is read
//! before the open, and again from the descriptor.

use super::path::TreePath;
use crate::host::is_off;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Attempts at a resolution that fails with EAGAIN because of a rename anywhere in the system.
const TRIES: u32 = 64;

fn open(at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let (flags, inside) = if is_off("changes-beneath") {
        (flags | OFlags::CLOEXEC, ResolveFlags::empty())
    } else {
        (flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, INSIDE)
    };
    let mut tries = 0;
    loop {
        match openat2(at, path, flags, mode, inside) {
            Err(Errno::AGAIN) if tries < TRIES => tries += 1,
            other => return other,
        }
    }
}

/// The name came from a directory or from a `TreePath`, so it has no slash.
pub(in crate::task) fn name_path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

pub(in crate::task) fn directory(at: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    open(at, name_path(path), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

pub(in crate::task) fn parent(root: BorrowedFd<'_>, path: &TreePath) -> Result<OwnedFd, Errno> {
    match path.parent() {
        Some(above) => directory(root, above.as_bytes()),
        None => directory(root, b"."),
    }
}

/// Any other type than a regular file is EINVAL, also one that just replaced the file.
pub(in crate::task) fn file(at: BorrowedFd<'_>, path: &[u8]) -> Result<(File, Stat), Errno> {
    // NONBLOCK: the open of a FIFO that just replaced the file returns at once.
    let opened = open(at, name_path(path), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    let status = fstat(&opened)?;
    if file_type(&status) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok((File::from(opened), status))
}

/// `name` must not exist.
pub(in crate::task) fn create(at: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    open(at, name_path(name), flags, Mode::from_raw_mode(mode)).map(File::from)
}

/// Follows no link; `None` if `name` does not exist.
pub(in crate::task) fn status(at: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match statat(at, name_path(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(status)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(in crate::task) fn link_target(at: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    Ok(readlinkat(at, name_path(name), Vec::new())?.into_bytes())
}

pub(in crate::task) fn file_type(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

/// Without setuid, setgid and sticky.
pub(in crate::task) fn permissions(status: &Stat) -> u32 {
    status.st_mode & 0o777
}

pub(in crate::task) fn size(status: &Stat) -> u64 {
    u64::try_from(status.st_size).unwrap_or(0)
}

/// Bytes on the disk: less than the size if the file has holes.
pub(in crate::task) fn allocated(status: &Stat) -> u64 {
    u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// Seconds, nanoseconds.
#[allow(clippy::unnecessary_cast, reason = "the types of these fields differ between architectures")]
pub(in crate::task) fn modified(status: &Stat) -> [i64; 2] {
    [status.st_mtime as i64, status.st_mtime_nsec as i64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_but_a_regular_file_inside_is_opened() {
        let directory_of_test = tempfile::tempdir().unwrap();
        let at = |name: &str| directory_of_test.path().join(name);
        std::fs::create_dir_all(at("tree/sub")).unwrap();
        std::fs::write(at("secret"), "s").unwrap();
        std::fs::write(at("tree/sub/file"), "f").unwrap();
        symlink("../secret", at("tree/link")).unwrap();
        symlink("sub", at("tree/sublink")).unwrap();
        symlink("/proc/self/root", at("tree/magic")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("tree/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let tree: OwnedFd = File::open(at("tree")).unwrap().into();
        let check = |path: &str, errno| assert_eq!(file(tree.as_fd(), path.as_bytes()).unwrap_err(), errno, "{path}");
        check("link", Errno::LOOP);
        check("sublink/file", Errno::LOOP);
        check("magic/etc/passwd", Errno::LOOP);
        check("../secret", Errno::XDEV);
        check("/etc/passwd", Errno::XDEV);
        check("fifo", Errno::INVAL);
        check("sub", Errno::INVAL);
        assert!(file(tree.as_fd(), b"sub/file").is_ok());
        assert_eq!(directory(tree.as_fd(), b"sublink").unwrap_err(), Errno::NOTDIR);
        assert_eq!(directory(tree.as_fd(), b"sublink/.").unwrap_err(), Errno::LOOP);
        assert_eq!(directory(tree.as_fd(), b"..").unwrap_err(), Errno::XDEV);
    }
}
