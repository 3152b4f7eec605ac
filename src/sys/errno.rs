//! The result of a system call that was made through libc.

use rustix::io::Errno;

/// Of the call that just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Of a call that returns 0 or -1.
pub(crate) fn check(result: libc::c_long) -> Result<(), Errno> {
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}
