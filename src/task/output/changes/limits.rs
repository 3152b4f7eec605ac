use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In the upper directory and in deleted parts of the base together.
    pub(crate) names: usize,
    pub(crate) depth: usize,
    pub(crate) file_bytes: u64,
    /// With holes. Further names of a hard link are links in the store and do not count.
    pub(crate) total_bytes: u64,
    /// On the host's disk: the task's own limit.
    pub(crate) disk_bytes: u64,
    /// Within `disk_bytes`.
    pub(crate) base_bytes: u64,
    /// After this the record is incomplete.
    pub(crate) time: Duration,
    /// All names and link targets in the record, where a byte of a name takes up to five.
    pub(crate) path_bytes: u64,
    /// Takes ignored files too.
    pub(crate) ignored: bool,
    pub(crate) skipped: usize,
    /// Their names and reasons together.
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
