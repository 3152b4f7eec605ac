//! A client's process in a running sandbox, until its end.

use super::super::job_limits::JobLimits;
use super::super::refusals::Refusals;
use super::super::streams::JobEnd;
use super::super::visitor;
use super::wire::{Exec, Peer, Reply};
use crate::container::{Entered, Running, Visit};
use crate::error::{Context, Error, Kind, Result};
use crate::process::{Message, Stdio, Terminal};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(in crate::sandbox) struct Session {
    entered: Entered,
    /// Whether its program has started or failed to.
    is_settled: bool,
    /// Its descendants live until the client is gone: they may still have output.
    has_ended: bool,
    is_released: bool,
    copies: bool,
    deadline: Option<Instant>,
    is_overdue: bool,
    words: String,
    job: Option<PendingJob>,
    limits: JobLimits,
    hit: Option<JobEnd>,
}

/// A process that becomes a job when its program runs.
#[derive(Debug)]
pub(in crate::sandbox) struct PendingJob {
    pub(super) command: Vec<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) limits: JobLimits,
    /// Readers of standard output and standard error.
    pub(super) outputs: [OwnedFd; 2],
}

impl PendingJob {
    fn new(exec: &Exec, limits: JobLimits, output: OwnedFd, error: OwnedFd) -> Result<PendingJob> {
        for end in [&output, &error] {
            fcntl_setfl(end, OFlags::NONBLOCK).failing(Kind::Internal, || "read a job's output")?;
        }
        let command = exec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(PendingJob { command, timeout: exec.timeout, limits, outputs: [output, error] })
    }
}

