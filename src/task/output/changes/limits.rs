//! Bounds of what is collected.

use std::time::Duration;

/// How much of a hostile tree is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Names looked at, in the upper directory and in deleted parts of the base together.
    pub(crate) names: usize,
    /// Directories inside each other.
    pub(crate) depth: usize,
    /// Bytes of one file.
    pub(crate) file_bytes: u64,
    /// Bytes of all copies together, holes counted. The further names of a hard link count nothing: they are links in the store, too.
    pub(crate) total_bytes: u64,
    /// Bytes that all copies together take on the host's disk: the task's own disk limit.
    pub(crate) disk_bytes: u64,
    /// Bytes of kept bases together, within the same limit.
    pub(crate) base_bytes: u64,
    /// How long the workspace is read. What takes longer is left out, and the record is incomplete.
    pub(crate) time: Duration,
    /// Bytes of all names and link targets together, as the record has them: a byte of a name takes up to five there.
    pub(crate) path_bytes: u64,
    /// Whether what git ignores is taken, too.
    pub(crate) ignored: bool,
    /// Things left out that are listed one by one.
    pub(crate) skipped: usize,
    /// Bytes of their names and reasons together.
    pub(crate) skipped_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        // A level costs two descriptors, of which a process has 1024 by default.
        Limits {
            names: 500_000,
            depth: 200,
            file_bytes: 2 << 30,
            total_bytes: 16 << 30,
            disk_bytes: u64::MAX,
            base_bytes: 256 << 20,
            // 16 GiB at 60 MB a second.
            time: Duration::from_secs(300),
            path_bytes: 64 << 20,
            ignored: false,
            skipped: 10_000,
            skipped_bytes: 8 << 20,
        }
    }
}
