//! Thin wrappers of system calls that rustix and nix lack: borrowed descriptors in, owned ones out. Errors are bare
//! `Errno`s: callers add the context.

#![allow(unsafe_code, reason = "system calls are made here; lib.rs denies it elsewhere")]

pub(crate) mod attributes;
pub(crate) mod bpf;
pub(crate) mod clone;
pub(crate) mod environment;
pub(crate) mod exec;
pub(crate) mod ioctl;
pub(crate) mod mount;
pub(crate) mod pidfd;
pub(crate) mod probe;
pub(crate) mod seccomp;
pub(crate) mod signal;
pub(crate) mod weaken;

use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd};

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// For a call that returns 0 or -1.
fn check(result: libc::c_long) -> Result<(), Errno> {
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

/// For a call that returns a new descriptor or -1.
fn new_descriptor(result: libc::c_long) -> Result<OwnedFd, Errno> {
    if result == -1 {
        return Err(last_errno());
    }
    // SAFETY: the callers in this module pass the result of a system call that makes a descriptor, which has no other
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Writes past the capture of a test's output. `tests/run` compares these lines with the expected ones.
#[cfg(test)]
pub(crate) fn skip(why: &str) {
    // Without a reader of standard error the line is lost.
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("SKIP {why}\n").as_bytes());
}

/// Returns true in a new process with this test alone. Other tests' threads disturb limits of a process, and a fork
/// whose child allocates.
#[cfg(test)]
pub(crate) fn is_alone(test: &str) -> bool {
    const VARIABLE: &str = "BRIG_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap_or_default());
    let output = command.args(["--exact", test, "--test-threads=1"]).env(VARIABLE, "1").output();
    let is_passed = |said: &std::process::Output| {
        said.status.success() && String::from_utf8_lossy(&said.stdout).contains("1 passed")
    };
    assert!(output.as_ref().is_ok_and(is_passed), "{output:?}");
    false
}
