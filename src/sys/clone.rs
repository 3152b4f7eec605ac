//! The creation and the end of processes.

use super::{check, last_errno, new_descriptor};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

pub(crate) type Flags = u64;

/// `CLONE_INTO_CGROUP` of linux/sched.h (5.7); libc has it as a negative int on some targets.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// struct clone_args of linux/sched.h, version 2 (88 bytes, kernel 5.7).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

pub(crate) enum Side {
    /// Must leave by `execve` or [`exit`], never by returning from `main`.
    Child,
    /// The child's pid in the caller's PID namespace, and its pidfd.
    Parent(i32, OwnedFd),
}

/// Forks with new namespaces, a pidfd, and (v2) directly into a cgroup. clone3(2), Linux 5.3; with a cgroup 5.7.
///
/// The caller must have one thread: the child's copy of the memory has the locks that other threads held.
pub(crate) fn clone_process(flags: Flags, cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    start(flags, libc::SIGCHLD as u64, cgroup)
}

/// A child of our parent (`CLONE_PARENT`), which signals its end like this process.
pub(crate) fn clone_sibling(flags: Flags) -> Result<Side, Errno> {
    start(flags | libc::CLONE_PARENT as u64, 0, None)
}

/// The flags of [`clone_sibling_under_filter`], as a filter sees them.
pub(crate) const SIBLING: Flags = (libc::CLONE_PARENT | libc::CLONE_PIDFD) as u64;

/// [`clone_sibling`] by clone(2): common filters refuse clone3(2), whose flags they cannot see.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn clone_sibling_under_filter() -> Result<Side, Errno> {
    let mut pidfd: i32 = -1;
    // SAFETY: without a stack and CLONE_VM the child runs on a copy of the memory like after fork(2). The kernel writes
    // the descriptor to a live local.
    let result = unsafe { libc::syscall(libc::SYS_clone, SIBLING, 0_usize, &raw mut pidfd, 0_usize, 0_usize) };
    match result {
        -1 => Err(last_errno()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid as i32, new_descriptor(pidfd.into())?)),
    }
}

/// Other machines order clone(2)'s arguments differently.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn clone_sibling_under_filter() -> Result<Side, Errno> {
    clone_sibling(0)
}

fn start(flags: Flags, exit_signal: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    let mut pidfd: i32 = -1;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: args is a valid clone_args that outlives the call. Without a stack and CLONE_VM the child runs on a copy
    // of the memory like after fork(2).
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match result {
        -1 => Err(last_errno()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid as i32, new_descriptor(pidfd.into())?)),
    }
}

/// Whether clone3(2) reaches the kernel, which rejects the empty arguments (EINVAL). A filter that forbids namespaces
/// cannot see the flags, and returns ENOSYS for all calls.
pub(crate) fn can_clone() -> bool {
    // SAFETY: a size of 0 is refused before any access.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<CloneArgs>(), 0) };
    result == -1 && last_errno() == Errno::INVAL
}

/// Includes children whose exit signal is not SIGCHLD (`__WALL`; for waitid(2) since Linux 4.7).
const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);

/// `None` if the child was reaped before.
pub(crate) fn wait(pidfd: BorrowedFd<'_>) -> Result<Option<WaitIdStatus>, Errno> {
    match retry_on_intr(|| waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | ALL)) {
        Err(Errno::CHILD) => Ok(None),
        other => other,
    }
}

/// Reaps the child if it has exited. Returns whether it has, also after an earlier call.
pub(crate) fn is_over(pidfd: BorrowedFd<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | ALL;
    !matches!(waitid(WaitId::PidFd(pidfd), options), Ok(None) | Err(Errno::INTR))
}

/// Closes every descriptor from `first` up, except `kept`. close_range(2), Linux 5.9.
pub(crate) fn close_from(first: u32, kept: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut kept: Vec<u32> = kept.iter().map(|each| each.as_raw_fd() as u32).filter(|each| *each >= first).collect();
    kept.sort_unstable();
    let mut start = first;
    for number in kept.into_iter().map(Some).chain([None]) {
        let last = number.map_or(Some(libc::c_uint::MAX), |number| number.checked_sub(1));
        if let Some(last) = last.filter(|last| *last >= start) {
            close_range(start, last)?;
        }
        start = number.map_or(libc::c_uint::MAX, |number| number + 1);
    }
    Ok(())
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: the descriptors belong to values that are never used or dropped again: callers leave by `exit`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

/// Runs no destructors, buffers or `atexit`. After a raw clone on musl `abort` and `raise` would signal the parent
/// (stale thread id), so a child must leave this way.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: _exit takes no pointers and does not return.
    unsafe { libc::_exit(status) }
}
