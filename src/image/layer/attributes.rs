//! Sets owner, attributes, mode and times on a descriptor of the new file. Its name may mean another file by now, and
//! chmod(2) follows symlinks (CVE-2021-32760, CVE-2026-33056).
//!
//! The owner comes first: its change clears set-id bits and capabilities. Attributes come before the mode, which may
//! forbid setting them; capabilities and times come last.

use crate::error::{Error, Kind, Result};
use crate::image::form::{Form, Owners, made};
use crate::image::tar::Entry;
use crate::sys::weaken;
use rustix::fs::{
    Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmod, chown, fchmod, fchown, fsetxattr, futimens, setxattr,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// ext4's range (inode times of 34 bits). Other file systems keep more, or clamp.
const EARLIEST: i64 = -(1 << 31);
const LATEST: i64 = (1 << 34) - (1 << 31) - 1;

const CAPABILITY: &[u8] = b"security.capability";

/// What this store cannot keep of a layer, for its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Device nodes, which need CAP_MKNOD.
    pub devices: u64,
    /// File capabilities, which need CAP_SETFCAP.
    pub capabilities: u64,
    /// Attributes that the file system rejects.
    pub attributes: u64,
}

#[derive(Clone, Copy)]
pub(super) enum FileDescriptor<'a> {
    Open(BorrowedFd<'a>),
    /// O_PATH: a file that must not be opened.
    Path(BorrowedFd<'a>),
}

impl FileDescriptor<'_> {
    /// For calls that reject O_PATH. The magic link leads to the file, not to its target.
    fn magic(self) -> String {
        match self {
            FileDescriptor::Open(file) | FileDescriptor::Path(file) => {
                format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
            }
        }
    }
}

/// Resets the group and the set-group-ID bit that a root inherits and would pass on (inode(7), S_ISGID). Closes the
/// root until it gets its mode.
pub(super) fn claim(root: BorrowedFd<'_>) -> Result<()> {
    fchown(root, None, Some(rustix::process::getegid())).and_then(|()| fchmod(root, Mode::RWXU)).map_err(made)
}

pub(super) fn set_owner(held: FileDescriptor<'_>, uid: u32, gid: u32, form: Form) -> Result<()> {
    if form.owners == Owners::Caller {
        return Ok(());
    }
    let ids = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let changed = match held {
        FileDescriptor::Open(file) => fchown(file, ids.0, ids.1),
        FileDescriptor::Path(_) => chown(held.magic(), ids.0, ids.1),
    };
    changed.map_err(made)
}

pub(super) fn set_attributes(held: FileDescriptor<'_>, entry: &Entry, form: Form, skipped: &mut Skipped) -> Result<()> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name) && name != CAPABILITY) {
        match set(held, name, value, &mut skipped.attributes) {
            // acl(5): it names an id that the caller's user namespace lacks.
            Err(error)
                if error.errno() == Some(libc::EINVAL)
                    && form.owners == Owners::Caller
                    && name.starts_with(b"system.posix_acl_") =>
            {
                skipped.attributes += 1;
            }
            done => done?,
        }
    }
    Ok(())
}

pub(super) fn set_capabilities(held: FileDescriptor<'_>, entry: &Entry, skipped: &mut Skipped) -> Result<()> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| name == CAPABILITY) {
        set(held, name, value, &mut skipped.capabilities)?;
    }
    Ok(())
}

/// Excludes `trusted.*` and `user.overlay.*`, which control overlayfs (redirect a directory, use another file's data),
/// and labels of the host's security modules.
fn is_kept(name: &[u8]) -> bool {
    if weaken::is_off("image-overlay-attributes") {
        return true;
    }
    name == CAPABILITY
        || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

fn set(held: FileDescriptor<'_>, name: &[u8], value: &[u8], skipped: &mut u64) -> Result<()> {
    let done = match held {
        FileDescriptor::Open(file) => fsetxattr(file, name, value, XattrFlags::empty()),
        FileDescriptor::Path(_) => setxattr(held.magic(), name, value, XattrFlags::empty()),
    };
    match done {
        Ok(()) => Ok(()),
        // The file system or the kind of file has none, or privileges are missing.
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {
            *skipped += 1;
            Ok(())
        }
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(made(errno)),
        Err(errno) => {
            let shown = String::from_utf8_lossy(name).escape_debug().to_string();
            Err(Error::os(Kind::Image, errno).doing(format!("set the attribute `{shown}`")))
        }
    }
}

pub(super) fn set_mode(held: FileDescriptor<'_>, mode: u32) -> Result<()> {
    let mode = Mode::from_raw_mode(mode);
    let changed = match held {
        FileDescriptor::Open(file) => fchmod(file, mode),
        FileDescriptor::Path(_) => chmod(held.magic(), mode),
    };
    changed.map_err(made)
}

pub(super) fn times(mtime: (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: mtime.0.clamp(EARLIEST, LATEST), tv_nsec: i64::from(mtime.1) };
    Timestamps { last_access: time, last_modification: time }
}

pub(super) fn set_times(file: BorrowedFd<'_>, mtime: (i64, u32)) -> Result<()> {
    futimens(file, &times(mtime)).map_err(made)
}
