//! The phase `run`: the sandbox from its start to its teardown.

use super::collect::Collector;
use super::{Attempt, stopped};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{self, Audience, Backend, HostPaths, Options, Outcome, Remains, Report, Site};
use crate::task::definition::WorkspaceSource;
use crate::task::git;
use crate::task::life::Watcher;
use crate::task::life::log::{Log, LogOptions};

impl Attempt<'_> {
    pub(super) fn run_sandbox(&mut self, watcher: &mut dyn Watcher) -> Result<(), Box<Report>> {
        let options = self.sandbox_options();
        if let WorkspaceSource::Directory(folder) = &self.request.definition.workspace {
            self.start = git::head(None, &self.request.pinned.path(folder)).ok();
        }
        let report = self.supervise(&options, watcher).map_err(|error| stopped(Outcome::StartFailed, error))?;
        self.note_commits();
        self.budget.count(&report.usage);
        self.budget.hand_back();
        self.report = Some(report);
        Ok(())
    }

    fn sandbox_options(&mut self) -> Options {
        let mut options = self.request.options.clone();
        options.workspace = self.workspace.clone();
        options.secrets = self.held.files();
        options.broker = self.held.broker();
        options.environment.extend(self.held.variables());
        options
    }

    fn supervise(&mut self, options: &Options, watcher: &mut dyn Watcher) -> Result<Report> {
        let (request, id) = (self.request, self.id());
        let (definition, directory) = (&request.definition, request.store.task(id));
        let mut paths = HostPaths { disk: self.disk()?, ..request.store.host_paths(id) };
        if definition.sandbox.backend == Backend::Local {
            paths.stage.clone_from(&directory); // its workspace is seen there
        }
        let site = Site {
            paths,
            volumes: std::mem::take(&mut self.volumes.files),
            forward_input: watcher.forward_input(),
            open_input: watcher.open_input(),
            progress: self.progress.take(),
        };
        let started = definition.started(); // the sandbox shows the folder itself from here on
        let mut begun = sandbox::begin(options, site)?;
        begun.notes.iter().for_each(|note| watcher.note(note));
        begun.hints.iter().for_each(|hint| watcher.hint(hint));
        self.held.unlock()?;
        begun.wait_for_start();
        self.announce(watcher)?;
        let snapshot = self.snapshot(started);
        let mut collector = Collector::new(request, id, options, self.held, started);
        let job_bytes = options.limits.output_bytes;
        let (stream_json, interactive) = (definition.stream_json, options.terminal);
        let has_health = options.health.command.is_some();
        let is_service = options.holds || has_health || definition.is_service;
        let manner = LogOptions { stream_json, interactive, is_service, has_health, job_bytes };
        let mut log = Log::create(&directory, id, manner, watcher, self.held)?;
        log.snapshot = snapshot;
        let course = &mut self.course;
        let volumes = &mut self.volumes;
        let mut collect = |left: Remains<'_>| {
            let collected = collector.collect(left.scratch, course);
            collected.and(volumes.pack(request.store, left.volumes))
        };
        let audience = Audience { sink: &mut log, control: self.control.get_mut().as_mut(), collect: &mut collect };
        let mut report = begun.watch(audience);
        (self.writer, self.snapshot) = (Some(log.writer), log.snapshot);
        let fault = collector.canary_error(&report).or_else(|| self.result_error(&report.outcome));
        if let Some(error) = fault {
            report.outcome = Outcome::Policy;
            report.error = Some(error);
        }
        Ok(report)
    }

    /// Replaces the volume that the task filled, if its command succeeded.
    pub(super) fn replace_volume(&mut self) -> Result<(), Box<Report>> {
        let (Some(mut report), Some(fill)) = (self.report.take(), self.volumes.fill.take()) else { return Ok(()) };
        if report.outcome == Outcome::Succeeded
            && let Err(error) = fill.publish(self.request.store)
        {
            report.outcome = Outcome::PushFailed;
            report.error.get_or_insert(error);
        }
        self.report = Some(report);
        Ok(())
    }

    /// For a task that succeeded without the demanded result.
    fn result_error(&self, outcome: &Outcome) -> Option<Error> {
        let result = self.course.result.as_ref().filter(|result| !result.valid)?;
        if *outcome != Outcome::Succeeded || self.request.definition.result.schema.is_none() {
            return None;
        }
        let fault = result.faults.first().map_or("", String::as_str);
        Some(
            Error::new(Kind::Policy, format!("the result `{}` is not as it must be: {fault}", result.path))
                .hint("the receipt has every fault, and the document"),
        )
    }
}
