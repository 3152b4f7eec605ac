//! The logs and records of a task's jobs, as the supervisor writes them.

use crate::error::Result;
use crate::sandbox::{JobEnd, JobEvent, JobLimits, Stream};
use crate::task::records::job::{JOBS, JobRecord, JobState, job_id};
use crate::task::records::log_streams::Index;
use crate::task::redact::{Redactor, Stream as Redacted};
use crate::task::store::LOG;
use crate::task::store::json::now;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) struct JobLogs {
    directory: PathBuf,
    /// Bytes that all logs together may still take.
    budget: u64,
    running: BTreeMap<u32, JobLog>,
}

struct JobLog {
    folder: PathBuf,
    record: JobRecord,
    log: File,
    index: Index,
    streams: [Redacted; 2],
}

impl JobLogs {
    pub(super) fn new(directory: &Path, budget: u64) -> JobLogs {
        JobLogs { directory: directory.join(JOBS), budget, running: BTreeMap::new() }
    }

    /// Returns the record of a job that has begun or ended.
    pub(super) fn take(&mut self, number: u32, event: JobEvent<'_>, redactor: &Redactor) -> Result<Option<JobRecord>> {
        match event {
            JobEvent::Started { command, timeout, limits } => {
                let command = command.iter().map(|word| redactor.text(word)).collect();
                let job = JobLog::create(&self.directory.join(job_id(number)), number, command, timeout, limits)?;
                let record = job.record.clone();
                self.running.insert(number, job);
                Ok(Some(record))
            }
            JobEvent::Output(stream, bytes) => {
                let Some(job) = self.running.get_mut(&number) else { return Ok(None) };
                let mut passed = Vec::with_capacity(bytes.len());
                redactor.push(&mut job.streams[stream as usize], bytes, &mut passed);
                job.write(stream, &passed, &mut self.budget);
                Ok(None)
            }
            JobEvent::Ended(status, why) => {
                let Some(mut job) = self.running.remove(&number) else { return Ok(None) };
                for stream in [Stream::Output, Stream::Error] {
                    let mut passed = Vec::new();
                    redactor.finish(&mut job.streams[stream as usize], &mut passed);
                    job.write(stream, &passed, &mut self.budget);
                }
                let (state, status) = match why {
                    JobEnd::Exited => (JobState::Exited, status),
                    JobEnd::TimedOut => (JobState::TimedOut, 124),
                    JobEnd::Memory => (JobState::Memory, 137),
                    JobEnd::CpuTime => (JobState::CpuTime, 152),
                    JobEnd::Stopped => (JobState::Stopped, status),
                    JobEnd::WithTask => (JobState::EndedWithTask, status),
                };
                (job.record.state, job.record.exit_status, job.record.ended) = (state, Some(status), Some(now()));
                job.record.write(&job.folder)?;
                Ok(Some(job.record))
            }
        }
    }
}

impl JobLog {
    fn create(
        folder: &Path,
        number: u32,
        command: Vec<String>,
        timeout: Option<Duration>,
        limits: JobLimits,
    ) -> Result<JobLog> {
        let failed = |cause| crate::files::failed(cause, format!("make `{}`", folder.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let log =
            OpenOptions::new().append(true).create_new(true).mode(0o600).open(folder.join(LOG)).map_err(failed)?;
        let record = JobRecord {
            schema: 1,
            id: job_id(number),
            command,
            state: JobState::Running,
            started: now(),
            ended: None,
            timeout_seconds: timeout.map(|limit| limit.as_secs_f64()),
            memory_bytes: limits.memory,
            pids: limits.pids,
            cpu_time_seconds: limits.cpu_time.map(|limit| limit.as_secs_f64()),
            exit_status: None,
            log_bytes: 0,
            left_out_bytes: 0,
        };
        record.write(folder)?;
        let streams = [Redacted::new(false), Redacted::new(false)];
        Ok(JobLog { folder: folder.to_owned(), record, log, index: Index::open(folder, 0)?, streams })
    }

    /// Writes within the budget, and counts the rest.
    fn write(&mut self, stream: Stream, bytes: &[u8], budget: &mut u64) {
        let room = usize::try_from(*budget).unwrap_or(usize::MAX).min(bytes.len());
        let (kept, left_out) = bytes.split_at(room);
        let record = &mut self.record;
        record.left_out_bytes += left_out.len() as u64;
        if kept.is_empty() {
            return;
        }
        // A full disk must not end the task.
        let written = self.index.follow(stream, record.log_bytes).is_ok() && self.log.write_all(kept).is_ok();
        if written {
            *budget -= kept.len() as u64;
            record.log_bytes += kept.len() as u64;
        } else {
            record.left_out_bytes += kept.len() as u64;
            *budget = 0; // a torn write: nothing follows it
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_jobs_share_one_budget_and_hide_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let redactor = Redactor::new();
        redactor.add("KEY", b"correct-horse-battery");
        let mut logs = JobLogs::new(directory.path(), 40);
        let begin = |logs: &mut JobLogs, number| {
            let command = vec!["echo".to_owned(), "correct-horse-battery".to_owned()];
            logs.take(number, JobEvent::Started { command, timeout: None, limits: JobLimits::default() }, &redactor)
                .unwrap()
                .unwrap()
        };
        let first = begin(&mut logs, 1);
        assert!(!first.command[1].contains("horse"), "{first:?}");
        begin(&mut logs, 2);
        logs.take(1, JobEvent::Output(Stream::Output, b"correct-horse-battery\n"), &redactor).unwrap();
        logs.take(2, JobEvent::Output(Stream::Error, &[b'x'; 60]), &redactor).unwrap();
        let ended = |logs: &mut JobLogs, number| {
            logs.take(number, JobEvent::Ended(0, JobEnd::Exited), &redactor).unwrap().unwrap()
        };
        let (first, second) = (ended(&mut logs, 1), ended(&mut logs, 2));
        let text = |id: &str| std::fs::read_to_string(directory.path().join(JOBS).join(id).join(LOG)).unwrap();
        assert_eq!(text("j1"), "[redacted:KEY]\n");
        assert_eq!(first.log_bytes + second.log_bytes, 40, "{first:?} {second:?}");
        assert_eq!((text("j2").len() as u64, second.left_out_bytes), (second.log_bytes, 60 - second.log_bytes));
    }
}
