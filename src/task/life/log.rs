//! The sink of a sandbox's output: through the redactor to the log, the events and the watcher.

use super::Watcher;
use super::jobs::JobLogs;
use super::notify::ServiceManager;
use crate::error::{Kind, Result};
use crate::sandbox::{Health, HealthState, JobEvent, Notice, Renewal, Sink, Stream};
use crate::task::output::folder_snapshot::SnapshotInSteps;
use crate::task::records::event::{Lines, Writer};
use crate::task::records::receipt::Receipt;
use crate::task::redact::{Redactor, Stream as Redacted};
use crate::task::secrets::TaskSecrets;
use crate::task::store::{HEALTH, Status, Store, json};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The last bytes wait so long for a slow watcher.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct Log<'run> {
    pub(crate) writer: Writer,
    watcher: &'run mut dyn Watcher,
    progress: Lines,
    /// For a command with stream-json.
    output: Option<Lines>,
    redactor: Redactor,
    streams: [Redacted; 2],
    /// Kept for the next call.
    passed: Vec<u8>,
    held: &'run mut TaskSecrets,
    /// Snapshot of the workspace at the start. Its steps begin when the command runs.
    pub(crate) snapshot: Option<SnapshotInSteps>,
    is_running: bool,
    jobs: JobLogs,
    manager: Option<ServiceManager>,
    /// The file, if there is a health check.
    health: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogOptions {
    pub stream_json: bool,
    pub interactive: bool,
    /// Counts in the foreground.
    pub is_service: bool,
    pub has_health: bool,
    /// Bytes of all job logs together.
    pub job_bytes: u64,
}

impl<'run> Log<'run> {
    pub(crate) fn create(
        directory: &Path,
        id: &str,
        manner: LogOptions,
        watcher: &'run mut dyn Watcher,
        held: &'run mut TaskSecrets,
    ) -> Result<Log<'run>> {
        let writer = Writer::create(directory, id)?;
        let is_service = manner.is_service && watcher.is_foreground();
        let manager = if is_service { ServiceManager::of_environment() } else { None };
        Ok(Log {
            writer,
            watcher,
            progress: Lines::default(),
            output: manner.stream_json.then(Lines::default),
            redactor: held.redactor().clone(),
            streams: [Redacted::new(manner.interactive), Redacted::new(manner.interactive)],
            passed: Vec::new(),
            held,
            snapshot: None,
            is_running: false,
            jobs: JobLogs::new(directory, manner.job_bytes),
            manager,
            health: manner.has_health.then(|| directory.join(HEALTH)),
        })
    }

    fn note(&mut self, notice: Notice) -> Result<()> {
        if let Some(manager) = &mut self.manager {
            match &notice {
                Notice::State("running") if self.health.is_none() => manager.set_passing(true),
                Notice::Health(health) => manager.set_passing(health.state == HealthState::Healthy),
                Notice::Stopping(_) => manager.stopping(),
                Notice::Tick => manager.tick(),
                _ => {}
            }
        }
        match notice {
            Notice::Tick => self.writer.tick(),
            Notice::State(state) => {
                self.is_running = state == "running";
                self.writer.put("state", json!({ "state": state }))
            }
            Notice::Stopping(why) => self.writer.put("state", json!({ "state": "stopping", "because": why })),
            Notice::Limit(hit) => self.writer.put("limit", json!(hit)),
            Notice::Usage(sample) => self.writer.bounded("usage", json!(sample)),
            Notice::Egress(row) => {
                let data = self.redactor.value(json!(row)); // the command chose the names
                if !row.allowed
                    && let Ok(row) = serde_json::from_value(data.clone())
                {
                    self.watcher.refused(&row);
                }
                self.writer.bounded("egress", data)
            }
            Notice::Health(health) => {
                let text = |text: &str| self.redactor.text(text);
                let health =
                    Health { reason: health.reason.as_deref().map(text), output: text(&health.output), ..health };
                if let Some(path) = &self.health {
                    // The next check writes it again. The task goes on while the store's disk is full.
                    let _ = json::write(path, &health);
                }
                self.writer.bounded("health", json!(health))
            }
            Notice::Exec(command) => {
                let data = self.redactor.value(json!({ "command": command }));
                self.writer.bounded("exec", data)
            }
            Notice::Progress(bytes) => {
                let objects = self.progress.objects(&bytes);
                objects.into_iter().try_for_each(|data| {
                    let data = self.redactor.value(data);
                    self.writer.bounded("progress", json!({ "data": data }))
                })
            }
        }
    }

    /// Waits briefly for a watcher that is behind. The log has it all.
    fn pass_rest(&mut self, stream: Stream) {
        let error = stream == Stream::Error;
        let until = Instant::now() + PATIENCE;
        while !self.watcher.go_on(error) {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
            let Some(gate) = self.watcher.gate(error) else { return };
            if !matches!(poll(&mut [PollFd::from_borrowed_fd(gate, PollFlags::OUT)], Some(&left)), Ok(1..)) {
                return;
            }
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.writer.output(stream, bytes)?;
        self.watcher.output(stream == Stream::Error, bytes);
        let found = match (&mut self.output, stream) {
            (Some(lines), Stream::Output) => lines.objects(bytes),
            _ => return Ok(()),
        };
        found.into_iter().try_for_each(|data| {
            let data = self.redactor.value(data);
            self.writer.bounded("progress", json!({ "data": data }))
        })
    }
}

