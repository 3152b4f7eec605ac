//! Paths that a collection leaves out.

use super::super::path::{Raw, TreePath, written};
use super::super::record::{Reason, Skipped};
use super::{Subdirectory, Walk};
use rustix::io::Errno;

impl Walk<'_> {
    pub(super) fn skip(&mut self, path: Raw, reason: Reason, errno: Option<Errno>) {
        self.skip_because(path, reason, errno.map(|errno| std::io::Error::from(errno).to_string()));
    }

    /// If the record does not take this text of `path`, the rest of the tree is left out.
    pub(super) fn takes(&mut self, path: &TreePath, text: &[u8]) -> bool {
        match self.paths_left.checked_sub(written(text)) {
            Some(left) => self.paths_left = left,
            None => {
                self.is_full = true;
                self.changes.complete = false;
                let above = path.parent().map_or_else(|| b".".to_vec(), |above| above.as_bytes().to_vec());
                self.skip(Raw(above), Reason::TooMany, None);
            }
        }
        !self.is_full
    }

    pub(super) fn skip_because(&mut self, path: Raw, reason: Reason, cause: Option<String>) {
        let bytes = written(&path.0) + cause.as_ref().map_or(0, |cause| written(cause.as_bytes()));
        // The last one may exceed the rest of the budget: names are never cut.
        if self.changes.skipped.len() < self.limits.skipped && self.skipped_left > 0 {
            self.skipped_left = self.skipped_left.saturating_sub(bytes);
            self.changes.skipped.push(Skipped { path, reason, cause });
        } else {
            self.changes.skipped_more += 1;
        }
    }

    pub(super) fn leave_out(&mut self, path: &TreePath, reason: Reason, errno: Option<Errno>) -> Option<Subdirectory> {
        self.skip(Raw(path.as_bytes().to_vec()), reason, errno);
        None
    }

    pub(super) fn too_deep(&mut self, path: &TreePath) -> Option<Subdirectory> {
        self.changes.complete = false;
        self.leave_out(path, Reason::TooDeep, None)
    }
}
