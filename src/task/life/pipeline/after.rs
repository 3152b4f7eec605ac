//! The phases after the sandbox: bases of files that the user edited meanwhile, and the agent's commits.

use super::Attempt;
use crate::error::{Context, Error, Kind, Result};
use crate::host;
use crate::sandbox::{Outcome, Report};
use crate::task::definition::{WorkspaceSource, exposure, plan};
use crate::task::ended::export;
use crate::task::git::{self, GitJob, ObjectStore, Push, PushState};
use crate::task::output::changes::path::TreePath;
use crate::task::output::changes::{BaseWriter, Change, Changes, KnownBase, KnownContent, LARGEST_TEXT};
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::output::folder_snapshot::SnapshotInSteps;
use crate::task::output::handback;
use crate::task::output::worktree;
use crate::task::records::receipt::AttemptRecord;
use rustix::fs::statfs;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MOST_BLOBS: usize = 1000;

impl Attempt<'_> {
    /// Another task's workspace was made from older bases, and has no snapshot.
    pub(super) fn snapshot(&self, started: SystemTime) -> Option<SnapshotInSteps> {
        let request = self.request;
        let WorkspaceSource::Directory(folder) = &request.definition.workspace else { return None };
        if !request.definition.changes || request.definition.continued.is_some() {
            return None;
        }
        let folder = request.pinned.path(folder);
        // The supervisor must not wait for another machine, or for a process that serves files.
        if !statfs(&folder).is_ok_and(|found| host::is_local(found.f_type)) {
            return None;
        }
        Some(SnapshotInSteps::new(folder, self.record.folder, request.store.task(self.id()), started))
    }

    pub(super) fn lacks_bases(&self) -> bool {
        self.snapshot.is_some() && self.course.changes.as_ref().is_some_and(|changes| changes.lacks_bases)
    }

    /// Writes bases of files that the user wrote or removed while the command ran. After an error `apply` reports them
    /// as unknown.
    pub(super) fn restore_bases(&mut self) -> Result<(), Box<Report>> {
        let found = self.find_bases();
        if let (Ok(Some((record, untouched))), Some(changes)) = (found, &mut self.course.changes) {
            let untouched: Vec<_> = untouched.iter().map(|path| self.held.redactor().text(&path.to_string())).collect();
            changes.added = handback::count(&record, Change::Added);
            changes.modified = handback::count(&record, Change::Modified);
            changes.runnable.retain(|each| !untouched.contains(&each.path));
            changes.secrets.retain(|path| !untouched.contains(path));
            changes.unsearched.retain(|path| !untouched.contains(path));
        }
        Ok(())
    }

    fn find_bases(&self) -> Result<Option<(Changes, Vec<TreePath>)>> {
        let changes = self.course.changes.as_ref();
        let (Some(steps), Some(into)) = (&self.snapshot, changes.and_then(|changes| changes.path.as_deref())) else {
            return Ok(None);
        };
        let Some(snapshot) = steps.noted() else { return Ok(None) };
        let mut writer = BaseWriter::open(into, self.request.definition.sandbox.limits.disk_bytes())?;
        let found = snapshot.find(writer.changes());
        let mut blobs = BTreeMap::<_, Vec<_>>::new();
        for known in &found {
            match &known.content {
                KnownContent::Copied(bytes) => writer.put(known, bytes)?,
                KnownContent::Blob(name) => blobs.entry(name.as_str()).or_default().push(known),
            }
        }
        // Copied bases are written even if the courier fails.
        let read = self.read_blobs(&blobs, &mut writer);
        let finished = writer.finish()?;
        read.map(|()| Some(finished))
    }

    fn repository_of(&self, folder: &Path) -> Result<Option<PathBuf>> {
        let request = self.request;
        // In hosted mode no path is opened that was not checked at the start.
        if request.layout.repository.is_some() || request.is_hosted {
            return Ok(request.layout.repository.clone());
        }
        let real = std::fs::canonicalize(folder).failing(Kind::Workspace, || format!("open `{}`", folder.display()))?;
        let Some((_, repository)) = worktree::repository(&real) else { return Ok(None) };
        exposure::check(&repository, &repository, request.store)?;
        Ok(Some(repository))
    }

    fn read_blobs(&self, blobs: &BTreeMap<&str, Vec<&KnownBase>>, writer: &mut BaseWriter<'_>) -> Result<()> {
        let WorkspaceSource::Directory(folder) = &self.request.definition.workspace else { return Ok(()) };
        let names: Vec<_> = blobs.keys().copied().take(MOST_BLOBS).collect();
        if names.is_empty() {
            return Ok(());
        }
        let repository = self.repository_of(folder)?;
        let store = match &repository {
            Some(folder) => ObjectStore { folder, objects: "objects" },
            None => ObjectStore { folder, objects: ".git/objects" },
        };
        // The request to end was for the command.
        let errand = GitJob { control: &RefCell::default(), ..self.errand() };
        let mut take = |name: &str, bytes: &[u8]| {
            let known = blobs.get(name).into_iter().flatten();
            known.into_iter().try_for_each(|known| writer.put(known, bytes))
        };
        git::read_blobs(&errand, &store, &names, LARGEST_TEXT, &mut take)
    }

    /// A folder's commits are exported like a clone's. Without a repository, or with a broken one, it has none.
    pub(super) fn note_commits(&mut self) {
        let workspace = &self.request.definition.workspace;
        let (WorkspaceSource::Directory(folder), Some(changes)) = (workspace, &self.course.changes) else { return };
        let held = self.request.pinned.path(folder);
        let is_same = self.record.folder.is_none_or(|was| FolderIdentity::of(&held) == Some(was));
        if !is_same && !self.request.is_hosted {
            return; // another folder has its name now
        }
        let Some(start) = self.start.take() else { return };
        if let Some((before, after)) = export::commits_of(changes, &held, start) {
            (self.course.commit_in, self.course.commit_out) = (Some(before), Some(after));
            self.save_course();
        }
    }

    fn save_course(&self) {
        // Without it only the receipt of a supervisor that dies lacks the latest facts.
        let _ = self.course.save(&self.request.store.task(self.id()));
    }

    pub(super) fn has_commits(&self) -> bool {
        self.base.is_some() && self.course.changes.is_some()
    }

    /// Finds the last commit of the workspace, and pushes it if requested.
    pub(super) fn hand_back(&mut self) -> Result<(), Box<Report>> {
        let Some(mut report) = self.report.take() else { return Ok(()) };
        if let Err(error) = self.push_commits(&report.outcome) {
            // The repository is the agent's: a broken one must not replace the outcome of an attempt that failed
            // before.
            if report.outcome == Outcome::Succeeded {
                report.outcome = Outcome::PushFailed;
            }
            report.error.get_or_insert(error);
        }
        self.report = Some(report);
        Ok(())
    }

    /// The commits are in a bundle before anything is pushed.
    fn push_commits(&mut self, outcome: &Outcome) -> Result<()> {
        let (Some(base), Some(changes)) = (&self.base, &self.course.changes) else { return Ok(()) };
        let definition = &self.request.definition;
        let found = export::head_of(changes, &base.path);
        self.course.commit_out = found.as_ref().ok().map(|head| head.commit.clone());
        let Some(wanted) = &definition.git.push else { return Ok(()) };
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
            let course = AttemptRecord { push: Some(push.clone()), ..self.course.clone() };
            course.save(&self.request.store.task(self.id()))?;
            if *outcome != Outcome::Succeeded {
                return Ok(PushState::NotTried);
            }
            let remote = plan::remote(definition)?.ok_or_else(|| Error::new(Kind::Internal, "no remote"))?;
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
