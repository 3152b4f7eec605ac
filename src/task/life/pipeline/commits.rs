//! The commits of an attempt that has ended: noted for the receipt, put into a file, pushed where that was asked for.

use super::Attempt;
use crate::error::{Error, Kind, Result};
use crate::sandbox::Outcome;
use crate::task::definition::WorkspaceSource;
use crate::task::definition::plan;
use crate::task::ended::export;
use crate::task::git::{self, Push, PushState};
use crate::task::output::folder_snapshot::FolderIdentity;

impl Attempt<'_> {
    /// Notes the commits that were made in a folder which is a repository: they are exported as those of a clone are. A folder that is none, or a broken
    /// repository, has no commits.
    pub(super) fn note_commits(&mut self) {
        let (WorkspaceSource::Directory(folder), Some(changes)) = (&self.definition.workspace, &self.course.changes)
        else {
            return;
        };
        let held = self.pinned.path(folder);
        let is_same = self.record.folder.is_none_or(|was| FolderIdentity::of(&held) == Some(was));
        if !is_same && !self.pinned.has(folder) {
            return; // another folder has its name now
        }
        if let Some((before, after)) = export::commits_of(changes, &held) {
            (self.course.commit_in, self.course.commit_out) = (Some(before), Some(after));
        }
    }

    /// Finds the commit at which the workspace ended, and pushes it where that was asked for. The commits are in a file before anything is pushed.
    pub(super) fn hand_back(&mut self, outcome: &Outcome) -> Result<()> {
        let (Some(base), Some(changes)) = (&self.base, &self.course.changes) else { return Ok(()) };
        let found = export::head_of(changes, &base.path);
        self.course.commit_out = found.as_ref().ok().map(|head| head.commit.clone());
        let Some(wanted) = &self.definition.git.push else { return Ok(()) };
        let mut push = Push::failed(&wanted.branch);
        let errand = self.errand();
        let pushed = (|| {
            let head = found?;
            if head.commit == base.commit {
                return Ok(PushState::NothingNew);
            }
            push.bundle =
                export::bundle_of(&errand, changes, (&base.path, &base.commit), &head.commit, &wanted.branch)?;
            if push.bundle.is_none() {
                return Ok(PushState::NothingNew);
            }
            if *outcome != Outcome::Succeeded {
                return Ok(PushState::NotTried);
            }
            let remote = plan::remote(self.definition)?.ok_or_else(|| Error::new(Kind::Internal, "no remote"))?;
            git::push(&errand, &remote, wanted, base, &head.commit, &mut push.left_behind)
        })();
        match &pushed {
            Ok(state) => push.state = *state,
            Err(error) => push.error = Some(self.held.redactor().text(&error.to_string())),
        }
        self.course.push = Some(push);
        pushed.map(|_| ())
    }
}
