//! Signals that rustix has no names for.

use rustix::process::Signal;

/// A real-time signal by its number, 34 to 64 (signal(7)); the first two of the kernel's range are the C library's own.
pub(crate) fn real_time(number: i32) -> Signal {
    // SAFETY: the callers pass 34 to 64: signals that the kernel has and that no library of ours uses.
    unsafe { Signal::from_raw_unchecked(number) }
}
