//! Removes old tasks by age, number and size. A store without room refuses new tasks.

use super::export::EXPORT_LOCK;
use super::filter::Filter;
use super::keep::{IMAGE, needed_base};
use super::reconcile::{has_work, reap_one};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Lock};
use crate::sandbox::{CHECKPOINTS, parse_size, size};
use crate::task::git::remove_unused;
use crate::task::output::artifact;
use crate::task::store::{Status, Store};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The tasks to remove. Empty options remove nothing.
#[derive(Clone, Debug, Default)]
pub struct PruneOptions {
    /// Tasks that began longer ago.
    pub older_than: Option<Duration>,
    /// All but this many newest tasks.
    pub keep: Option<usize>,
    /// The oldest tasks, until the rest takes at most this many bytes.
    pub max_size: Option<u64>,
    /// Only tasks that fulfil all filters, and without other options all of those.
    pub filters: Vec<Filter>,
    /// Only kept workspaces, not the records.
    pub workspaces_only: bool,
    /// Only report.
    pub dry_run: bool,
}

/// A removed object, or with `dry_run` a candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Pruned {
    /// `task`, or `repository` for a checkout or mirror.
    pub kind: &'static str,
    /// The task's id, or the path.
    pub id: String,
    /// Bytes on the disk.
    pub bytes: u64,
}

impl Store {
    /// Removes ended tasks, oldest first; never a running one.
    pub fn prune(&self, options: &PruneOptions) -> Result<Vec<Pruned>> {
        let (mut rows, _) = self.list()?;
        rows.sort_by(|one, other| one.created.cmp(&other.created)); // ids of one second are not ordered
        let now = SystemTime::now();
        let mut ended: Vec<_> = rows
            .into_iter()
            .filter(|row| row.status != Status::Running && options.filters.iter().all(|each| each.matches(row)))
            .map(|row| {
                let began = humantime::parse_rfc3339(&row.created).ok();
                // A clock that was set back makes nothing old.
                let age = began.and_then(|began| now.duration_since(began).ok()).unwrap_or_default();
                let task = self.task(&row.id);
                let bytes = match options.workspaces_only {
                    true => [IMAGE, CHECKPOINTS].iter().map(|name| files::bytes_on_disk(&task.join(name))).sum(),
                    false => files::bytes_on_disk(&task),
                };
                (row.id, age, bytes)
            })
            .filter(|(.., bytes)| !options.workspaces_only || *bytes > 0)
            .collect();
        ended.reverse(); // newest first
        let (mut kept_bytes, mut is_too_much) = (0, false);
        let takes_all = (options.older_than, options.keep, options.max_size) == (None, None, None);
        let takes_all = takes_all && !options.filters.is_empty();
        let mut gone = Vec::new();
        for (index, (id, age, bytes)) in ended.into_iter().enumerate() {
            let is_old = options.older_than.is_some_and(|limit| age > limit);
            let is_beyond = options.keep.is_some_and(|keep| index >= keep);
            // Tasks older than one that does not fit go too, however small.
            is_too_much |= options.max_size.is_some_and(|most| kept_bytes + bytes > most);
            if is_old || is_beyond || is_too_much || takes_all {
                gone.push(Pruned { kind: "task", id, bytes });
            } else {
                kept_bytes += bytes;
            }
        }
        gone.reverse();
        let mut failed: Vec<Error> = Vec::new();
        if !options.dry_run {
            gone.retain(|task| {
                let done = match options.workspaces_only {
                    true => self.discard(&task.id).map(|_| ()),
                    false => self.remove(&task.id),
                };
                done.map_err(|error| failed.push(error)).is_ok()
            });
        }
        let has_repositories = self.bases().exists() || self.mirrors().exists();
        let tasks_only = options.workspaces_only || !options.filters.is_empty();
        if let (Some(older_than), false, true) = (options.older_than, tasks_only, has_repositories) {
            let leaving: BTreeSet<_> = gone.iter().map(|task| task.id.clone()).collect();
            let needed = self.bases_of_tasks(&leaving, &mut failed)?;
            let unused = remove_unused(self, needed.as_ref(), older_than, options.dry_run, &mut failed)?;
            gone.extend(unused.into_iter().map(|(path, bytes)| Pruned {
                kind: "repository",
                id: path.display().to_string(),
                bytes,
            }));
        }
        let count = failed.len();
        match failed.into_iter().next() {
            None => Ok(gone),
            Some(first) => Err(first.doing(format!("prune: {} removed, {count} not; the first", gone.len()))),
        }
    }

