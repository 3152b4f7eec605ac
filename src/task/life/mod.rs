//! The life of one task, from its definition to its receipt, and requests to it while it runs.
//!
//! In: a definition. Out: a receipt, a log, the events.
//! Order (`pipeline`): check, announce, wait for a turn, prepare, run, collect, tear down, record.
//! Not here: what a task is (`definition`), a sandbox's output (`output`), ended tasks (`ended`).

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
