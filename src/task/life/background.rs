//! A task in the background: its supervisor is a separate process, which outlives the caller and the terminal.

use super::pipeline;
use super::watcher::Watcher;
use crate::error::Result;
use crate::sandbox::{Starter, in_background};
use crate::task::definition::Definition;
use crate::task::store::Store;
use std::os::fd::{AsFd, BorrowedFd};

/// The log has everything.
struct NoWatcher<'starter> {
    starter: &'starter mut Starter,
    open_input: bool,
}

impl Watcher for NoWatcher<'_> {
    fn began(&mut self, id: &str) {
        self.starter.began(id);
    }

    fn output(&mut self, _error: bool, _bytes: &[u8]) {}

    fn gate(&self, _error: bool) -> Option<BorrowedFd<'_>> {
        None
    }

    fn forward_input(&self) -> bool {
        false
    }

    fn open_input(&self) -> bool {
        self.open_input
    }
}

/// Returns the task's id. The caller has one thread. With `open_input` attached clients write the command's input;
/// otherwise it is /dev/null.
pub fn run_detached(store: &Store, definition: &Definition, open_input: bool) -> Result<String> {
    crate::process::require_one_thread()?;
    let caller = definition.end_with.as_ref().map(AsFd::as_fd);
    in_background(caller.as_slice(), |starter| {
        pipeline::run(store, definition, &mut NoWatcher { starter, open_input }).map(|_| ())
    })
}
