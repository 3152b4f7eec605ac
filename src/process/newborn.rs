//! ptrace(2) of a child, so that its new process does not run before its grandparent allows it.

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// Traces a child without a stop. A process that it makes by clone(2) is traced from its birth and stops before it
/// runs. Both end if the caller ends.
pub(super) fn seize(pid: i32) -> Result<(), Errno> {
    ptrace::seize(Pid::from_raw(pid), Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL).map_err(errno)
}

/// Runs `held` with the next process that `pid` makes, while it is stopped, then traces neither. No other process can
/// trace it earlier (one tracer at a time, ptrace(2)). Without effect if the child ends instead.
pub(super) fn hold(pid: i32, held: impl FnOnce(i32) -> Result<(), Errno>) -> Result<(), Errno> {
    const BORN: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_CLONE << 8;
    loop {
        match stop(pid)? {
            Some(BORN) => break,
            // A signal is delivered; other events have no meaning here.
            Some(other) => ptrace::cont(Pid::from_raw(pid), Signal::try_from(other).ok()).map_err(errno)?,
            None => return Ok(()),
        }
    }
    let newborn = ptrace::getevent(Pid::from_raw(pid)).map_err(errno)? as i32;
    if stop(newborn)?.is_some() {
        let done = held(newborn);
        detach(newborn)?;
        done?;
    }
    detach(pid)
}

/// Returns the reason of the stop; `None` if the process has ended.
fn stop(pid: i32) -> Result<Option<i32>, Errno> {
    const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return Ok(None) };
    match retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::STOPPED | ALL)) {
        Err(Errno::CHILD) => Ok(None),
        other => Ok(other?.as_ref().and_then(WaitIdStatus::trapping_signal)),
    }
}

fn detach(pid: i32) -> Result<(), Errno> {
    match ptrace::detach(Pid::from_raw(pid), None) {
        Err(nix::Error::ESRCH) => Ok(()), // it was killed meanwhile
        other => other.map_err(errno),
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}
