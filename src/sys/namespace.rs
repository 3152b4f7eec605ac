//! NS_GET_USERNS of ioctl_ns(2).

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The user namespace that a namespace belongs to; EPERM if that is not ours and not below it.
pub(crate) fn owner(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: the call has no argument.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS as libc::Ioctl) };
    match result {
        -1 => Err(super::errno::last_errno()),
        // SAFETY: the kernel has just made this descriptor, which has no other owner.
        descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
    }
}
