//! The life of one task, from its definition to its receipt, and requests to it while it runs.
//!
//! Order (`pipeline`): check, announce, wait for a turn, prepare, run, collect, tear down, record.

pub(super) mod background;
mod canary;
pub(super) mod hiding;
mod jobs;
pub(super) mod live;
mod log;
mod missing;
mod notify;
pub(super) mod pipeline;
pub(super) mod processes;
pub(super) mod pump;
mod queue;
pub(super) mod watcher;
