//! A task's files in the store: record, events, log, receipt.
//!
//! The supervisor writes them, and after its death `ended`; all commands read them. All text passes the redactor first,
//! and a secret's value is never written.

pub(super) mod event;
pub(super) mod follow;
pub(super) mod forward;
pub(super) mod job;
pub(super) mod log_streams;
pub(super) mod receipt;
pub(super) mod record;
