//! Owner, attributes, mode and times of one entry, on a descriptor of the very file that was made: a name could be
//! something else by now, and chmod(2) follows symlinks (CVE-2021-32760, CVE-2026-33056).
//!
//! The order matters: a change of the owner clears set-id bits and capabilities, so it comes first; attributes before the
//! mode, which may take our own right to set them; capabilities and times last.

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

/// What ext4 can keep (inode times of 34 bits); others keep more, and clamp by themselves.
const EARLIEST: i64 = -(1 << 31);
const LATEST: i64 = (1 << 34) - (1 << 31) - 1;

const CAPABILITY: &[u8] = b"security.capability";

/// What a layer asked for and this store cannot keep, counted for the layer's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Device nodes, which need CAP_MKNOD.
    pub devices: u64,
    /// File capabilities, which need CAP_SETFCAP.
    pub capabilities: u64,
    /// Other attributes that the file system does not take.
    pub attributes: u64,
}

/// How the file is held.
#[derive(Clone, Copy)]
pub(super) enum Held<'a> {
    /// Open: a file or a directory.
    Open(BorrowedFd<'a>),
    /// By O_PATH: everything that must not be opened.
    Path(BorrowedFd<'a>),
}

impl Held<'_> {
    /// The file itself by way of its descriptor, for calls that do not take one of O_PATH (the magic link leads to the
    /// file, not to what it points to).
    fn magic(self) -> String {
        match self {
            Held::Open(file) | Held::Path(file) => format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()),
        }
    }
}

/// Takes the group of whatever a layer's root lies in from it, and the bit that hands it on to all that is made inside
/// (inode(7), S_ISGID). Closed to others until it gets its own mode.
pub(super) fn claim(root: BorrowedFd<'_>) -> Result<()> {
    fchown(root, None, Some(rustix::process::getegid())).and_then(|()| fchmod(root, Mode::RWXU)).map_err(made)
}

/// Gives a file its owner.
pub(super) fn set_owner(held: Held<'_>, uid: u32, gid: u32, form: Form) -> Result<()> {
    if form.owners == Owners::Caller {
        return Ok(());
    }
    let ids = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let changed = match held {
        Held::Open(file) => fchown(file, ids.0, ids.1),
        Held::Path(_) => chown(held.magic(), ids.0, ids.1),
    };
    changed.map_err(made)
}

/// Sets all attributes but capabilities, which the caller sets last.
pub(super) fn set_attributes(held: Held<'_>, entry: &Entry, skipped: &mut Skipped) -> Result<()> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name) && name != CAPABILITY) {
        set(held, name, value, &mut skipped.attributes)?;
    }
    Ok(())
}

/// Sets the file's capabilities.
pub(super) fn set_capabilities(held: Held<'_>, entry: &Entry, skipped: &mut Skipped) -> Result<()> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| name == CAPABILITY) {
        set(held, name, value, &mut skipped.capabilities)?;
    }
    Ok(())
}

/// Attributes that an image may set. Not `trusted.*` and `user.overlay.*`, by which it would speak to overlayfs (redirect a
/// directory, borrow another file's data); not the labels of the host's own security modules.
fn is_kept(name: &[u8]) -> bool {
    if weaken::is_off("image-overlay-attributes") {
        return true;
    }
    name == CAPABILITY
        || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

fn set(held: Held<'_>, name: &[u8], value: &[u8], skipped: &mut u64) -> Result<()> {
    let done = match held {
        Held::Open(file) => fsetxattr(file, name, value, XattrFlags::empty()),
        Held::Path(_) => setxattr(held.magic(), name, value, XattrFlags::empty()),
    };
    match done {
        Ok(()) => Ok(()),
        // Not this file system, not this kind of file, or not without privileges.
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

/// Sets the twelve permission bits.
pub(super) fn set_mode(held: Held<'_>, mode: u32) -> Result<()> {
    let mode = Mode::from_raw_mode(mode);
    let changed = match held {
        Held::Open(file) => fchmod(file, mode),
        Held::Path(_) => chmod(held.magic(), mode),
    };
    changed.map_err(made)
}

/// Access and modification time, both the entry's.
pub(super) fn times(mtime: (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: mtime.0.clamp(EARLIEST, LATEST), tv_nsec: i64::from(mtime.1) };
    Timestamps { last_access: time, last_modification: time }
}

pub(super) fn set_times(file: BorrowedFd<'_>, mtime: (i64, u32)) -> Result<()> {
    futimens(file, &times(mtime)).map_err(made)
}
