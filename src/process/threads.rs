//! Refuses a caller with threads: a clone inherits their locks and half-written memory, and then hangs or fails.

use crate::error::{Context, Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::time::Duration;

/// From itself and from above; each thread's directory adds one.
const LINKS_OF_ONE: u32 = 3;

/// A joined thread counts until the kernel has removed it.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// One system call if there is one thread.
pub(crate) fn require_one() -> Result<()> {
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let found = statx(CWD, "/proc/self/task", AtFlags::empty(), StatxFlags::NLINK)
            .failing(Kind::Internal, || "count the threads of this process")?;
        if found.stx_nlink == LINKS_OF_ONE {
            return Ok(());
        }
    }
    Err(Error::new(Kind::State, "this process has threads, and a copy of it would have their locks")
        .doing("start a sandbox")
        .hint(
            "use `brig::Sandbox` or `brig::Task`, which start the program `brig`, or call this before the first thread",
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_threads_is_refused() {
        std::thread::scope(|scope| {
            let (hold, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            let error = require_one().unwrap_err();
            assert_eq!(error.kind(), Kind::State);
            assert!(error.advice().is_some_and(|hint| hint.contains("brig::Task")), "{error}");
            drop(hold);
        });
    }
}
