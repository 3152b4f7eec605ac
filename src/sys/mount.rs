//! mount_setattr(2), which neither rustix nor nix has.

use super::check;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// struct mount_attr of linux/mount.h (32 bytes, kernel 5.12).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountAttr {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` to clear. The atime bits are one field: clear all of them to change one.
    pub clear: u64,
    /// One of `MS_PRIVATE`, `MS_SHARED`, `MS_SLAVE`, `MS_UNBINDABLE`, or 0.
    pub propagation: u64,
    /// For `MOUNT_ATTR_IDMAP`.
    pub userns: u64,
}

pub(crate) const RDONLY: u64 = 0x1;
pub(crate) const NOSUID: u64 = 0x2;
pub(crate) const NODEV: u64 = 0x4;
pub(crate) const NOEXEC: u64 = 0x8;
pub(crate) const NOATIME: u64 = 0x10;
/// The field of `RELATIME` (0), `NOATIME` and `STRICTATIME`.
pub(crate) const ATIME: u64 = 0x70;
pub(crate) const RELATIME: u64 = 0;
pub(crate) const STRICTATIME: u64 = 0x20;
pub(crate) const NODIRATIME: u64 = 0x80;
pub(crate) const IDMAP: u64 = 0x0010_0000;
pub(crate) const NOSYMFOLLOW: u64 = 0x0020_0000;

/// Changes the mount at `path` under `dir`; an empty path means `dir`. mount_setattr(2), Linux 5.12.
pub(crate) fn set_attributes(
    dir: BorrowedFd<'_>,
    path: &CStr,
    recursive: bool,
    attributes: &MountAttr,
) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: path is NUL-terminated and attributes points to a struct of the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir.as_raw_fd(),
            path.as_ptr(),
            flags,
            attributes as *const MountAttr,
            size_of::<MountAttr>(),
        )
    })
}
