//! Jobs: processes of a task without a client, with record and log in `jobs/<id>` of the task's directory.

use super::follow::{Follower, From};
use crate::error::{Error, Kind, Result, words};
use crate::sandbox::size;
use crate::task::store::json::{read, write};
use crate::task::store::{LOG, Status, Store};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const JOBS: &str = "jobs";
const RECORD: &str = "job.json";

words! {
    /// A job's state.
    pub enum JobState {
        /// Its process runs.
        Running = "running",
        /// It ended by itself or a signal.
        Exited = "exited",
        /// Killed at its time limit.
        TimedOut = "timed_out",
        /// Killed at its own memory limit.
        Memory = "memory",
        /// Killed at its own limit on processor time.
        CpuTime = "cpu_time",
        /// A client stopped it.
        Stopped = "stopped",
        /// It ended with the task.
        EndedWithTask = "ended_with_task",
        /// The supervisor died.
        Lost = "lost",
    }
}

/// A job's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The form's version.
    pub schema: u32,
    /// Its id in the task, such as `j1`.
    pub id: String,
    /// The command, without secrets.
    pub command: Vec<String>,
    /// Its state.
    pub state: JobState,
    /// Its start, RFC 3339.
    pub started: String,
    /// Its end, RFC 3339.
    pub ended: Option<String>,
    /// Its time limit.
    pub timeout_seconds: Option<f64>,
    /// Its own memory limit.
    pub memory_bytes: Option<u64>,
    /// Its own limit of processes and threads.
    pub pids: Option<u64>,
    /// Its own limit on processor time.
    pub cpu_time_seconds: Option<f64>,
    /// A shell's exit status; 124, 137 or 152 at the limit on time, memory or processor time.
    pub exit_status: Option<u8>,
    /// Bytes in its log.
    pub log_bytes: u64,
    /// Output bytes left out: the logs of the task's jobs are full.
    pub left_out_bytes: u64,
}

impl JobRecord {
    /// Its own limit that ended it, in words.
    pub fn limit_words(&self) -> Option<String> {
        match self.state {
            JobState::Memory => self.memory_bytes.map(|bytes| format!("its own limit of {} of memory", size(bytes))),
            JobState::CpuTime => {
                self.cpu_time_seconds.map(|seconds| format!("its own limit of {seconds} s of processor time"))
            }
            _ => None,
        }
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.state == JobState::Running
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        write(&folder.join(RECORD), self)
    }
}

pub(crate) fn job_id(number: u32) -> String {
    format!("j{number}")
}

/// Parses `j1` or `1`.
fn job_number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix('j').unwrap_or(word);
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| is_plain)
}

impl Store {
    pub(crate) fn job_folder(&self, id: &str, job: &str) -> PathBuf {
        self.task(id).join(JOBS).join(job)
    }

    /// A task's jobs, oldest first.
    pub fn jobs(&self, id: &str) -> Result<Vec<JobRecord>> {
        let entries = match std::fs::read_dir(self.task(id).join(JOBS)) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|cause| crate::files::failed(cause, format!("list the jobs of `{id}`")))?,
        };
        let names = entries.filter_map(|entry| job_number(entry.ok()?.file_name().to_str()?));
        let mut numbers: Vec<_> = names.collect();
        numbers.sort_unstable();
        let jobs = numbers.into_iter().map(|number| self.read_job(id, number));
        jobs.filter(|job| job.as_ref().is_ok_and(Option::is_some) || job.is_err())
            .filter_map(Result::transpose)
            .collect()
    }

    /// A task's job `j1` or `1`.
    pub fn job(&self, id: &str, word: &str) -> Result<JobRecord> {
        let found = job_number(word).map(|number| self.read_job(id, number)).transpose()?.flatten();
        found.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("the task `{id}` has no job `{}`", word.escape_debug()))
                .hint(format!("see brig task jobs {id}"))
        })
    }

    pub(crate) fn job_number(&self, id: &str, word: &str) -> Result<u32> {
        let job = self.job(id, word)?;
        job_number(&job.id).ok_or_else(|| Error::new(Kind::Record, format!("`{}` is not the id of a job", job.id)))
    }

    /// `None` without a record: the job begins at this moment.
    fn read_job(&self, id: &str, number: u32) -> Result<Option<JobRecord>> {
        // Before the record is read: a job that ends now is not lost.
        let is_running = self.status(id)? == Status::Running;
        match read::<JobRecord>(&self.job_folder(id, &job_id(number)).join(RECORD)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Ok(job) if job.state == JobState::Running && !is_running => {
                Ok(Some(JobRecord { state: JobState::Lost, ..job }))
            }
            other => other.map(Some),
        }
    }

    /// Waits for a job's end; `None` at the limit.
    pub fn wait_for_job(&self, id: &str, word: &str, limit: Option<Duration>) -> Result<Option<JobRecord>> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let job = self.job(id, word)?.id;
        let mut changes = Follower::of_job(self, id, Some(&job), LOG, From::Now)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let found = self.job(id, &job)?;
            if !found.is_running() {
                return Ok(Some(found));
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
            while changes.available(&mut buffer)?.is_some_and(|bytes| !bytes.is_empty()) {}
            changes.wait_until(end)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_a_plain_number() {
        assert_eq!((job_number("j1"), job_number("12")), (Some(1), Some(12)));
        for word in ["", "j", "j0", "j01", "jj1", "-1", "+1", "j1/..", "99999999999"] {
            assert_eq!(job_number(word), None, "{word:?}");
        }
    }
}
