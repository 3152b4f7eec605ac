//! Limits of a collection.

use std::time::Duration;

/// Limits of a collection from a hostile tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Names to visit, in the upper directory and in deleted parts of the base together.
    pub(crate) names: usize,
    /// Nested directories.
    pub(crate) depth: usize,
    /// Bytes of one file.
    pub(crate) file_bytes: u64,
    /// Bytes of all copies together, with holes. Further names of a hard link are links in the store and do not count.
    pub(crate) total_bytes: u64,
    /// Bytes of all copies on the host's disk: the task's own disk limit.
    pub(crate) disk_bytes: u64,
    /// Bytes of all kept bases, within the same limit.
    pub(crate) base_bytes: u64,
    /// The time limit. After it the record is incomplete.
    pub(crate) time: Duration,
    /// Bytes of all names and link targets in the record, where a byte of a name takes up to five.
    pub(crate) path_bytes: u64,
    /// Whether ignored files are taken too.
    pub(crate) ignored: bool,
    /// Skipped paths to list.
    pub(crate) skipped: usize,
    /// Bytes of their names and reasons together.
    pub(crate) skipped_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        // A level costs two descriptors; the default limit of a process is 1024.
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
