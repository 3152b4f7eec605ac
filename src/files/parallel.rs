//! Work on files by several threads.

use crate::error::{Error, Kind, Result};

/// More threads compete for the disk.
const MOST: usize = 4;

/// Runs `work` in one thread for each processor, up to [`MOST`] and `pieces`. Each returns when no piece is left.
/// Returns the first error.
pub(crate) fn in_parallel(pieces: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = processors.min(MOST).min(pieces.max(1));
    let results: Vec<Result<()>> = std::thread::scope(|threads| {
        let handles: Vec<_> = (0..wanted).map(|_| threads.spawn(&work)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| Err(lost()))).collect()
    });
    results.into_iter().collect()
}

/// The error of a thread that ended without a result.
pub(crate) fn lost() -> Error {
    Error::new(Kind::Internal, "a thread panicked")
}
