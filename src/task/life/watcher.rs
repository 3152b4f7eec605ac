//! What a task tells whoever runs it.

use std::os::fd::BorrowedFd;

/// Somebody who watches a task while it runs.
pub trait Watcher {
    /// The task has this id now.
    fn began(&mut self, id: &str);
    /// Something that whoever runs the task should know before it begins.
    fn note(&mut self, _text: &str) {}
    /// Words for a person, of which the record has the substance.
    fn hint(&mut self, _text: &str) {}
    /// A line about how far git has come with the workspace, in place of the last one; an empty one at the end.
    fn progress(&mut self, _text: &str) {}
    /// Some bytes of output came; `error` says of which stream. What cannot be passed on without waiting is kept for [`Watcher::go_on`].
    fn output(&mut self, error: bool, bytes: &[u8]);
    /// The gate of this stream is open: passes on what was kept. Says whether nothing is left of it; until then no more output is read.
    fn go_on(&mut self, _error: bool) -> bool {
        true
    }
    /// A descriptor that must be writable before more output is read, so that a slow reader slows the command and not the watch.
    fn gate(&self, error: bool) -> Option<BorrowedFd<'_>>;
    /// Whether our standard input is passed on to the command.
    fn forward_input(&self) -> bool;
    /// Whether the command's input stays open for those who attach.
    fn open_input(&self) -> bool {
        false
    }
}
