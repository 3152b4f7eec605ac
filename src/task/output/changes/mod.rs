//! An agent's changes: collected from its overlay, shown as a patch, applied to the user's tree.
//!
//! The agent's names, types, sizes, links and contents are hostile: only [`tree`] reads them, on descriptors. The
//! record may be edited before its use, so each step checks it again.
//! Never: running git, following a link, opening anything but files and directories, a path of the host below a tree.

mod applied;
mod apply;
mod base;
mod binary;
mod check;
mod collect;
mod commit;
pub(crate) mod copy;
mod diff;
mod hidden;
mod hunks;
mod ignored;
mod index;
mod keep_bases;
mod limits;
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

pub(crate) use applied::{LeftOutReason, Options};
pub(crate) use apply::apply;
pub(in crate::task) use collect::{Workspace, collect};
pub(in crate::task) use diff::LARGEST_TEXT;
pub(crate) use diff::{Binary, DiffOptions, diff};
pub(in crate::task) use hidden::HiddenNames;
pub(in crate::task) use index::{Above, Worktree};
pub(in crate::task) use keep_bases::BaseWriter;
pub(crate) use limits::Limits;
pub(crate) use overlay::Form;
pub(crate) use path::escape;
pub(crate) use record::{Change, Changes, Entry, Node, Skipped};
pub(crate) use runnable::runnable;
pub use select::Selection;
pub(in crate::task) use snapshot::{KnownBase, KnownContent, Snapshot};
pub(in crate::task) use tree::is_off;

#[cfg(test)]
use {
    applied::{Applied, Difference, leads_out},
    diff::Diffed,
    path::{Raw, TreePath},
    record::{Base, Content, Reason},
};

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
