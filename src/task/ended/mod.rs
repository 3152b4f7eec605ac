//! Ended tasks: listed, applied, exported, continued, pruned, and reconciled after the death of their supervisor.
//!
//! Never: a path of the agent's opened on the host without the checks of `output`.

pub(super) mod apply;
pub(super) mod export;
pub(super) mod filter;
pub(super) mod index;
pub(super) mod keep;
pub(super) mod prune;
pub(super) mod push;
pub(super) mod reconcile;
