//! Processes that outlive their client: the supervisor reads their output and ends them at the latest with the sandbox.

use super::super::streams::{JobEnd, JobEvent, LARGEST_PIPE, Stream};
use super::session::{PendingJob, Session};
use super::{Control, Slot};
use crate::error::{Error, Kind, Result};
use crate::sandbox::limits::Limits;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The most jobs at a time, and in all: each leaves a record.
const MOST_AT_ONCE: usize = 16;
const MOST: u32 = 1000;
/// The time for output after a job's end. Then the rest of its tree is killed.
const DRAIN: Duration = Duration::from_secs(2);
const KILLED: u8 = 137;
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(in crate::sandbox) struct Job {
    id: u32,
    session: Session,
    outputs: [Option<OwnedFd>; 2],
    kill_at: Option<Instant>,
    is_stopped: bool,
    ended: Option<(u8, Instant)>,
}

pub(in crate::sandbox) type Receiver<'own> = &'own mut dyn FnMut(u32, JobEvent<'_>);

impl Control {
    pub(in crate::sandbox) fn running(&self) -> Vec<String> {
        let commands = self.clients.iter().filter_map(|client| client.session.as_ref()?.running().map(str::to_owned));
        let jobs = self.jobs.iter().filter_map(|job| Some(format!("j{}: {}", job.id, job.session.running()?)));
        commands.chain(jobs).collect()
    }

    pub(in crate::sandbox) fn has_room_for_job(&self) -> Result<()> {
        let pending = self.clients.iter().filter(|client| client.session.as_ref().is_some_and(Session::is_pending_job));
        if self.jobs.len() + pending.count() >= MOST_AT_ONCE {
            return Err(Error::new(Kind::State, format!("the task runs {MOST_AT_ONCE} jobs, the most at one time"))
                .hint("end one: brig task stop ID --job JOB"));
        }
        if self.last_job >= MOST {
            return Err(Error::new(Kind::State, format!("the task has had {MOST} jobs, the most of one task"))
                .hint("run the command without --detach"));
        }
        Ok(())
    }

    /// Makes a job if the client's program runs. Returns its number.
    pub(in crate::sandbox) fn promote(&mut self, index: usize, receive: Receiver<'_>) -> Option<u32> {
        let client = self.clients.get_mut(index)?;
        let PendingJob { command, timeout, limits, outputs } = client.session.as_mut()?.take_job()?;
        let session = client.session.take()?;
        self.last_job += 1;
        receive(self.last_job, JobEvent::Started { command, timeout, limits });
        self.jobs.push(Job {
            id: self.last_job,
            session,
            outputs: outputs.map(Some),
            kill_at: None,
            is_stopped: false,
            ended: None,
        });
        Some(self.last_job)
    }

    pub(in crate::sandbox) fn has_oom_kill(&self) -> bool {
        self.jobs.iter().any(|job| job.session.has_oom_kill())
    }

    pub(super) fn job_waits(&self) -> impl Iterator<Item = (Slot, BorrowedFd<'_>)> {
        self.jobs.iter().enumerate().flat_map(|(index, job)| {
            let outputs = [Stream::Output, Stream::Error].into_iter().zip(&job.outputs);
            let outputs =
                outputs.filter_map(move |(stream, end)| Some((Slot::JobOutput(index, stream), end.as_ref()?.as_fd())));
            outputs.chain(job.session.pidfd().map(|pidfd| (Slot::JobEnd(index), pidfd)))
        })
    }

    pub(in crate::sandbox) fn read_job(&mut self, index: usize, stream: Stream, receive: Receiver<'_>) -> bool {
        self.jobs.get_mut(index).is_some_and(|job| job.read(stream, receive))
    }

    pub(in crate::sandbox) fn note_job_end(&mut self, index: usize) {
        if let Some(job) = self.jobs.get_mut(index) {
            job.note_end();
        }
    }

    pub(in crate::sandbox) fn job(&mut self, id: u32) -> Result<&mut Job> {
        self.jobs.iter_mut().find(|job| job.id == id).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("the task runs no job `j{id}`")).hint("see `brig task jobs ID`")
        })
    }

    /// The kernel may report the end of a job before that of the sandbox: with `is_ending` a killed job ended with it.
    pub(in crate::sandbox) fn check_jobs(&mut self, now: Instant, is_ending: bool, receive: Receiver<'_>) {
        self.clients.iter_mut().filter_map(|client| client.session.as_mut()).for_each(|each| each.end_if_overdue(now));
        for job in &mut self.jobs {
            job.session.end_if_overdue(now);
            job.session.end_at_limit();
            if job.kill_at.is_some_and(|at| now >= at) {
                job.kill_at = None;
                job.session.end();
            }
        }
        let (over, running) = std::mem::take(&mut self.jobs).into_iter().partition(|job| job.is_over(now));
        self.jobs = running;
        for job in over {
            let is_killed = job.ended.is_some_and(|(status, _)| status == KILLED);
            let why = match job.why() {
                JobEnd::Exited if is_ending && is_killed => JobEnd::WithTask,
                why => why,
            };
            self.ending.extend(job.finish(why, receive));
        }
    }

    /// The jobs ended with the sandbox: their processes are reaped.
    pub(in crate::sandbox) fn report_jobs(&mut self, receive: Receiver<'_>) {
        for job in std::mem::take(&mut self.jobs) {
            // Its own end may have come at the same moment.
            let why = if job.is_stopped || job.session.is_overdue() { job.why() } else { JobEnd::WithTask };
            drop(job.finish(why, receive));
        }
    }

    pub(super) fn end_jobs(&mut self) {
        self.jobs.iter().for_each(|job| job.session.end());
        self.jobs.iter_mut().for_each(Job::note_end);
    }

    pub(in crate::sandbox) fn deadline(&self) -> Option<Instant> {
        let sessions = self.clients.iter().filter_map(|client| client.session.as_ref()?.deadline());
        let jobs = self.jobs.iter().flat_map(|job| {
            let drained = job.ended.map(|(_, since)| if job.has_output() { since + DRAIN } else { since });
            [job.session.deadline(), job.kill_at, drained].into_iter().flatten()
        });
        sessions.chain(jobs).min()
    }
}