impl Session {
    /// Sends the client its ends of the pipes. The supervisor keeps those of a job.
    ///
    /// The second value: the client did not take them, and may be gone. The process runs, and must be ended and reaped:
    /// else the kernel would keep pid 1 for ever.
    pub(in crate::sandbox) fn start(
        running: &Running,
        exec: Exec,
        limits: JobLimits,
        peer: &Peer,
    ) -> Result<(Session, Result<(), Errno>)> {
        let step = || "make pipes for the process";
        let (mut ours, mut job) = (Vec::new(), None);
        let stdio = match exec.terminal {
            Some((rows, columns)) => Stdio::Terminal(Terminal { rows, columns, passes_newlines: false }),
            None => {
                let pipe = || pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step);
                let ((input, to_it), (of_it, output), (of_it_too, error)) = (pipe()?, pipe()?, pipe()?);
                if exec.is_job {
                    job = Some(PendingJob::new(&exec, limits, of_it, of_it_too)?);
                } else {
                    ours.extend([(0, to_it), (1, of_it), (2, of_it_too)]);
                }
                Stdio::Descriptors { input, output, error }
            }
        };
        let words: Vec<_> = exec.command.iter().map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        let command = if exec.errand { vec!["brig-files".into()] } else { exec.command };
        let visit = Visit {
            command,
            environment: exec.environment,
            directory: exec.directory,
            errand: exec.errand.then_some(visitor::serve as crate::process::Errand),
            user: exec.user,
            stdio,
            limits: limits.resources(),
        };
        let session = Session {
            entered: running.enter(visit)?,
            is_settled: false,
            has_ended: false,
            is_released: false,
            copies: exec.errand,
            deadline: exec.timeout.and_then(|limit| Instant::now().checked_add(limit)),
            is_overdue: false,
            words,
            job,
            limits,
            hit: None,
        };
        let sent =
            ours.iter().try_for_each(|(number, end)| peer.reply(&Reply::Stream(Some(*number)), Some(end.as_fd())));
        Ok((session, sent))
    }

    /// Readable for messages of the start; `None` after it.
    pub(in crate::sandbox) fn channel(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_settled).then(|| self.entered.channel())
    }

    /// Readable at the end; `None` after it.
    pub(in crate::sandbox) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_ended).then(|| self.entered.pidfd())
    }

    /// Whether it copies files, or its time is limited.
    pub(in crate::sandbox) fn is_activity(&self) -> bool {
        (self.copies || self.deadline.is_some()) && !self.has_ended
    }

    pub(in crate::sandbox) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.has_ended)
    }

    pub(in crate::sandbox) fn end_if_overdue(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            (self.deadline, self.is_overdue) = (None, true);
            self.end();
        }
    }

    /// Kills the process tree if a separate limit was reached, for the reason of `Watch::out_of_memory`.
    pub(super) fn end_at_limit(&mut self) {
        if self.hit.is_none() && !self.limits.is_empty() {
            self.hit = self.limit_hit();
            if self.hit.is_some() {
                self.end();
            }
        }
    }

    /// Counters that cannot be read end the process.
    fn limit_hit(&self) -> Option<JobEnd> {
        let Ok(Some((usage, evidence))) = self.entered.counters() else { return Some(JobEnd::Stopped) };
        let used = usage.cpu_total_ns.map(Duration::from_nanos);
        if self.limits.memory.is_some() && evidence.oom_kills > 0 {
            return Some(JobEnd::Memory);
        }
        match (self.limits.cpu_time, used) {
            (Some(limit), Some(used)) if used > limit => Some(JobEnd::CpuTime),
            (Some(_), None) => Some(JobEnd::Stopped),
            _ => None,
        }
    }

    pub(super) fn hit(&self) -> Option<JobEnd> {
        self.hit
    }

    /// v1 counts in the group of the process, whatever group has the limit.
    pub(super) fn has_oom_kill(&self) -> bool {
        self.entered.counters().is_ok_and(|counters| counters.is_some_and(|(_, evidence)| evidence.oom_kills > 0))
    }

    pub(in crate::sandbox) fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// `None` after the end, and for a copy of files.
    pub(super) fn running(&self) -> Option<&str> {
        (!self.has_ended && !self.copies).then_some(self.words.as_str())
    }

    /// Lets the descendants outlive the client.
    pub(super) fn release(&mut self) -> Result<()> {
        if !self.has_ended {
            return Err(Error::new(Kind::State, "the process runs").hint("wait for its end, or begin a job"));
        }
        self.is_released = true;
        Ok(())
    }

    pub(super) fn is_released(&self) -> bool {
        self.is_released
    }

    pub(super) fn is_pending_job(&self) -> bool {
        self.job.is_some()
    }

    /// `None` until the program runs.
    pub(in crate::sandbox) fn take_job(&mut self) -> Option<PendingJob> {
        if self.is_settled { self.job.take() } else { None }
    }

    /// Kills the descendants too; does not wait.
    pub(in crate::sandbox) fn end(&self) {
        // A process that cannot be killed here ends with the sandbox.
        let _ = self.entered.end();
    }

    pub(in crate::sandbox) fn is_gone(&self) -> bool {
        self.entered.is_gone()
    }

    pub(in crate::sandbox) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        if self.has_ended { Ok(()) } else { self.entered.signal(signal) }
    }

    /// A filter's listener is for the supervisor.
    pub(in crate::sandbox) fn pass_message(&mut self, peer: &Peer, refusals: &mut Refusals) -> Result<(), Errno> {
        match self.entered.receive() {
            Ok(Some(Message::Refusals(listener))) => {
                refusals.add(listener);
                Ok(())
            }
            Ok(Some(Message::Console(master))) => peer.reply(&Reply::Stream(None), Some(master.as_fd())),
            Ok(None) => {
                self.is_settled = true;
                peer.reply(&Reply::Started, None)
            }
            Ok(Some(Message::Failed(error))) | Err(error) => self.fail(peer, error),
            Ok(Some(other)) => {
                self.fail(peer, Error::new(Kind::Lost, format!("it said something out of turn: {other:?}")))
            }
        }
    }

    fn fail(&mut self, peer: &Peer, error: Error) -> Result<(), Errno> {
        (self.is_settled, self.job) = (true, None);
        peer.reply(&Reply::Failed(error), None)
    }

    /// Returns the exit status. A process that was reaped before has none.
    pub(in crate::sandbox) fn wait(&mut self) -> Result<u8> {
        self.has_ended = true;
        self.entered.reap()
    }

    /// Sends the client the status, once.
    pub(in crate::sandbox) fn report_end(&mut self, peer: &Peer) -> Result<(), Errno> {
        if self.has_ended {
            return Ok(());
        }
        match self.wait() {
            Ok(_) if self.is_overdue => peer.reply(&Reply::TimedOut, None),
            Ok(status) => peer.reply(&Reply::Exited(status), None),
            Err(error) => peer.reply(&Reply::Failed(error), None),
        }
    }
}
