//! ptrace(2) of a child, so that a process that the child makes does not run before its parent's parent allows it.

use super::{check, last_errno};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// Traces a child from now on, without stopping it. A process that the child makes by clone(2) is traced from its first instant and stops before it runs.
/// Both end if the caller ends.
pub(crate) fn seize(pid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SEIZE as libc::c_long, pid, (libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL) as usize)
}

/// Runs `held` with the process that the traced child `pid` makes next, while that process is stopped; then neither is traced any more. No other process
/// can trace the new one before (one tracer at a time, ptrace(2)). Without effect if the child ends instead.
pub(crate) fn hold_newborn(pid: i32, held: impl FnOnce(i32) -> Result<(), Errno>) -> Result<(), Errno> {
    const BORN: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_CLONE << 8;
    loop {
        match stop(pid)? {
            Some(BORN) => break,
            // A signal is delivered, an event without a meaning here is not.
            Some(other) => resume(pid, if other > 0xff { 0 } else { other })?,
            None => return Ok(()),
        }
    }
    let newborn = message(pid)?;
    if stop(newborn)?.is_some() {
        let done = held(newborn);
        detach(newborn)?;
        done?;
    }
    detach(pid)
}

/// Waits until a traced process stops, and returns why; `None` if it has ended.
fn stop(pid: i32) -> Result<Option<i32>, Errno> {
    const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::STOPPED | ALL) {
            Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(None),
            other => return Ok(other?.as_ref().and_then(WaitIdStatus::trapping_signal)),
        }
    }
}

fn resume(pid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_CONT as libc::c_long, pid, signal as usize)
}

fn detach(pid: i32) -> Result<(), Errno> {
    match request(libc::PTRACE_DETACH as libc::c_long, pid, 0) {
        Err(Errno::SRCH) => Ok(()), // it was killed meanwhile
        other => other,
    }
}

/// The id of the process that a traced one has just made.
fn message(pid: i32) -> Result<i32, Errno> {
    let mut value: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long to a live local.
    let result =
        unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_GETEVENTMSG as libc::c_long, pid, 0, &raw mut value) };
    if result == -1 { Err(last_errno()) } else { Ok(value as i32) }
}

fn request(request: libc::c_long, pid: i32, data: usize) -> Result<(), Errno> {
    // SAFETY: these requests take no pointers.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request, pid, 0, data) })
}
