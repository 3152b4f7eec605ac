//! Signals without names in rustix, and signal dispositions.

use super::clone::exit;
use super::last_errno;
use rustix::io::Errno;
use rustix::process::Signal;

/// `number`: 34 to 64 (signal(7)). The C library uses the first two of the kernel's range.
pub(crate) fn real_time(number: i32) -> Signal {
    // SAFETY: the callers pass 34 to 64: signals that the kernel has and no library uses.
    unsafe { Signal::from_raw_unchecked(number) }
}

const TERMINATION: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Pid 1 ignores signals without a handler (pid_namespaces(7)). execve(2) resets the handlers.
pub(crate) fn exit_on_termination() -> Result<(), Errno> {
    extern "C" fn handler(number: libc::c_int) {
        exit(128 + number)
    }
    for number in TERMINATION {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler calls only _exit(2), which is async-signal-safe (signal-safety(7)).
        if unsafe { libc::signal(number, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// An ignored signal stays ignored across execve, and Rust's start-up ignores SIGPIPE. signal(2) leaves SIGKILL,
/// SIGSTOP and the C library's signals unchanged.
pub(crate) fn restore_signal(number: i32) {
    // SAFETY: SIG_DFL is a valid handler, and brig has no handler to replace.
    unsafe { libc::signal(number, libc::SIG_DFL) };
}