impl Sink for Log<'_> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        let mut passed = std::mem::take(&mut self.passed);
        passed.clear();
        self.redactor.push(&mut self.streams[stream as usize], bytes, &mut passed);
        let written = self.write(stream, &passed);
        self.passed = passed;
        written
    }

    fn tick(&mut self, secrets: Option<BorrowedFd<'_>>) -> Result<Vec<Renewal>> {
        if let Some(snapshot) = self.snapshot.as_mut().filter(|_| self.is_running) {
            snapshot.advance();
        }
        self.held.tick(secrets)
    }

    fn values(&self) -> Vec<(String, Vec<u8>)> {
        self.held.values()
    }

    fn end(&mut self) -> Result<()> {
        for stream in [Stream::Output, Stream::Error] {
            let mut passed = Vec::new();
            self.redactor.finish(&mut self.streams[stream as usize], &mut passed);
            self.write(stream, &passed)?;
            self.pass_rest(stream);
        }
        Ok(())
    }

    fn pass_kept_output(&mut self, stream: Stream) -> bool {
        self.watcher.go_on(stream == Stream::Error)
    }

    fn gate(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.watcher.gate(stream == Stream::Error)
    }

    fn notice(&mut self, notice: Notice) -> Result<()> {
        self.note(notice)
    }

    fn job(&mut self, job: u32, event: JobEvent<'_>) {
        // A job without a record is unknown to the user's commands, and ends with the task.
        let Ok(Some(record)) = self.jobs.take(job, event, &self.redactor) else { return };
        let data = json!({ "job": record.id, "state": record.state, "exit_status": record.exit_status });
        let _ = self.writer.bounded("job", data);
    }
}

impl Store {
    /// `None` unless the task runs and has a health check.
    pub fn health(&self, id: &str) -> Result<Option<Health>> {
        if self.status(id)? != Status::Running {
            return Ok(None);
        }
        match json::read(&self.task(id).join(HEALTH)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

/// The only event of a task that never had a sandbox.
pub(crate) fn write_end(writer: Option<Writer>, directory: &Path, receipt: &Receipt) -> Result<()> {
    let mut writer = writer.map_or_else(|| Writer::create(directory, &receipt.id), Ok)?;
    writer.finish()?;
    writer.put(
        "ended",
        json!({
            "outcome": receipt.outcome.word(),
            "exit_status": receipt.exit_status,
            "retryable": receipt.retryable,
            "limits_hit": receipt.limits_hit,
            "refused_namespaces": receipt.refused_namespaces,
            "usage": receipt.usage,
            "error": receipt.error.as_ref().map(|error| &error.message),
        }),
    )?;
    writer.write_kept()
}
