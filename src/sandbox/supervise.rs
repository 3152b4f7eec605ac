//! The supervisor's loop over a running container: one thread, one poll(2), every cause of its end.

use super::control::{self, Control};
use super::limits::{LimitName, Limits};
use super::monitor::{self, Monitor};
use super::network::NetworkMode;
use super::outcome::{LimitHit, Stopped};
use super::refusals::Refusals;
use super::report::{Usage, seconds};
use super::signals::{SignalKind, Signals};
use super::streams::{LARGEST_PIPE, Notice, Sink, Slot, Stream, Streams};
use crate::container::{Queues, Running};
use crate::error::{Context, Error, Kind, Result};
use crate::process::{Ended, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The interval of meters without a notification: disk, processor time, processes.
pub(super) const SAMPLE: Duration = Duration::from_millis(200);
/// The shortest interval between checks of the disk.
pub(super) const DISK_SAMPLE: Duration = Duration::from_millis(4);
/// The same at output, unless the disk was nearly full: a program reports a full disk just before it frees room again.
const DISK_SAMPLE_AT_OUTPUT: Duration = Duration::from_millis(1);
/// The time of the first usage event, and the interval of others.
const FIRST_USAGE: Duration = Duration::from_secs(1);
pub(super) const USAGE: Duration = Duration::from_secs(5);
/// Output after the last process's end is in the pipes already.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
const PROGRESS_READ: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub ended: Option<Ended>,
    pub failure: Option<Error>,
    /// Whether the failure came before the command's start.
    pub start_failed: bool,
    /// Whether a process may live on: it could not be ended.
    pub may_live: bool,
    pub stopped: Option<Stopped>,
    pub hits: Vec<LimitHit>,
    pub usage: Usage,
    pub refusals: Refusals,
    pub unfinished: Vec<String>,
}

pub(super) struct Watch<'run> {
    pub running: &'run mut Running,
    pub launched: Instant,
    pub streams: Streams,
    pub limits: &'run Limits,
    pub grace: Duration,
    pub stop_signal: rustix::process::Signal,
    pub holds: bool,
    pub disk_bytes: u64,
    /// `None` for a file without a name. For files in memory it is made at the end.
    pub disk_file: Option<&'run Path>,
    /// Whether the files are on that disk, not in memory.
    pub is_on_disk: bool,
    pub network: NetworkMode,
    pub signals: &'run Signals,
    pub sink: &'run mut dyn Sink,
    pub forward_input: bool,
    pub progress: Option<OwnedFd>,
    pub control: Option<&'run mut Control>,
    pub health: Option<Monitor<'run>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Channel,
    Gateway,
    Link,
    Signals,
    OutOfMemory,
    Refusal(usize),
    Input,
    Stream(Slot),
    Control(control::Slot),
    Health(monitor::Slot),
    Progress,
}

pub(super) struct State {
    pub started: Instant,
    pub last_output: Instant,
    pub kill_at: Option<Instant>,
    /// Whether a person has asked for the end.
    is_asked: bool,
    /// The latest end of a drain, and the grace after it if not the task's.
    pub drain: Option<(Instant, Option<Duration>)>,
    /// Whether the sandbox is built and entered. A client that enters earlier would be on the host.
    pub is_ready: bool,
    pub paused: Option<Instant>,
    pub has_lost_link: bool,
    pub next_sample: Instant,
    pub disk_seen: Instant,
    pub next_disk: Instant,
    pub queues: Queues,
    /// The next read of netlink sockets.
    pub next_queues: Instant,
    /// Processor time at the last look of each meter.
    pub run_at_queues: Option<u64>,
    pub run_at_sample: Option<u64>,
    pub run_at_usage: Option<u64>,
    /// System time at the last count of record locks, in seconds.
    pub lock_seconds: f64,
    pub over: Option<Instant>,
    blocked: [bool; 2],
    pub cpu_ns: u64,
    sent: SentNotices,
    pub next_usage: Instant,
}

impl State {
    /// Whether the command has ended, or all processes have.
    pub(super) fn is_decided(&self, seen: &Findings) -> bool {
        seen.ended.is_some() || self.over.is_some()
    }

    fn may_have_filled(&self) -> bool {
        self.next_disk <= self.disk_seen + DISK_SAMPLE || self.disk_seen.elapsed() >= DISK_SAMPLE_AT_OUTPUT
    }
}

#[derive(Debug, Default)]
struct SentNotices {
    is_ready: bool,
    is_paused: bool,
    is_stopping: bool,
    hits: usize,
}

