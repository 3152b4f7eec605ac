//! Whole trees below a descriptor: listed and removed, never following a symlink.

use crate::error::{Context, Error, Kind, Result};
use crate::image::layer::open_child;
use rustix::fs::{AtFlags, Dir, FileType, Mode, fchmod, statat, unlinkat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// The names in a directory, without `.` and `..`.
pub(crate) fn names(directory: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).failing(Kind::Store, || "list a directory")? {
        let entry = entry.failing(Kind::Store, || "list a directory")?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(names)
}

/// Removes `name` and everything below it. A name that is not there is fine.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // EPERM is what POSIX says for a directory, EISDIR what Linux says.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno).failing(Kind::Store, || removing(name)),
    }
    let directory = match open_child(parent, name) {
        Err(Errno::ACCESS) => {
            // Ours, but closed even to us: without privileges its mode counts.
            open_up(parent, name)?;
            open_child(parent, name)
        }
        other => other,
    };
    let directory = directory.failing(Kind::Store, || removing(name))?;
    let entries = names(directory.as_fd())?;
    let writable =
        entries.first().is_none_or(|(first, _)| match unlinkat(&directory, first.as_slice(), AtFlags::empty()) {
            Err(Errno::ACCESS) => false,
            // Done, or the loop below says what is wrong.
            _ => true,
        });
    if !writable {
        fchmod(&directory, Mode::RWXU).failing(Kind::Store, || removing(name))?;
    }
    for (entry, _) in &entries {
        remove_tree(directory.as_fd(), entry)?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).failing(Kind::Store, || removing(name))
}

fn open_up(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, || removing(name))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(Error::new(Kind::Store, "it is not a directory any more").doing(removing(name)));
    }
    // Only a directory of our own trees, which nobody else can reach, comes here; it cannot have become a symlink.
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty()).failing(Kind::Store, || removing(name))
}

fn removing(name: &[u8]) -> String {
    format!("remove `{}`", String::from_utf8_lossy(name).escape_debug())
}
