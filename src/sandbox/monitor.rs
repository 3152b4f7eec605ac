//! Health checks of a running sandbox: a command enters it at intervals, and its exit status decides.
//!
//! One check runs at a time. Its process tree is killed at its timeout, and a beginning of its output is kept. Checks
//! are not activity of the task: the idle limit goes on.

use super::health::{Health, HealthCheck, HealthState};
use super::refusals::Refusals;
use crate::container::{Entered, Running, Visit};
use crate::error::{Context, Error, Kind, Result};
use crate::process::{Message, Stdio};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The interval while the sandbox is not healthy, unless the given one is shorter.
const RETRY: Duration = Duration::from_secs(2);
const KEPT: usize = 4096;
/// Bytes of output before the supervisor closes the pipe.
const READ: usize = 1 << 20;
const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Start,
    Output,
    End,
}

#[derive(Debug)]
pub(super) struct Monitor<'run> {
    check: &'run HealthCheck,
    command: &'run str,
    health: Health,
    since: Option<Instant>,
    /// `None` before the sandbox is ready, and while it ends.
    next: Option<Instant>,
    probe: Option<Probe>,
    /// The killed process tree of the last check, until it is gone.
    ending: Option<Entered>,
}

#[derive(Debug)]
struct Probe {
    entered: Entered,
    output: Option<OwnedFd>,
    text: Vec<u8>,
    count: usize,
    is_started: bool,
    is_overdue: bool,
    deadline: Instant,
}

