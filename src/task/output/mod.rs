//! A sandbox's output: changes of the workspace, artifacts, the result.
//!
//! In: the upper directory of the sandbox, when its processes are gone. Out: files of the store, and lists for the
//! receipt. Never: a link followed, or anything but a regular file opened, in a tree that an agent wrote.

pub(super) mod artifact;
pub(super) mod changes;
pub(super) mod folder_snapshot;
pub(super) mod handback;
pub(super) mod result;
pub(super) mod schema;
pub(super) mod tree;
pub(super) mod worktree;
