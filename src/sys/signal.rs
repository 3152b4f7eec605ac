//! Signals that rustix has no names for, and their dispositions.

use super::clone::exit;
use super::last_errno;
use rustix::io::Errno;
use rustix::process::Signal;

/// A real-time signal by its number, 34 to 64 (signal(7)); the first two of the kernel's range are the C library's own.
pub(crate) fn real_time(number: i32) -> Signal {
    // SAFETY: the callers pass 34 to 64: signals that the kernel has and that no library of ours uses.
    unsafe { Signal::from_raw_unchecked(number) }
}

/// The signals that ask a process to end (signal(7)).
const TERMINATION: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Makes this process exit with 128 and the number when it is asked to end by a signal. The first process of a PID namespace ignores signals without a
/// handler (pid_namespaces(7)). execve(2) gives the signals their default action back.
pub(crate) fn exit_on_termination() -> Result<(), Errno> {
    extern "C" fn handler(number: libc::c_int) {
        exit(128 + number)
    }
    for number in TERMINATION {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler calls _exit(2) alone, which is safe in a handler (signal-safety(7)).
        if unsafe { libc::signal(number, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Gives a signal its default action. One that a caller ignores stays ignored across execve, and Rust's start-up ignores SIGPIPE. signal(2);
/// numbers that cannot be changed (SIGKILL, SIGSTOP, those of the C library) stay as they are.
pub(crate) fn restore_signal(number: i32) {
    // SAFETY: SIG_DFL is a valid handler, and no handler of ours is replaced.
    unsafe { libc::signal(number, libc::SIG_DFL) };
}