impl<'run> Monitor<'run> {
    pub(super) fn new(check: &'run HealthCheck) -> Option<Monitor<'run>> {
        let command = check.command.as_deref()?;
        let health = Health { state: HealthState::Starting, exit_status: None, reason: None, output: String::new() };
        Some(Monitor { check, command, health, since: None, next: None, probe: None, ending: None })
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = (Slot, PollFd<'_>)> {
        let probe = self.probe.iter();
        probe.flat_map(|probe| {
            let first = if probe.is_started { None } else { Some((Slot::Start, probe.entered.channel())) };
            let output = probe.output.as_ref().map(|output| (Slot::Output, output.as_fd()));
            let end = probe.is_started.then(|| (Slot::End, probe.entered.pidfd()));
            let all = [first, output, end].into_iter().flatten();
            all.map(|(slot, end)| (slot, PollFd::from_borrowed_fd(end, PollFlags::IN)))
        })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_probe = self.probe.as_ref().filter(|probe| !probe.is_overdue).map(|probe| probe.deadline);
        [self.start_deadline(), of_probe, self.next.filter(|_| self.probe.is_none())].into_iter().flatten().min()
    }

    /// Returns the health if its state is new.
    pub(super) fn serve(&mut self, slot: Slot, refusals: &mut Refusals) -> Option<Health> {
        let probe = self.probe.as_mut()?;
        let (status, reason) = match slot {
            Slot::Output => {
                probe.read();
                return None;
            }
            Slot::Start => match probe.receive(refusals) {
                Ok(()) => return None,
                Err(error) => (None, Some(error.to_string())),
            },
            Slot::End => match probe.entered.reap() {
                _ if probe.is_overdue => (None, Some(format!("it took longer than {:?}", self.check.timeout))),
                Ok(status) => (Some(status), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let (text, before) = (self.drop_probe(), self.health.state);
        self.note(status, reason, text);
        (self.health.state != before).then(|| self.health.clone())
    }

    /// Returns the health at the first call.
    pub(super) fn advance(&mut self, running: &Running, now: Instant, is_ending: bool) -> Option<Health> {
        if let Some(probe) = self.probe.as_mut().filter(|probe| now >= probe.deadline && !probe.is_overdue) {
            probe.is_overdue = true;
            // A process that cannot be killed here ends with the sandbox.
            let _ = probe.entered.end();
        }
        if is_ending {
            self.next = None;
            return None;
        }
        let is_first = self.since.is_none();
        if is_first {
            (self.since, self.next) = (Some(now), Some(now));
        }
        if self.is_due(now) {
            self.start(running, now);
        }
        is_first.then(|| self.health.clone())
    }

    /// Paused time counts neither against the start nor against a check that runs.
    pub(super) fn add_pause(&mut self, pause: Duration) {
        for time in self.since.iter_mut().chain(self.probe.as_mut().map(|probe| &mut probe.deadline)) {
            *time += pause;
        }
    }

    pub(super) fn fault(&self, now: Instant) -> Option<String> {
        let words =
            || format!("the health check has not passed within {:?}: {}", self.check.start, self.health.words());
        self.start_deadline().is_some_and(|end| now >= end).then(words)
    }

    fn start_deadline(&self) -> Option<Instant> {
        let is_starting = self.next.is_some() && self.health.state == HealthState::Starting;
        self.since.filter(|_| is_starting).and_then(|since| since.checked_add(self.check.start))
    }

    pub(super) fn words(&self) -> String {
        self.health.words()
    }

    fn drop_probe(&mut self) -> Vec<u8> {
        let Some(mut probe) = self.probe.take() else { return Vec::new() };
        // The rest of its tree; what cannot be killed here ends with the sandbox.
        let _ = probe.entered.end();
        while probe.read() {}
        self.ending = Some(probe.entered);
        probe.text
    }

    fn note(&mut self, exit_status: Option<u8>, reason: Option<String>, output: Vec<u8>) {
        let state = match (exit_status, self.health.state) {
            (Some(0), _) => HealthState::Healthy,
            (_, HealthState::Starting) => HealthState::Starting,
            _ => HealthState::Unhealthy,
        };
        let output = String::from_utf8_lossy(&output).into_owned();
        self.health = Health { state, exit_status, reason, output };
        let interval = self.check.interval;
        let interval = if state == HealthState::Healthy { interval } else { interval.min(RETRY) };
        self.next = self.next.and_then(|_| Instant::now().checked_add(interval));
    }

    /// Call this before the sandbox's pid 1 is reaped: the kernel keeps it until all others are reaped.
    pub(super) fn end(&mut self) {
        self.next = None;
        for entered in self.probe.take().map(|probe| probe.entered).into_iter().chain(self.ending.take()) {
            // A process that was reaped before has no status.
            let _ = entered.end().and(entered.reap());
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        if self.probe.is_some() || self.next.is_none_or(|next| now < next) {
            return false;
        }
        if self.ending.as_ref().is_some_and(|entered| !entered.is_gone()) {
            self.next = Some(now + RETRY);
            return false;
        }
        self.ending = None;
        true
    }

    fn start(&mut self, running: &Running, now: Instant) {
        match Probe::start(running, self.command, now + self.check.timeout) {
            Ok(probe) => self.probe = Some(probe),
            Err(error) => self.note(None, Some(error.to_string()), Vec::new()),
        }
    }
}

impl Probe {
    fn start(running: &Running, command: &str, deadline: Instant) -> Result<Probe> {
        let step = || "make a pipe for the health check";
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step)?;
        fcntl_setfl(&output, OFlags::NONBLOCK).failing(Kind::Internal, step)?;
        let error = theirs.try_clone().failing(Kind::Internal, step)?;
        let input = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::Internal, step)?;
        let visit = Visit {
            command: ["/bin/sh", "-c", command].map(Into::into).into(),
            environment: Vec::new(),
            directory: None,
            errand: None,
            user: None,
            stdio: Stdio::Descriptors { input, output: theirs, error },
            limits: None,
        };
        let entered = running.enter(visit)?;
        let (text, count) = (Vec::new(), 0);
        Ok(Probe { entered, output: Some(output), text, count, is_started: false, is_overdue: false, deadline })
    }

    /// An error means that the check did not start.
    fn receive(&mut self, refusals: &mut Refusals) -> Result<()> {
        match self.entered.receive()? {
            Some(Message::Refusals(listener)) => refusals.add(listener),
            None => self.is_started = true,
            Some(Message::Failed(error)) => return Err(error),
            Some(other) => return Err(Error::new(Kind::Lost, format!("an unexpected message: {other:?}"))),
        }
        Ok(())
    }

    fn read(&mut self) -> bool {
        let Some(output) = &self.output else { return false };
        let mut buffer = [0_u8; CHUNK];
        match rustix::io::read(output, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(0) | Err(_) => {
                self.output = None;
                false
            }
            Ok(count) => {
                self.count += count;
                let room = KEPT.saturating_sub(self.text.len()).min(count);
                self.text.extend_from_slice(&buffer[..room]);
                if self.count >= READ {
                    self.output = None;
                }
                true
            }
        }
    }
}
