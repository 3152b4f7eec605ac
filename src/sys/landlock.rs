//! landlock_create_ruleset(2) as a question; the landlock crate does the rest.

use super::errno::last_errno;
use rustix::io::Errno;

const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

/// The kernel's Landlock ABI.
pub(crate) fn abi() -> Result<u32, Errno> {
    let nothing: *const libc::c_void = std::ptr::null();
    // SAFETY: with this flag the attributes must be null and nothing is made.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, LANDLOCK_CREATE_RULESET_VERSION) };
    u32::try_from(version).map_err(|_| last_errno())
}
