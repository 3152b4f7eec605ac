//! SIOCSIFFLAGS of netdevice(7).

use super::errno::check;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Brings the loopback interface of the socket's network namespace up. Needs CAP_NET_ADMIN over that namespace.
pub(crate) fn bring_loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: an all-zero ifreq is a valid value of this C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: request is a whole ifreq with a NUL-terminated name and outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw mut request) }.into())
}
