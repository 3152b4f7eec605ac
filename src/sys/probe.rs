//! Which system calls the kernel has, asked with arguments that it refuses before it does anything.

use super::last_errno;
use rustix::io::Errno;

/// A call that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// clone3(2)
    Clone3,
    /// pidfd_open(2)
    PidfdOpen,
    /// fsopen(2)
    Fsopen,
    /// move_mount(2)
    MoveMount,
    /// openat2(2)
    Openat2,
    /// close_range(2)
    CloseRange,
    /// mount_setattr(2)
    MountSetattr,
    /// A number that no kernel has.
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

/// Whether the kernel, through whatever filter is in force, knows the call.
pub(crate) fn is_known(call: Call) -> bool {
    // No descriptor, no address, no flag and no size is -1 (its clone_args would be larger than a page), so each of these calls ends with
    // EBADF, EFAULT, EINVAL, E2BIG or EPERM at its first look at its arguments. close_range gets an empty range through its flags.
    const NOTHING: libc::c_long = -1;
    // SAFETY: no address is valid, so the kernel neither reads nor writes memory of ours; flags of all ones are refused.
    let result = unsafe { libc::syscall(call.number(), NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) };
    result != -1 || last_errno() != Errno::NOSYS
}

/// The kernel's Landlock ABI. landlock_create_ruleset(2) with LANDLOCK_CREATE_RULESET_VERSION, kernel 5.13.
pub(crate) fn landlock_abi() -> Result<u32, Errno> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the address must be null and the size 0; nothing is made.
    let result = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(result).map_err(|_| last_errno())
}
