//! A task's files in the store: record, events, log, receipt.
//!
//! Writers are the supervisor and, after its death, `ended`. Readers are all commands, also while the task runs.
//! Never: a secret's value. All text passes the redactor first.

pub(super) mod event;
pub(super) mod follow;
pub(super) mod forward;
pub(super) mod job;
pub(super) mod log_streams;
pub(super) mod receipt;
pub(super) mod record;
