//! What the files of a folder were at the start: noted while the command runs, and used for files that the user wrote meanwhile.

use super::Attempt;
use crate::error::{Context, Kind, Result};
use crate::host;
use crate::task::definition::WorkspaceSource;
use crate::task::definition::exposure;
use crate::task::git::{self, Errand, ObjectStore};
use crate::task::output::changes::path::TreePath;
use crate::task::output::changes::{BaseWriter, KnownBase, KnownContent, LARGEST_TEXT};
use crate::task::output::folder_snapshot::SnapshotInSteps;
use crate::task::output::worktree;
use rustix::fs::statfs;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Blobs that are read for one task.
const MOST_BLOBS: usize = 1000;

impl Attempt<'_> {
    /// The snapshot of a folder of the user's. The workspace of another task was made from older bases, and has none.
    pub(super) fn snapshot(&self, started: SystemTime) -> Option<SnapshotInSteps> {
        let WorkspaceSource::Directory(folder) = &self.definition.workspace else { return None };
        if !self.definition.changes || self.definition.continued.is_some() {
            return None;
        }
        let folder = self.pinned.path(folder);
        // The supervisor must not wait for another machine, or for a process that serves files.
        if !statfs(&folder).is_ok_and(|found| host::is_local(found.f_type)) {
            return None;
        }
        Some(SnapshotInSteps::new(folder, self.record.folder, self.store.task(self.id), started))
    }

    /// Writes the bases of files that the user wrote while the command ran. An error leaves them unknown, as `apply` then says.
    pub(super) fn restore_bases(&mut self) {
        if self.snapshot.is_none() || self.course.changes.as_ref().is_none_or(|changes| changes.newer_bases == 0) {
            return;
        }
        let found = self.timed("bases", |attempt| attempt.find_bases());
        if let (Ok(Some(untouched)), Some(changes)) = (found, &mut self.course.changes) {
            let untouched: Vec<_> = untouched.iter().map(|path| self.held.redactor().text(&path.to_string())).collect();
            changes.modified = changes.modified.saturating_sub(untouched.len());
            changes.runnable.retain(|each| !untouched.contains(&each.path));
            changes.secrets.retain(|path| !untouched.contains(path));
        }
    }

    fn find_bases(&self) -> Result<Option<Vec<TreePath>>> {
        let handback = self.course.changes.as_ref();
        let (Some(steps), Some(into)) = (&self.snapshot, handback.and_then(|changes| changes.path.as_deref())) else {
            return Ok(None);
        };
        let Some(snapshot) = steps.noted() else { return Ok(None) };
        let mut writer = BaseWriter::open(into, self.definition.limits.disk_bytes())?;
        let found = snapshot.find(writer.changes());
        let mut blobs = BTreeMap::<_, Vec<_>>::new();
        for known in &found {
            match &known.content {
                KnownContent::Copied(bytes) => writer.put(known, bytes)?,
                KnownContent::Blob(name) => blobs.entry(name.as_str()).or_default().push(known),
            }
        }
        // What was copied is written, whatever becomes of the courier.
        let read = self.read_blobs(&blobs, &mut writer);
        let untouched = writer.finish()?;
        read.map(|()| Some(untouched))
    }

    /// The repository of a worktree.
    fn repository_of(&self, folder: &Path) -> Result<Option<PathBuf>> {
        // In hosted mode no path is opened that was not checked at the start.
        if self.layout.repository.is_some() || self.pinned.has(folder) {
            return Ok(self.layout.repository.clone());
        }
        let real = std::fs::canonicalize(folder).failing(Kind::Workspace, || format!("open `{}`", folder.display()))?;
        let Some((_, repository)) = worktree::repository(&real) else { return Ok(None) };
        exposure::check(&repository, self.store)?;
        Ok(Some(repository))
    }

    fn read_blobs(&self, blobs: &BTreeMap<&str, Vec<&KnownBase>>, writer: &mut BaseWriter<'_>) -> Result<()> {
        let WorkspaceSource::Directory(folder) = &self.definition.workspace else { return Ok(()) };
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
        let errand = Errand { control: &RefCell::default(), ..self.errand() };
        let mut take = |name: &str, bytes: &[u8]| {
            let known = blobs.get(name).into_iter().flatten();
            known.into_iter().try_for_each(|known| writer.put(known, bytes))
        };
        git::read_blobs(&errand, &store, &names, LARGEST_TEXT, &mut take)
    }
}
