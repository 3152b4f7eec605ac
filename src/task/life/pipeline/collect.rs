//! What comes out of a sandbox without processes, whose disk is still mounted: changes, the result, artifacts. Each
//! passes the redactor. Then the canary is looked for.

use super::request::Request;
use crate::error::{Error, Result};
use crate::files::HiddenMatcher;
use crate::sandbox::{self, Options, Report, Workspace};
use crate::task::definition::{Keep, WorkspaceSource};
use crate::task::ended::keep;
use crate::task::life::canary;
use crate::task::output::artifact::{self, Source};
use crate::task::output::changes::{self, Changes, Form, HiddenNames, Limits};
use crate::task::output::handback::{self, ChangeSet};
use crate::task::records::receipt::{AttemptRecord, Timing};
use crate::task::redact::Redactor;
use crate::task::secrets::TaskSecrets;
use std::iter::successors;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

pub(super) struct Collector<'run> {
    request: &'run Request<'run>,
    directory: PathBuf,
    /// The tree under the workspace.
    base: Option<PathBuf>,
    /// When the sandbox began to show the folder.
    started: SystemTime,
    limits: Limits,
    redactor: Redactor,
    has_secrets: bool,
    canary: Option<canary::Watch>,
}

impl<'run> Collector<'run> {
    pub(super) fn new(
        request: &'run Request<'run>,
        id: &str,
        options: &Options,
        held: &TaskSecrets,
        started: SystemTime,
    ) -> Collector<'run> {
        let (definition, redactor) = (&request.definition, held.redactor().clone());
        let disk_bytes = options.limits.disk_bytes();
        let mut limits = Limits { disk_bytes, ignored: definition.ignored, ..Limits::default() };
        if !matches!(definition.workspace, WorkspaceSource::Directory(_)) {
            limits.base_bytes = 0; // a checkout of the store, which nothing changes
        }
        let base = match &options.workspace {
            Workspace::Directory(path) => Some(path.clone()),
            Workspace::Empty => None,
        };
        Collector {
            request,
            directory: request.store.task(id),
            base,
            started,
            limits,
            has_secrets: !held.is_empty(),
            canary: definition.canary.then(|| canary::Watch::new(redactor.clone())),
            redactor,
        }
    }

    pub(super) fn collect(&mut self, scratch: BorrowedFd<'_>, course: &mut AttemptRecord) -> Result<()> {
        let collected = self.collect_work(scratch, course).and_then(|()| {
            course.redact(&self.redactor);
            course.save(&self.directory)
        });
        // Last: it makes files readable that the agent closed, and an earlier error is about the work alone.
        let is_in_memory = self.request.definition.keep != Keep::No && !sandbox::on_disk();
        let kept = if is_in_memory { keep::save(scratch, &self.directory) } else { Ok(()) };
        collected.and(kept)
    }

    fn collect_work(&mut self, scratch: BorrowedFd<'_>, course: &mut AttemptRecord) -> Result<()> {
        let began = Instant::now();
        let upper = handback::upper(scratch, self.base.as_deref())?;
        self.look_for_canary("its output or its events");
        self.collect_changes(scratch, upper.as_ref(), course)?;
        let is_untouched = course.changes.as_ref().is_some_and(ChangeSet::is_nothing);
        let source = upper.as_ref().filter(|_| !is_untouched);
        let source = source.map(|(upper, form)| Source { upper: upper.as_fd(), form: *form });
        let expected = &self.request.expected;
        course.result = match source {
            Some(source) => expected.take(source, &self.redactor),
            None => expected.missing(),
        };
        self.look_for_canary("the result");
        let wanted = &self.request.definition.artifacts;
        if !wanted.patterns.is_empty() {
            let into = (wanted, &self.request.pinned);
            let most = self.limits.disk_bytes;
            course.artifacts = Some(artifact::collect(source, into, &self.directory, most, &self.redactor)?);
        }
        self.look_for_canary("an artifact");
        course.steps.push(Timing { step: "collect".to_owned(), seconds: began.elapsed().as_secs_f64() });
        Ok(())
    }

    fn collect_changes(
        &mut self,
        scratch: BorrowedFd<'_>,
        upper: Option<&(OwnedFd, Form)>,
        course: &mut AttemptRecord,
    ) -> Result<()> {
        let definition = &self.request.definition;
        if !definition.changes && self.canary.is_none() {
            return Ok(());
        }
        let into = self.directory.join("changes");
        let tree = self.base.as_ref().map(|base| self.request.pinned.path(base));
        let result = definition.result.path.as_str();
        let hidden = &self.request.options.hidden;
        let patterns = (!hidden.is_empty()).then(|| HiddenMatcher::new(&hidden.flags, &hidden.lines)).transpose()?;
        let mask = handback::mask(scratch);
        let hidden = patterns.as_ref().map(|patterns| HiddenNames { patterns, mask: mask.as_ref().map(AsFd::as_fd) });
        let names = (into.as_path(), result, hidden);
        let end = Instant::now() + self.limits.time;
        let mut changes = handback::collect(upper, tree.as_deref(), names, self.started, &self.limits)?;
        changes.base = changes.base.and(self.base.clone());
        let path = changes.path.clone();
        if let (Some(path), Some(continued)) = (&path, &definition.continued) {
            let store = self.request.store;
            let next = |id: &String| store.record(id).ok()?.continued_from;
            let earlier = successors(Some(continued.from.clone()), next).take_while(|_| Instant::now() < end);
            changes::unmark_known(path, earlier.map(|id| store.task(&id).join("changes")))?;
        }
        changes.not_taken.iter_mut().for_each(|each| each.path = self.redactor.text(&each.path));
        changes.first_ignored.iter_mut().for_each(|path| *path = self.redactor.text(path));
        course.changes = definition.changes.then_some(changes);
        if let Some(path) = path.filter(|_| self.has_secrets || self.canary.is_some()) {
            self.search(&path, end, course)?;
        }
        if definition.changes { Ok(()) } else { handback::forget(&into) }
    }

    fn search(&mut self, path: &Path, end: Instant, course: &mut AttemptRecord) -> Result<()> {
        let record = Changes::load(&path.join("changes.json"))?;
        let with_secrets = |course: &mut AttemptRecord, end| match &mut course.changes {
            Some(changes) if self.has_secrets => {
                [changes.secrets, changes.unsearched] = handback::with_secrets(&record, path, &self.redactor, end)?;
                Ok(())
            }
            _ => Ok(()),
        };
        // If the supervisor is killed in a search, all is collected and nothing was searched.
        with_secrets(course, Instant::now())?;
        course.redact(&self.redactor);
        course.save(&self.directory)?;
        if let Some(canary) = &mut self.canary {
            canary.changes(&record, path, end)?;
        }
        with_secrets(course, end)
    }

    fn look_for_canary(&mut self, place: &str) {
        if let Some(canary) = &mut self.canary {
            canary.note_place(place);
        }
    }

    pub(super) fn canary_error(&mut self, report: &Report) -> Option<Error> {
        let mut canary = self.canary.take()?;
        canary.egress(report.egress.as_ref());
        canary.verdict()
    }
}
