//! Tests which system calls the kernel has, with arguments that it rejects.

use super::last_errno;
use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Clone3,
    PidfdOpen,
    Fsopen,
    MoveMount,
    Openat2,
    CloseRange,
    MountSetattr,
    #[cfg(test)]
    Unknown,
}

impl Call {
    fn number(self) -> libc::c_long {
        match self {
            Call::Clone3 => libc::SYS_clone3,
            Call::PidfdOpen => libc::SYS_pidfd_open,
            Call::Fsopen => libc::SYS_fsopen,
            Call::MoveMount => libc::SYS_move_mount,
            Call::Openat2 => libc::SYS_openat2,
            Call::CloseRange => libc::SYS_close_range,
            Call::MountSetattr => libc::SYS_mount_setattr,
            #[cfg(test)]
            Call::Unknown => 0xFFFF,
        }
    }
}

/// Whether the kernel has the call, and the filter passes it.
pub(crate) fn is_known(call: Call) -> bool {
    // -1 is invalid as a descriptor, an address, flags and a size (clone_args would exceed a page). So each call fails
    // with EBADF, EFAULT, EINVAL, E2BIG or EPERM at once. close_range gets an empty range through its flags.
    const NOTHING: libc::c_long = -1;
    // SAFETY: no address is valid, so the kernel accesses no memory; flags of all ones are refused.
    let result = unsafe { libc::syscall(call.number(), NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) };
    result != -1 || last_errno() != Errno::NOSYS
}

/// landlock_create_ruleset(2) with LANDLOCK_CREATE_RULESET_VERSION, Linux 5.13.
pub(crate) fn landlock_abi() -> Result<u32, Errno> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the address must be null and the size 0.
    let result = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(result).map_err(|_| last_errno())
}
