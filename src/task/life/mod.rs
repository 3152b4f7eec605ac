//! The life of one task, from its definition to its receipt, and requests to it while it runs.
//!
//! Order (`pipeline`): check, announce, wait for a turn, prepare, run, collect, tear down, record.

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

use crate::sandbox::Row;
use std::os::fd::BorrowedFd;

/// The caller's side of a running task: receives its messages and output.
pub trait Watcher {
    /// The task has this id.
    fn began(&mut self, id: &str);
    /// A message for the operator before the task begins.
    fn note(&mut self, _text: &str) {}
    /// A message for a person, whose facts are in the record.
    fn hint(&mut self, _text: &str) {}
    /// A line about git, which replaces the last one; empty at the end.
    fn progress(&mut self, _text: &str) {}
    /// The gateway refused a connection or a name. The row is redacted.
    fn refused(&mut self, _row: &Row) {}
    /// `error` is true for standard error. Keeps what it cannot pass on without waiting for [`Watcher::go_on`].
    fn output(&mut self, error: bool, bytes: &[u8]);
    /// The gate of this stream is open: passes on kept output. No more output is read until it returns `true` (nothing
    /// kept).
    fn go_on(&mut self, _error: bool) -> bool {
        true
    }
    /// A descriptor that must be writable before more output is read: a slow reader slows the command and not the
    /// supervisor.
    fn gate(&self, error: bool) -> Option<BorrowedFd<'_>>;
    /// Whether standard input is passed on to the command.
    fn forward_input(&self) -> bool;
    /// Whether this process may be a service: the caller's own, not one in the background.
    fn is_foreground(&self) -> bool {
        false
    }
    /// Whether the command's input stays open for attached clients.
    fn open_input(&self) -> bool {
        false
    }
}
