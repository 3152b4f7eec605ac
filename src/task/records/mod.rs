//! What the store has of a task: its record, its events, its log, its receipt.
//!
//! Writers are the supervisor and, after its death, `ended`. Readers are every command, also while the task runs.
//! Never: a secret's value; all text passes the redactor before it comes here.

pub(super) mod event;
pub(super) mod follow;
pub(super) mod forward;
pub(super) mod log_streams;
pub(super) mod receipt;
pub(super) mod record;
