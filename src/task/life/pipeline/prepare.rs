//! The phases before the sandbox: the turn, and the workspace's tree, which is never written.

use super::{Attempt, stopped};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{CHECKPOINTS, DiskFile, Outcome, Report, Signals, Workspace};
use crate::task::definition::{Continued, Keep, WorkspaceSource};
use crate::task::ended::keep;
use crate::task::git::{self, Budget, GitJob, Remote};
use crate::task::life::Watcher;
use crate::task::life::queue::{self, Waited};
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::records::event::Writer;
use crate::task::volumes::{FirstUse, TaskVolumes};
use serde_json::json;
use std::cell::RefCell;

impl Attempt<'_> {
    pub(super) fn wait_for_turn(&mut self) -> Result<(), Box<Report>> {
        let (id, definition) = (self.id(), &self.request.definition);
        let wish = queue::TurnRequest {
            id,
            most: definition.max_parallel.unwrap_or(u32::MAX),
            patience: definition.queue_wait,
            memory: definition.sandbox.limits.memory,
        };
        let waited = Signals::take().and_then(|signals| match self.control.get_mut() {
            Some(control) => queue::wait(self.request.store, &wish, control, &signals),
            None => Err(Error::new(Kind::Internal, "the task waits before its announcement")),
        });
        match waited {
            Ok(Waited::Turn(turn)) => self.turn = Some(turn),
            Ok(Waited::Cancelled) => {
                let error = Error::new(Kind::State, "it was ended while it waited for its turn");
                return Err(stopped(Outcome::Cancelled, error));
            }
            Err(error) => return Err(stopped(Outcome::PrepareFailed, error)),
        }
        // A waiting task has no disk, and its time does not run.
        self.request.begin_disk();
        self.budget = Budget::new(&self.request.definition.sandbox.limits);
        Ok(())
    }

    pub(super) fn release_turn(&mut self) -> Result<()> {
        self.turn = None;
        Ok(())
    }

    pub(super) fn prepare(&mut self, watcher: &mut dyn Watcher) -> Result<(), Box<Report>> {
        match self.prepare_workspace(watcher).and_then(|workspace| Ok((workspace, self.open_volumes()?))) {
            Ok((workspace, volumes)) => (self.workspace, self.volumes) = (workspace, volumes),
            Err(_) if self.budget.is_cancelled() => {
                let error = Error::new(Kind::State, "it was ended while its workspace was prepared");
                return Err(stopped(Outcome::Cancelled, error));
            }
            Err(error) => return Err(stopped(Outcome::PrepareFailed, error)),
        }
        Ok(())
    }

    /// Last: no other task waits for volumes while a repository is fetched.
    fn open_volumes(&self) -> Result<TaskVolumes> {
        let (request, options) = (self.request, &self.request.options);
        let volumes = options.all_volumes();
        if volumes.is_empty() {
            return Ok(TaskVolumes::default());
        }
        let first = FirstUse {
            image: request.image.as_ref(),
            user: options.user(),
            home: options.home.as_deref(),
            id: self.id(),
            is_continued: request.definition.continued.is_some(),
        };
        TaskVolumes::open(request.store, &volumes, &first)
    }

    fn prepare_workspace(&mut self, watcher: &mut dyn Watcher) -> Result<Workspace> {
        let (store, definition) = (self.request.store, &self.request.definition);
        let continued = definition.continued.as_ref();
        let workspace = match continued {
            Some(continued) => self.continue_workspace(continued)?,
            None => self.new_workspace(watcher)?,
        };
        if definition.keep != Keep::No {
            let base = match &workspace {
                Workspace::Directory(path) => Some(path.clone()),
                Workspace::Empty => None,
            };
            let base = (base, self.course.commit_in.clone());
            keep::note(store, self.id(), base, definition, self.request.image.as_ref())?;
        }
        // After the note: a killed supervisor leaves the disk with a task that can be continued.
        if let Some(continued) = continued.filter(|continued| !continued.is_fork) {
            keep::take_over(store, &continued.from, self.id())?;
        }
        Ok(workspace)
    }

    fn continue_workspace(&mut self, continued: &Continued) -> Result<Workspace> {
        let checkpoint = continued.checkpoint.as_deref();
        let (note, _) = keep::origin(self.request.store, &continued.from, checkpoint)?;
        self.course.commit_in = note.commit.clone();
        let source = &self.request.definition.workspace;
        if let (WorkspaceSource::Repository { .. }, Some(path), Some(commit)) = (source, &note.base, &note.commit) {
            let identity = continued.repository.map(FolderIdentity::numbers);
            self.base = Some(git::Base { path: path.clone(), commit: commit.clone(), identity });
        }
        keep::workspace(&note, source)
    }

    fn new_workspace(&mut self, watcher: &mut dyn Watcher) -> Result<Workspace> {
        match &self.request.definition.workspace {
            WorkspaceSource::Empty => Ok(Workspace::Empty),
            WorkspaceSource::Directory(path) => Ok(Workspace::Directory(path.clone())),
            WorkspaceSource::Repository { url, reference } => {
                let base = self.check_out(url, reference.as_deref(), watcher)?;
                self.course.commit_in = Some(base.commit.clone());
                let path = base.path.clone();
                self.base = Some(base);
                Ok(Workspace::Directory(path))
            }
        }
    }

    fn check_out(&self, url: &str, reference: Option<&str>, watcher: &mut dyn Watcher) -> Result<git::Base> {
        let id = self.id();
        let writer = RefCell::new(Writer::create(&self.request.store.task(id), id)?);
        let watcher = RefCell::new(watcher);
        let progress = |text: &str| {
            let text = self.held.redactor().text(text);
            watcher.borrow_mut().progress(&text);
            // An event that cannot be written does not end the work.
            let _ = writer.borrow_mut().bounded("progress", json!({ "git": text }));
        };
        let errand = GitJob { progress: &progress, ..self.errand() };
        let base = git::base(&errand, &Remote::parse(url)?, reference);
        watcher.borrow_mut().progress("");
        base
    }

    pub(super) fn errand(&self) -> GitJob<'_> {
        let request = self.request;
        GitJob {
            store: request.store,
            id: self.id(),
            may_degrade: &request.definition.sandbox.may_degrade,
            pinned: &request.pinned,
            options: &request.git,
            resolver: request.definition.sandbox.network.policy.resolver,
            account: &self.couriers,
            redactor: self.held.redactor(),
            progress: &|_| {},
            budget: &self.budget,
            control: &self.control,
        }
    }

    /// A file with a name if it outlives the supervisor.
    pub(super) fn disk(&self) -> Result<DiskFile> {
        let (store, definition) = (self.request.store, &self.request.definition);
        let own = store.task(self.id()).join(keep::IMAGE);
        Ok(match (&definition.continued, definition.keep) {
            (Some(Continued { from, is_fork: true, checkpoint, .. }), _) => {
                DiskFile::Copy { of: keep::origin(store, from, checkpoint.as_deref())?.1, to: own }
            }
            (Some(_), _) => DiskFile::Kept(own),
            (None, Keep::No) => DiskFile::Unnamed,
            (None, _) => DiskFile::New(own),
        })
    }

    /// Keeps it if the outcome or a checkpoint does.
    pub(super) fn discard_disk(&self, report: &Report) -> Result<()> {
        let keep = self.request.definition.keep;
        let has_checkpoints = || self.request.store.task(self.id()).join(CHECKPOINTS).exists();
        if keep == Keep::No || keep.holds(&report.outcome) || has_checkpoints() {
            return Ok(());
        }
        keep::discard(self.request.store, self.id()).map(|_| ())
    }
}
