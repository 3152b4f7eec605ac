//! keyctl(2), only to leave the caller's session keyring.

use super::errno::check;
use rustix::io::Errno;

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;

/// Replaces the session keyring by a new, empty, anonymous one, so that no key of the caller can be used. keyctl(2).
pub(crate) fn leave_session_keyring() -> Result<(), Errno> {
    // SAFETY: a null name asks for an anonymous keyring; nothing is read or written through the pointer.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) })
}
