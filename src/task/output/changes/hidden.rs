//! Files of the base that the sandbox did not show: the changes leave them out.

use super::overlay::Form;
use super::path::TreePath;
use super::record::Changes;
use super::tree;
use crate::files::HiddenMatcher;
use rustix::fs::{AtFlags, FileType, Stat, statat};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenNames<'a> {
    pub(crate) patterns: &'a HiddenMatcher,
    /// The layer with a whiteout for each hidden path, also for further names of hidden files.
    pub(crate) mask: Option<BorrowedFd<'a>>,
}

impl HiddenNames<'_> {
    /// Whether the path is or was hidden on one of its sides.
    pub(super) fn has(&self, path: &TreePath, sides: [Option<&Stat>; 2]) -> bool {
        let is_directory = |status: &Stat| tree::file_type(status) == FileType::Directory;
        let name = tree::name_path(path.as_bytes());
        let mut sides = sides.into_iter().flatten().map(is_directory);
        let whiteout = || self.mask.and_then(|mask| statat(mask, name, AtFlags::SYMLINK_NOFOLLOW).ok());
        sides.any(|is_directory| self.patterns.hides(name, is_directory))
            || whiteout().is_some_and(|status| Form::Trusted.is_whiteout(&status))
    }
}

/// Folders of the base with hidden files. The agent may have deleted them, and they are not empty.
#[derive(Debug, Default)]
pub(super) struct AboveHidden(HashSet<TreePath>);

impl AboveHidden {
    pub(super) fn keep(&mut self, path: &TreePath, base: Option<&Stat>) {
        let mut above = base.and_then(|_| path.parent());
        while let Some(folder) = above {
            above = folder.parent();
            if !self.0.insert(folder) {
                return;
            }
        }
    }

    pub(super) fn leave_out(&self, changes: &mut Changes) {
        changes.entries.retain(|entry| entry.now.is_some() || !self.0.contains(&entry.path));
    }
}
