//! Ended tasks: listed, applied, exported, continued, pruned, and reconciled after the death of their supervisor.
//!
//! In: the records of a store. Out: the user's tree or a bundle, new records, less in the store.
//! Never: a path of the agent's opened on the host without the checks of `output`.

pub(super) mod apply;
pub(super) mod export;
pub(super) mod filter;
pub(super) mod index;
pub(super) mod keep;
pub(super) mod prune;
pub(super) mod push;
pub(super) mod reconcile;
