//! A sandbox's output: changes of the workspace, artifacts, the result.
//!
//! Never: a link followed, or anything but a regular file opened, in a tree that an agent wrote.

pub(super) mod artifact;
pub(super) mod changes;
pub(super) mod folder_snapshot;
pub(super) mod handback;
pub(super) mod result;
pub(super) mod schema;
pub(super) mod worktree;
