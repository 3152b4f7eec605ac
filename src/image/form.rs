//! The on-disk form of layers is overlayfs's own: a directory of the store is a lower layer unchanged.
//!
//! With privileges: `trusted.overlay.*`, real owners and devices. Without: `user.overlay.*` (mounts with `userxattr`),
//! and the caller owns all files. A whiteout is a character device 0:0, which needs no privileges since Linux 5.8.
//! Otherwise it is an empty file with `overlay.whiteout` in a directory marked `opaque=x` (Linux 6.7;
//! filesystems/overlayfs.rst, "whiteouts and opaque directories").

use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, fgetxattr, fsetxattr, mknodat,
    openat, openat2, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The attributes that overlayfs reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Marks {
    /// `trusted.overlay.*`: an ordinary overlay mount.
    Trusted,
    /// `user.overlay.*`: a mount with `userxattr`.
    User,
}

/// The owners of a layer's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owners {
    /// The owners in the image.
    Image,
    /// The caller cannot give files to other users.
    Caller,
}

/// The form of a whiteout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whiteouts {
    /// A character device 0:0.
    Device,
    /// An empty file with an attribute.
    Attribute,
}

/// The same for all layers of a store, recorded in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// The attributes of marks.
    pub marks: Marks,
    /// The owners of files.
    pub owners: Owners,
    /// The form of whiteouts.
    pub whiteouts: Whiteouts,
}

impl Form {
    pub(crate) fn probe(directory: BorrowedFd<'_>) -> Result<Form> {
        let name = format!(".probe-{}", std::process::id());
        let file =
            openat(directory, name.as_str(), OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = file.failing(Kind::Store, || "try what the store's file system can do")?;
        let trusted = fsetxattr(&file, c"trusted.overlay.probe", b"y", XattrFlags::empty()).is_ok();
        let owner = |id: u32| {
            let ids = (rustix::fs::Uid::from_raw(id), rustix::fs::Gid::from_raw(id));
            rustix::fs::fchown(&file, Some(ids.0), Some(ids.1)).is_ok()
        };
        let owners = if owner(1) && owner(65_533) { Owners::Image } else { Owners::Caller };
        // On failure the name is free, or the next call reports the fault.
        let _ = rustix::fs::unlinkat(directory, name.as_str(), AtFlags::empty());
        let whiteout = mknodat(directory, name.as_str(), FileType::CharacterDevice, Mode::empty(), 0);
        let _ = rustix::fs::unlinkat(directory, name.as_str(), AtFlags::empty());
        Ok(Form {
            marks: if trusted { Marks::Trusted } else { Marks::User },
            owners,
            whiteouts: if whiteout.is_ok() { Whiteouts::Device } else { Whiteouts::Attribute },
        })
    }

    fn opaque_name(self) -> &'static str {
        match self.marks {
            Marks::Trusted => "trusted.overlay.opaque",
            Marks::User => "user.overlay.opaque",
        }
    }

    fn whiteout_name(self) -> &'static str {
        match self.marks {
            Marks::Trusted => "trusted.overlay.whiteout",
            Marks::User => "user.overlay.whiteout",
        }
    }

    pub(crate) fn set_opaque(self, directory: BorrowedFd<'_>) -> Result<()> {
        fsetxattr(directory, self.opaque_name(), b"y", XattrFlags::empty()).map_err(made)
    }

    pub(crate) fn is_opaque(self, directory: BorrowedFd<'_>) -> Result<bool> {
        Ok(self.opaque_value(directory)? == Some(b'y'))
    }

    fn opaque_value(self, directory: BorrowedFd<'_>) -> Result<Option<u8>> {
        let mut value = [0u8; 1];
        match fgetxattr(directory, self.opaque_name(), &mut value) {
            Ok(_) => Ok(Some(value[0])),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
            Err(errno) => Err(errno).failing(Kind::Store, || "read a layer's opaque mark"),
        }
    }

    /// The name must be free.
    pub(crate) fn make_whiteout(self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        self.mark(directory, name)?;
        // A layer must be the same each time.
        let epoch = Timespec { tv_sec: 0, tv_nsec: 0 };
        let never = Timestamps { last_access: epoch, last_modification: epoch };
        rustix::fs::utimensat(directory, name, &never, AtFlags::SYMLINK_NOFOLLOW).map_err(made)
    }

    fn mark(self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        match self.whiteouts {
            Whiteouts::Device => mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0).map_err(made),
            Whiteouts::Attribute => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(made)?;
                fsetxattr(&file, self.whiteout_name(), b"y", XattrFlags::empty()).map_err(made)?;
                match self.opaque_value(directory)? {
                    Some(_) => Ok(()),
                    None => fsetxattr(directory, self.opaque_name(), b"x", XattrFlags::empty()).map_err(made),
                }
            }
        }
    }

    pub(crate) fn is_whiteout(self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool> {
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(errno).failing(Kind::Store, || "look at a layer's file"),
        };
        match (self.whiteouts, FileType::from_raw_mode(found.st_mode)) {
            (_, FileType::CharacterDevice) => Ok(found.st_rdev == 0),
            (Whiteouts::Attribute, FileType::RegularFile) if found.st_size == 0 => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = match openat(directory, name, flags, Mode::empty()) {
                    Ok(file) => file,
                    // Not a mark: the owner can read marks, which have mode 0600.
                    Err(Errno::ACCESS) => return Ok(false),
                    Err(errno) => return Err(errno).failing(Kind::Store, || "open a layer's file"),
                };
                Ok(fgetxattr(file.as_fd(), self.whiteout_name(), &mut [0u8; 8]).is_ok())
            }
            _ => Ok(false),
        }
    }
}

/// The path must have no symlinks.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    if weaken::is_off("image-symlinks") {
        // Weakened: symlinks lead anywhere on the host.
        return openat(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    }
    let path = if path.is_empty() { b"." } else { path };
    let flags = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), flags)
}

/// Follows no symlink.
pub(crate) fn open_child(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

pub(crate) fn made(errno: Errno) -> Error {
    crate::files::failed(errno.into(), "write into the layer".into())
}

pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

/// `path` is normalised and not the root.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
