//! seccomp(2), which neither rustix nor nix has.

use super::{check, last_errno, new_descriptor};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// struct sock_filter of linux/filter.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// `BPF_*` class, size, mode or operation.
    pub code: u16,
    /// Instructions that a jump skips if its condition holds.
    pub jump_true: u8,
    /// Instructions that it skips otherwise.
    pub jump_false: u8,
    pub operand: u32,
}

/// struct sock_fprog.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// `BPF_MAXINSNS` of linux/bpf_common.h.
pub(crate) const MAX_INSTRUCTIONS: usize = 4096;

// linux/seccomp.h
const SECCOMP_SET_MODE_FILTER: u32 = 1;
const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
pub(crate) const TSYNC: u32 = 1 << 0;
pub(crate) const LOG: u32 = 1 << 1;
pub(crate) const SPEC_ALLOW: u32 = 1 << 2;
pub(crate) const NEW_LISTENER: u32 = 1 << 3;
pub(crate) const TSYNC_ESRCH: u32 = 1 << 4;
pub(crate) const WAIT_KILLABLE_RECV: u32 = 1 << 5;

/// Filters this thread (all threads with `TSYNC`). seccomp(2), Linux 3.17; needs no_new_privs or CAP_SYS_ADMIN.
pub(crate) fn add_filter(instructions: &[Instruction], flags: u32) -> Result<(), Errno> {
    match add(instructions, flags)? {
        0 => Ok(()),
        // With TSYNC and without TSYNC_ESRCH the kernel returns a thread that could not be synchronized.
        _ => Err(Errno::SRCH),
    }
}

/// seccomp(2) with `SECCOMP_FILTER_FLAG_NEW_LISTENER`, Linux 5.0.
pub(crate) fn add_filter_with_listener(instructions: &[Instruction], flags: u32) -> Result<OwnedFd, Errno> {
    new_descriptor(add(instructions, flags | NEW_LISTENER)?)
}

fn add(instructions: &[Instruction], flags: u32) -> Result<libc::c_long, Errno> {
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::INVAL)?;
    let program = Program { length, instructions: instructions.as_ptr() };
    // SAFETY: program has the number of instructions that it names, laid out like struct sock_filter; the kernel copies
    // them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result == -1 { Err(last_errno()) } else { Ok(result) }
}

/// struct seccomp_notif of linux/seccomp.h: a call that waits for a listener's answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub id: u64,
    /// The calling thread, in the listener's PID namespace.
    pub pid: u32,
    flags: u32,
    /// The call's number: the beginning of struct seccomp_data.
    pub number: i32,
    abi: u32,
    /// The instruction pointer and the arguments.
    data: [u64; 7],
}

/// struct seccomp_notif_resp.
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const SECCOMP_IOCTL_NOTIF_RECV: libc::Ioctl = request(std::mem::size_of::<Waiting>(), 0);
const SECCOMP_IOCTL_NOTIF_SEND: libc::Ioctl = request(std::mem::size_of::<Answer>(), 1);

/// `_IOWR('!', number, size)` of asm-generic/ioctl.h: the two highest bits, also where three bits are for the
/// direction.
const fn request(size: usize, number: u32) -> libc::Ioctl {
    const READ_AND_WRITE: u32 = 3 << 30;
    (READ_AND_WRITE | (size as u32) << 16 | (b'!' as u32) << 8 | number) as libc::Ioctl
}

/// Blocks without a waiting call, so the caller has polled. ENOENT: the calling process has died.
pub(crate) fn next_waiting(listener: BorrowedFd<'_>) -> Result<Waiting, Errno> {
    let mut waiting = Waiting::default(); // all zero, as the kernel demands
    // SAFETY: the kernel writes a struct seccomp_notif, the layout of `waiting`, which outlives the call.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut waiting) }.into())?;
    Ok(waiting)
}

/// Makes the call return an error without running it. ENOENT: its process has died.
pub(crate) fn refuse(listener: BorrowedFd<'_>, id: u64, errno: Errno) -> Result<(), Errno> {
    answer(listener, &Answer { id, value: 0, error: -errno.raw_os_error(), flags: 0 })
}

fn answer(listener: BorrowedFd<'_>, answer: &Answer) -> Result<(), Errno> {
    // SAFETY: the kernel reads a struct seccomp_notif_resp, the layout of `answer`.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw const *answer) }.into())
}

/// `action`: a `SECCOMP_RET_*` without data. seccomp(2), Linux 4.14.
pub(crate) fn knows_action(action: u32) -> bool {
    // SAFETY: the kernel reads one u32 from a live local.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) }).is_ok()
}

/// The kernel checks the flags before it rejects the missing program. seccomp(2).
pub(crate) fn knows_flags(flags: u32) -> bool {
    let nothing: *const Program = std::ptr::null();
    // SAFETY: a null program is refused with EFAULT; nothing is installed.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, nothing) }) == Err(Errno::FAULT)
}

/// Runs the call. Its thread may change the memory that the call reads, but not its arguments.
pub(crate) fn let_through(listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
    const CONTINUE: u32 = 1;
    answer(listener, &Answer { id, value: 0, error: 0, flags: CONTINUE })
}

/// The pointers are null or point to live locals of the necessary size.
#[cfg(test)]
pub(crate) fn attempt(number: libc::c_long, arguments: [u64; 6]) -> Result<libc::c_long, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: see above; the kernel checks pointers.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(last_errno()) } else { Ok(result) }
}
