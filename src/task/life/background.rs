//! A task that goes on when whoever began it, and their terminal, are gone: its supervisor is a process of its own, and no daemon.

use super::pipeline;
use super::watcher::Watcher;
use crate::error::Result;
use crate::sandbox::{Starter, in_background};
use crate::task::definition::Definition;
use crate::task::store::Store;
use std::os::fd::BorrowedFd;

/// Nobody watches: the log has everything.
struct Nobody<'starter> {
    starter: &'starter mut Starter,
    open_input: bool,
}

impl Watcher for Nobody<'_> {
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

/// Begins a task in the background and gives its id. The caller has one thread. With `open_input` the command has an input that those who attach write
/// to; else it reads /dev/null.
pub fn run_detached(store: &Store, definition: &Definition, open_input: bool) -> Result<String> {
    crate::process::require_one_thread()?;
    in_background(&[], |starter| pipeline::run(store, definition, &mut Nobody { starter, open_input }).map(|_| ()))
}