    /// Removes an ended task with all its data, even with unreadable records.
    pub fn remove(&self, id: &str) -> Result<()> {
        if self.status(id)? == Status::Running {
            return Err(Error::new(Kind::State, format!("the task `{id}` is running"))
                .hint(format!("end it first: brig task stop {id}")));
        }
        // Its push or its export reads the task's files, and must not begin now.
        let lock = Lock::wait_while(&self.task(id).join(EXPORT_LOCK), || {
            Err(Error::new(Kind::State, format!("commits of the task `{id}` are being pushed or exported"))
                .hint("wait until that has ended"))
        });
        let _lock = match lock {
            Err(error) if error.kind() == Kind::State => return Err(error),
            other => other.ok(), // what cannot be locked can be removed
        };
        let name = self.record(id).ok().and_then(|record| record.name);
        // A crash leaves no visible half of a task.
        let hidden = self.hidden(id);
        // A list of tasks finishes killed removals, perhaps this one.
        std::fs::rename(self.task(id), &hidden)
            .and_then(|()| files::remove_directory(&hidden))
            .map_err(|cause| files::failed(cause, format!("remove the task `{id}`")))?;
        name.map_or(Ok(()), |name| self.release_name(&name, id))?;
        // With its record its remains could not be reaped.
        reap_one(self, id).map(|_| ())
    }

    /// Whether a task has more than its changes: artifacts, commits, checkpoints or a kept workspace.
    pub fn has_more_than_changes(&self, id: &str) -> bool {
        let directory = self.task(id);
        has_work(&directory) || directory.join(artifact::DIRECTORY).exists()
    }

    /// The checkouts that tasks except `leaving` need. `None` if a receipt is unreadable: its task may need any.
    fn bases_of_tasks(
        &self,
        leaving: &BTreeSet<String>,
        errors: &mut Vec<Error>,
    ) -> Result<Option<BTreeSet<OsString>>> {
        let (mut needed, known) = (BTreeSet::new(), errors.len());
        for id in self.ids()?.into_iter().filter(|id| !leaving.contains(id)) {
            let receipt = self.receipt(&id).unwrap_or_else(|error| {
                errors.push(error.hint(format!("checkouts stay until the task is removed: brig task rm {id}")));
                None
            });
            let compared = receipt.and_then(|receipt| receipt.changes).and_then(|changes| changes.base);
            let kept = needed_base(self, &id);
            needed.extend([compared, kept].into_iter().flatten().filter_map(|path| Some(path.file_name()?.to_owned())));
        }
        Ok((errors.len() == known).then_some(needed))
    }

    /// Refuses a disk with less than `least` bytes or few inodes free.
    pub(crate) fn has_room(&self, least: u64) -> Result<()> {
        const FILES: u64 = 1000;
        let there = self.root().ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let step = || format!("look for room in the store `{}`", self.root().display());
        let room = rustix::fs::statvfs(there).failing(Kind::Store, step)?;
        let free = room.f_bavail * room.f_frsize;
        let hint = "remove old tasks: brig task prune --older-than 7d";
        if free < least {
            let words = format!("its disk has {} MiB free, and {} are kept free", free >> 20, size(least));
            return Err(Error::new(Kind::Disk, words).doing(step()).hint(hint));
        }
        // Some file systems make inodes on demand, and report 0.
        if room.f_files > 0 && room.f_favail < FILES {
            return Err(Error::new(Kind::Disk, format!("its disk has {} inodes free", room.f_favail))
                .doing(step())
                .hint(hint));
        }
        Ok(())
    }
}

const LEAST: u64 = 256 << 20;

/// Bytes kept free on the store's disk: `BRIG_MIN_FREE`, or 256 MiB. Hosted mode ignores the caller's variable.
pub(crate) fn least_free(is_hosted: bool) -> Result<u64> {
    if is_hosted {
        return Ok(LEAST);
    }
    match std::env::var("BRIG_MIN_FREE") {
        Err(_) => Ok(LEAST),
        Ok(text) => parse_size(&text).map_err(|cause| {
            Error::new(Kind::Usage, cause.to_string())
                .doing(format!("read `BRIG_MIN_FREE={text}`"))
                .hint("give it like 1G")
        }),
    }
}
