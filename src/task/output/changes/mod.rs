//! An agent's changes: collected from its overlay, shown as a patch, applied to the user's tree.
//!
//! The agent's names, types, sizes, links and contents are hostile: only [`tree`] reads them, on descriptors. The
//! record may be edited before its use, so each step checks it again.
//! Never: running git, following a link, opening anything but files and directories, a path of the host below a tree.

mod applied;
mod apply;
mod binary;
mod check;
mod collect;
mod commit;
pub(crate) mod copy;
mod diff;
mod hunks;
mod ignored;
mod index;
mod keep_bases;
mod merge;
pub(crate) mod overlay;
pub(crate) mod path;
mod record;
mod runnable;
mod runnable_table;
mod select;
mod snapshot;
pub(crate) mod store;
pub(crate) mod tree;
mod wire;

#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod collect_tests;
#[cfg(test)]
mod diff_tests;
#[cfg(test)]
mod ignored_tests;
#[cfg(test)]
mod lab;
#[cfg(test)]
mod snapshot_tests;
#[cfg(all(test, feature = "weakened"))]
#[expect(clippy::unwrap_used, reason = "tests, which clippy does not see behind `all`")]
mod weakened_tests;

pub(crate) use applied::{LeftOutReason, Options};
pub(crate) use apply::apply;
pub(in crate::task) use collect::{Workspace, collect};
pub(in crate::task) use diff::LARGEST_TEXT;
pub(crate) use diff::{Binary, DiffOptions, diff};
pub(in crate::task) use index::{Above, Worktree};
pub(in crate::task) use keep_bases::{BaseWriter, unmark_known};
pub(crate) use overlay::Form;
pub(in crate::task) use overlay::HiddenNames;
pub(crate) use path::escape;
pub(crate) use record::{Change, Changes, Entry, Node, Skipped};
pub(crate) use runnable::runnable;
pub use select::Selection;
pub(in crate::task) use snapshot::{KnownBase, KnownContent, Snapshot, lacks_base};
use std::time::Duration;
#[cfg(test)]
use {
    applied::{Applied, Difference, leads_out},
    diff::Diffed,
    path::{Raw, TreePath},
    record::{Base, Content, Reason},
};

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