impl Job {
    pub(in crate::sandbox) fn stop(&mut self, signal: rustix::process::Signal, grace: Duration) -> Result<()> {
        self.is_stopped = true;
        self.kill_at = Some(Limits::end_of(grace));
        self.session.signal(signal)
    }

    /// SIGKILL ends the process tree.
    pub(in crate::sandbox) fn kill(&mut self, signal: rustix::process::Signal) -> Result<()> {
        if signal != rustix::process::Signal::KILL {
            return self.session.signal(signal);
        }
        self.is_stopped = true;
        self.session.end();
        Ok(())
    }

    pub(super) fn is_activity(&self) -> bool {
        self.session.is_activity()
    }

    fn has_output(&self) -> bool {
        self.outputs.iter().any(Option::is_some)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ended.is_some_and(|(_, since)| !self.has_output() || now >= since + DRAIN)
    }

    fn why(&self) -> JobEnd {
        match (self.session.is_overdue(), self.session.hit(), self.is_stopped) {
            (true, ..) => JobEnd::TimedOut,
            (_, Some(hit), _) => hit,
            (.., true) => JobEnd::Stopped,
            _ => JobEnd::Exited,
        }
    }

    fn note_end(&mut self) {
        if self.ended.is_none() {
            // A status that cannot be read is that of a killed process.
            self.ended = Some((self.session.wait().unwrap_or(KILLED), Instant::now()));
        }
    }

    fn read(&mut self, stream: Stream, receive: Receiver<'_>) -> bool {
        let end = &mut self.outputs[stream as usize];
        let Some(open) = end else { return false };
        let mut buffer = [0; CHUNK];
        match rustix::io::read(&*open, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(0) | Err(_) => {
                *end = None;
                false
            }
            Ok(count) => {
                receive(self.id, JobEvent::Output(stream, &buffer[..count]));
                true
            }
        }
    }

    /// Kills the rest of the tree first.
    fn finish(mut self, why: JobEnd, receive: Receiver<'_>) -> Option<Session> {
        self.session.end();
        for stream in [Stream::Output, Stream::Error] {
            // Another process of the sandbox may have received the pipe (SCM_RIGHTS, unix(7)), and never stop writing.
            for _ in 0..LARGEST_PIPE / CHUNK {
                if !self.read(stream, receive) {
                    break;
                }
            }
        }
        self.note_end();
        receive(self.id, JobEvent::Ended(self.ended.map_or(KILLED, |(status, _)| status), why));
        Some(self.session)
    }
}
