//! Something tried in a child that has namespaces of its own, so that nothing of it is seen outside.

use crate::sys::clone::{Side, clone_process, exit};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::os::fd::AsFd;

/// Runs `attempt` in a new process with the namespaces of `flags` and returns what it came to, or why there is no such process.
///
/// The process may be a copy of one with several threads: `attempt` may make system calls, and must neither allocate nor lock.
pub(super) fn in_child(flags: libc::c_int, attempt: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let child = match clone_process(flags as u64, None)? {
        Side::Child => exit(attempt().err().map_or(0, Errno::raw_os_error)),
        Side::Parent(_, child) => child,
    };
    let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)?;
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        Some(number) => Err(Errno::from_raw_os_error(number)),
        // Killed: by a filter, or for want of memory.
        None => Err(Errno::PERM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_finds_comes_back() {
        assert_eq!(in_child(0, || Ok(())), Ok(()));
        assert_eq!(in_child(0, || Err(Errno::NODEV)), Err(Errno::NODEV));
    }
}
