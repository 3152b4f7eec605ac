//! Removes and counts whole trees.

use super::walk::{Bounds, DIRECTORY, Step, Stop, Walk};
use crate::error::{Context, Kind, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmod, fchmod, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns whether the directory existed. A link in its place is an error.
pub(crate) fn remove_directory(path: &Path) -> io::Result<bool> {
    let top = match openat(CWD, path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        Err(Errno::ACCESS) => {
            open_up(CWD, path)?;
            openat(CWD, path, DIRECTORY, Mode::empty())?
        }
        opened => opened?,
    };
    empty_directory(top)?;
    unlink(CWD, path, AtFlags::REMOVEDIR)?;
    Ok(true)
}

/// A missing name is not an error.
pub(crate) fn remove_entry(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let removed = remove(parent, name);
    removed.failing(Kind::Store, || format!("remove `{}`", String::from_utf8_lossy(name).escape_debug()))
}

fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // POSIX has EPERM for a directory, Linux EISDIR.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let directory = match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            open_up(parent, name)?;
            openat(parent, name, DIRECTORY, Mode::empty())
        }
        opened => opened,
    };
    empty_directory(directory?)?;
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Opens closed subdirectories first.
pub(crate) fn empty_directory(top: OwnedFd) -> std::result::Result<(), Stop> {
    let mut walk = Walk::through(top, Bounds::NONE, ())?;
    while let Some(step) = walk.next()? {
        match step {
            Step::Entry(FileType::Directory) => {
                let entered = match walk.descend(()) {
                    Err(Stop::System(Errno::ACCESS)) => {
                        open_up(walk.side(0)?, walk.name())?;
                        walk.descend(())
                    }
                    entered => entered,
                };
                if entered != Err(Stop::System(Errno::NOENT)) {
                    entered?;
                }
            }
            Step::Entry(_) => unlink(walk.side(0)?, walk.name(), AtFlags::empty())?,
            Step::End => {
                walk.leave()?;
                unlink(walk.side(0)?, walk.name(), AtFlags::REMOVEDIR)?;
            }
        }
    }
    Ok(())
}

fn unlink(at: BorrowedFd<'_>, name: impl Arg + Copy, flags: AtFlags) -> std::result::Result<(), Errno> {
    let unlinked = match unlinkat(at, name, flags) {
        Err(Errno::ACCESS) => {
            fchmod(at, Mode::RWXU)?;
            unlinkat(at, name, flags)
        }
        unlinked => unlinked,
    };
    if unlinked == Err(Errno::NOENT) { Ok(()) } else { unlinked }
}

/// Gives the owner access: without privileges the mode binds the owner, too.
fn open_up(at: BorrowedFd<'_>, name: impl Arg) -> std::result::Result<(), Errno> {
    let directory =
        openat(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub entries: u64,
    /// Bytes on the disk.
    pub bytes: u64,
    pub depth: usize,
}

/// Unreadable parts count as zero.
pub(crate) fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(status) = std::fs::symlink_metadata(path) else { return 0 };
    let inside = if status.is_dir() { contents(path).unwrap_or_default().bytes } else { 0 };
    status.blocks() * 512 + inside
}

/// Skips files that vanish meanwhile.
pub(crate) fn contents(path: &Path) -> io::Result<Contents> {
    let mut found = Contents::default();
    let mut walk = Walk::through(openat(CWD, path, DIRECTORY, Mode::empty())?, Bounds::NONE, ())?;
    while let Some(step) = walk.next()? {
        let Step::Entry(kind) = step else { continue };
        let Ok(status) = statat(walk.side(0)?, walk.name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        found.entries += 1;
        found.bytes += status.st_blocks as u64 * 512;
        found.depth = found.depth.max(walk.depth());
        if kind == FileType::Directory {
            match walk.descend(()) {
                Err(Stop::System(Errno::NOENT)) => {}
                entered => entered?,
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_is_counted_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), vec![1; 5000]).unwrap();
        symlink("/etc", top.join("a/link")).unwrap();
        let found = contents(&top).unwrap();
        assert_eq!((found.entries, found.depth), (4, 3));
        assert!(found.bytes >= 8192 && bytes_on_disk(&top) >= found.bytes);
        assert!(remove_directory(&top).unwrap() && !top.exists());
        assert!(!remove_directory(&top).unwrap());
        assert!(Path::new("/etc").exists());
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("real")).unwrap();
        let link = directory.path().join("link");
        symlink("real", &link).unwrap();
        remove_directory(&link).unwrap_err();
        assert!(directory.path().join("real").exists());
    }

    #[test]
    fn a_closed_directory_of_ours_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |name: &str, mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path().join(name), permissions).unwrap();
        };
        for name in ["a/closed/inside", "b"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join(name).join("file"), "").unwrap();
            mode(name, 0o500);
        }
        mode("a/closed", 0);
        mode("b", 0);
        let parent = std::fs::File::open(directory.path()).unwrap();
        for name in [&b"a"[..], b"b", b"missing"] {
            remove_entry(parent.as_fd(), name).unwrap();
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