impl Watch<'_> {
    /// Runs until every process is gone and all output has come.
    pub(super) fn run(mut self) -> Findings {
        let now = Instant::now();
        let mut state = State {
            started: self.launched,
            last_output: now,
            kill_at: None,
            is_asked: false,
            drain: None,
            is_ready: false,
            paused: None,
            has_lost_link: false,
            next_sample: now + SAMPLE,
            disk_seen: now,
            next_disk: now + DISK_SAMPLE,
            queues: Queues::default(),
            next_queues: now + self.queue_sample(),
            run_at_queues: None,
            run_at_sample: None,
            run_at_usage: None,
            lock_seconds: 0.0,
            over: None,
            blocked: [true, true],
            cpu_ns: 0,
            sent: SentNotices::default(),
            next_usage: now + FIRST_USAGE,
        };
        let mut seen = Findings::default();
        if let Err(error) = self.watch(&mut state, &mut seen) {
            self.give_up(error, &mut state, &mut seen);
        }
        seen.usage.wall_seconds = seconds(state.started.elapsed());
        seen.usage.output_bytes = self.streams.count;
        seen
    }

    fn watch(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        let out_of_memory = self.running.oom_notifier()?;
        self.running.take_refusals().into_iter().for_each(|listener| seen.refusals.add(listener));
        let stdin = rustix::stdio::stdin();
        while !self.finished(state) {
            let mut waits = vec![(Ready::Signals, PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN))];
            if state.over.is_none() {
                // First: a signal that comes after the command's end does not change its outcome.
                waits.insert(0, (Ready::Channel, PollFd::from_borrowed_fd(self.running.channel(), PollFlags::IN)));
                if let Some(gateway) = self.running.gateway().filter(|gateway| !gateway.is_over()) {
                    waits.push((Ready::Gateway, PollFd::from_borrowed_fd(gateway.channel(), PollFlags::IN)));
                }
                if let Some(process) = self.running.link_process().filter(|_| !state.has_lost_link) {
                    waits.push((Ready::Link, PollFd::from_borrowed_fd(process, PollFlags::IN)));
                }
                if let Some(notifier) = &out_of_memory {
                    waits.push((Ready::OutOfMemory, notifier.wait()));
                }
                waits.extend(seen.refusals.waits().map(|(index, wait)| (Ready::Refusal(index), wait)));
                if self.forward_input && self.streams.wants_input() {
                    waits.push((Ready::Input, PollFd::from_borrowed_fd(stdin, PollFlags::IN)));
                }
            }
            if let Some(control) = self.control.as_deref().filter(|_| state.is_ready && state.over.is_none()) {
                // Attached clients of a closed input are read too, to see their end.
                let reads = self.streams.wants_input() || !self.streams.takes_input();
                waits.extend(control.waits(reads).into_iter().map(|(slot, wait)| (Ready::Control(slot), wait)));
            }
            if let Some(monitor) = self.health.as_ref().filter(|_| state.over.is_none()) {
                waits.extend(monitor.waits().map(|(slot, wait)| (Ready::Health(slot), wait)));
            }
            if let Some(progress) = &self.progress {
                waits.push((Ready::Progress, PollFd::from_borrowed_fd(progress.as_fd(), PollFlags::IN)));
            }
            let mut of_streams = Vec::new();
            self.streams.watch(&*self.sink, &mut of_streams, state.blocked);
            waits.extend(of_streams.into_iter().map(|(slot, wait)| (Ready::Stream(slot), wait)));
            let ready = wait_for(waits, self.next_deadline(state))?;
            for what in ready {
                if let (Ready::OutOfMemory, Some(notifier), false) = (what, &out_of_memory, self.running.is_memory_v1())
                {
                    // v2 also announces a job at its limit, once for each count. v1 announces a kill before it counts.
                    notifier.clear();
                }
                self.handle(what, state, seen)?;
            }
            self.forget();
            self.check_deadlines(state, seen)?;
            self.send_notices(state, seen)?;
        }
        self.streams.drain(self.sink)?;
        self.check_output(seen)?;
        self.streams.close();
        self.report_jobs();
        self.sink.end()?;
        self.running.reap()?;
        for row in self.running.end_gateway() {
            self.sink.notice(Notice::Egress(row))?;
        }
        // A process of another sandbox may have received the pipe through a shared folder, and never stop writing.
        for _ in 0..LARGEST_PIPE / PROGRESS_READ {
            if !self.take_progress()? {
                break;
            }
        }
        self.sample(state, seen)?;
        self.send_notices(state, seen)
    }

    /// The findings stay, and no process writes to the files any more.
    fn give_up(&mut self, error: Error, state: &mut State, seen: &mut Findings) {
        let ended = self.unpause(state).and(self.running.kill());
        self.end_entered();
        self.report_jobs();
        seen.may_live = ended.and_then(|()| self.running.reap()).is_err();
        self.streams.close();
        // The meters may be the cause.
        let _ = self.sample(state, seen);
        seen.failure.get_or_insert(error);
        if state.is_ready {
            seen.stopped.get_or_insert(Stopped::Blind);
        } else {
            seen.start_failed = true;
        }
    }

    /// The kernel keeps pid 1 until all processes that entered are reaped.
    fn end_entered(&mut self) {
        if let Some(control) = &mut self.control {
            control.end();
        }
        if let Some(monitor) = &mut self.health {
            monitor.end();
        }
    }

    fn finished(&self, state: &State) -> bool {
        state.over.is_some_and(|since| self.streams.ended() || since.elapsed() >= DRAIN)
    }

    fn handle(&mut self, what: Ready, state: &mut State, seen: &mut Findings) -> Result<()> {
        match what {
            Ready::Channel => self.receive_message(state, seen),
            Ready::Gateway => self.receive_from_gateway(state, seen),
            Ready::Link => self.lose_link(state, seen),
            Ready::Signals => self.obey(state, seen),
            Ready::OutOfMemory => self.out_of_memory(seen),
            Ready::Refusal(index) => {
                seen.refusals.answer(index, self.running.pid());
                Ok(())
            }
            Ready::Progress => {
                if self.take_progress()? {
                    state.last_output = Instant::now();
                }
                self.check_output(seen)
            }
            Ready::Input => self.pass_input(),
            Ready::Control(slot) => {
                self.serve(slot, state, seen);
                Ok(())
            }
            Ready::Health(slot) => self.serve_health(slot, seen),
            Ready::Stream(slot) => {
                // Before passing it on: the writer may not wait for that.
                if matches!(slot, Slot::Read(_)) && state.may_have_filled() {
                    self.look_at_disk(state, seen)?;
                }
                match slot {
                    Slot::Gate(stream) => state.blocked[stream as usize] = !self.sink.pass_kept_output(stream),
                    Slot::Read(stream) => state.blocked[stream as usize] = true,
                    Slot::Write => {}
                }
                if self.streams.serve(slot, self.sink)? > 0 {
                    state.last_output = Instant::now();
                }
                self.check_output(seen)
            }
        }
    }

    fn check_output(&mut self, seen: &mut Findings) -> Result<()> {
        if self.streams.count > self.limits.output_bytes && seen.stopped.is_none() {
            let evidence = format!("{} bytes of output", self.streams.count);
            seen.hits.push(LimitHit { limit: LimitName::OutputBytes, evidence });
            self.kill(Stopped::Output, seen)?;
        }
        Ok(())
    }

    fn receive_message(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        match self.running.receive()? {
            Some(Message::Scratch(_) | Message::Volume(_) | Message::Secrets(_)) => {}
            Some(Message::Console(master)) => self.streams.adopt(master)?,
            Some(Message::Refusals(listener)) => seen.refusals.add(listener),
            Some(Message::Failed(error)) => {
                seen.failure = Some(error);
                seen.start_failed = true;
            }
            Some(Message::Ended(ended)) => {
                seen.ended = Some(ended);
                self.running.dismiss_gateway(); // its last rows come while the kernel ends the rest
            }
            Some(Message::Ready) => state.is_ready = true,
            // A task receives no messages of the OCI runtime.
            Some(_) => {}
            None => {
                self.end_entered();
                self.running.reap()?;
                state.over = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// First request of a person: graceful stop. Then a signal: kill.
    fn obey(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        while let Some(came) = self.signals.next() {
            let is_watchdog = came == SignalKind::Watchdog;
            if came == SignalKind::Resized {
                self.resize();
            } else if state.is_asked || is_watchdog && seen.stopped == Some(Stopped::Unhealthy) {
                self.running.kill()?;
            } else {
                let why = if is_watchdog { self.watchdog(state, seen) } else { self.wish() };
                self.ask(why, state, seen)?;
            }
        }
        Ok(())
    }

    /// Sets the end of the grace. A command that has ended keeps its outcome.
    pub(super) fn ask(&mut self, why: Stopped, state: &mut State, seen: &mut Findings) -> Result<()> {
        self.unpause(state)?; // a frozen process cannot end
        state.is_asked |= matches!(why, Stopped::Cancelled | Stopped::Wished);
        if !state.is_decided(seen) {
            seen.stopped.get_or_insert(why);
        }
        state.kill_at.get_or_insert(Limits::end_of(self.grace));
        self.running.signal(self.stop_signal)
    }

    pub(super) fn kill(&mut self, why: Stopped, seen: &mut Findings) -> Result<()> {
        seen.stopped.get_or_insert(why);
        self.running.kill()
    }

    /// cgroup v1 has no memory.oom.group: the kernel killed one process, and the others would go on in an undefined
    /// state.
    fn out_of_memory(&mut self, seen: &mut Findings) -> Result<()> {
        let Some(evidence) = self.running.evidence()? else { return Ok(()) };
        let is_v1 = self.running.is_memory_v1();
        // v1 announces only the limit of the task, and may have chosen a process of a job with limits.
        let of_job = is_v1 && evidence.oom_kills == 0 && self.control.as_ref().is_some_and(|each| each.has_oom_kill());
        if of_job && seen.stopped.is_none() {
            let evidence = "a process of a job killed by the kernel (oom_kill)".to_owned();
            seen.hits.push(LimitHit { limit: LimitName::Memory, evidence });
        }
        if (evidence.oom_kills > 0 || of_job) && seen.stopped.is_none() {
            self.kill(Stopped::Memory, seen)?;
        }
        Ok(())
    }

    fn send_notices(&mut self, state: &mut State, seen: &Findings) -> Result<()> {
        if state.is_ready && !std::mem::replace(&mut state.sent.is_ready, state.is_ready) {
            self.sink.notice(Notice::State("running"))?;
        }
        let is_paused = state.paused.is_some();
        if std::mem::replace(&mut state.sent.is_paused, is_paused) != is_paused {
            self.sink.notice(Notice::State(if is_paused { "paused" } else { "running" }))?;
        }
        for hit in seen.hits.get(state.sent.hits..).unwrap_or_default() {
            self.sink.notice(Notice::Limit(hit.clone()))?;
        }
        state.sent.hits = seen.hits.len();
        if let (Some(why), false) = (seen.stopped, state.sent.is_stopping) {
            state.sent.is_stopping = true;
            self.sink.notice(Notice::Stopping(format!("{why:?}").to_lowercase()))?;
        }
        Ok(())
    }

    /// Progress counts as output. Returns `false` when there was none.
    fn take_progress(&mut self) -> Result<bool> {
        let Some(pipe) = &self.progress else { return Ok(false) };
        let mut buffer = [0_u8; PROGRESS_READ];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.progress = None,
            Ok(count) => {
                self.streams.count += count as u64;
                self.sink.notice(Notice::Progress(buffer[..count].to_vec()))?;
                return Ok(true);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).failing(Kind::Internal, || "read the command's events"),
        }
        Ok(false)
    }

    fn pass_input(&mut self) -> Result<()> {
        let mut buffer = [0_u8; 4096];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(count) => {
                self.streams.feed(&buffer[..count]);
                self.forward_input = count > 0;
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            // EIO: this process is in the background of its terminal. No more input comes.
            Err(_) => {
                self.streams.feed(&[]);
                self.forward_input = false;
            }
        }
        Ok(())
    }
}

fn wait_for(waits: Vec<(Ready, PollFd<'_>)>, timeout: Duration) -> Result<Vec<Ready>> {
    let (names, mut polled): (Vec<_>, Vec<_>) = waits.into_iter().unzip();
    let timeout = Timespec::try_from(timeout).map_err(|_| Error::new(Kind::Internal, "a deadline too far away"))?;
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno).failing(Kind::Internal, || "wait for the container"),
    }
    Ok(names.into_iter().zip(&polled).filter(|(_, wait)| !wait.revents().is_empty()).map(|(name, _)| name).collect())
}

// The loss of a network: its gateway, its program or its device has ended. The command is asked to end, since it would
// only wait for answers.
impl Watch<'_> {
    fn receive_from_gateway(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        let (is_over, row) = self.running.hear_gateway()?;
        if let Some(row) = row {
            self.sink.notice(Notice::Egress(row))?;
            state.blocked[Stream::Error as usize] = true; // the sink may have kept a line about it
        }
        if is_over {
            let error = Error::new(Kind::Egress, "the gateway of the sandbox's network has ended");
            self.lose(Stopped::Gateway, error.hint("run the task again"), state, seen)?;
        }
        Ok(())
    }

    fn lose_link(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        state.has_lost_link = true;
        let error = Error::new(Kind::Network, "the program `pasta` of the sandbox's network has ended");
        self.lose(Stopped::Link, error.hint("run the task again"), state, seen)
    }

    /// Runs at intervals: the host's removal of a device sends no notice.
    pub(super) fn look_at_link(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        if state.has_lost_link || !self.running.has_lost_device() {
            return Ok(());
        }
        state.has_lost_link = true;
        let error = Error::new(Kind::Network, "the device of the sandbox's network was removed on the host");
        self.lose(Stopped::Link, error.hint("run the task again, and leave the devices `brig*` alone"), state, seen)
    }

    fn lose(&mut self, why: Stopped, error: Error, state: &mut State, seen: &mut Findings) -> Result<()> {
        if !state.is_decided(seen) && seen.stopped.is_none() {
            seen.failure.get_or_insert(error);
            self.ask(why, state, seen)?;
        }
        Ok(())
    }
}
