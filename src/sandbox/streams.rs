//! The command's input and output: read without blocking the supervisor, passed on, counted.

use super::job_limits::JobLimits;
use super::outcome::Stopped;
use crate::egress::Renewal;
use crate::error::{Context, Kind, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The largest pipe that an ordinary user can make, in bytes (pipe(7), `pipe-max-size`): what an end may leave unread.
pub(super) const LARGEST_PIPE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, or the terminal.
    Output,
    Error,
}

#[derive(Debug)]
pub(crate) enum Notice {
    Tick,
    State(&'static str),
    /// The sandbox was asked to end, or killed, for this reason.
    Stopping(String),
    Limit(super::outcome::LimitHit),
    Usage(super::report::Sample),
    /// A host was reached or refused.
    Egress(crate::egress::Row),
    Health(super::health::Health),
    /// A user runs this command in it.
    Exec(Vec<String>),
    /// Bytes of the command's progress descriptor.
    Progress(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    /// By itself, or by a signal.
    Exited,
    TimedOut,
    /// At its own memory limit.
    Memory,
    /// At its own limit on processor time.
    CpuTime,
    /// A client stopped it.
    Stopped,
    WithTask,
}

#[derive(Debug)]
pub(crate) enum JobEvent<'bytes> {
    Started { command: Vec<String>, timeout: Option<Duration>, limits: JobLimits },
    Output(Stream, &'bytes [u8]),
    Ended(u8, JobEnd),
}

/// The pipe of a command's progress, one JSON object a line.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(super) ours: OwnedFd,
    pub(super) theirs: OwnedFd,
}

impl Progress {
    /// An early call gives the command a small descriptor number.
    pub(crate) fn open() -> Result<Progress> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, || "make a pipe for events")?;
        fcntl_setfl(&ours, OFlags::NONBLOCK).failing(Kind::Internal, || "make a pipe for events")?;
        Ok(Progress { ours, theirs })
    }
}

pub(crate) trait Sink {
    fn notice(&mut self, _notice: Notice) -> Result<()> {
        Ok(())
    }

    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()>;

    /// Never fails: a job's log must not end the task.
    fn job(&mut self, _job: u32, _event: JobEvent<'_>) {}

    /// Called regularly while the command runs, with the directory of its secrets once it exists. Returns updates of
    /// the broker's secrets.
    fn tick(&mut self, _secrets: Option<BorrowedFd<'_>>) -> Result<Vec<Renewal>> {
        Ok(Vec::new())
    }

    /// Called like [`Sink::tick`].
    fn must_end(&mut self) -> Option<Stopped> {
        None
    }

    /// The values hidden in all output, by name.
    fn values(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// A descriptor that must be writable before more of this stream is read: a slow reader slows the command, not the
    /// supervisor.
    fn gate(&self, _stream: Stream) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The gate is open. Until this returns `true` (nothing kept), no more is read.
    fn pass_kept_output(&mut self, _stream: Stream) -> bool {
        true
    }
}

/// Bytes of the first read, and of the largest: a pipe's capacity.
const LEAST_READ: usize = 4096;
const MOST_READ: usize = 64 << 10;

/// The supervisor's ends of the command's streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
    input: Option<OwnedFd>,
    /// Whether output is a terminal's master, which also takes input.
    terminal: bool,
    pending_input: Vec<u8>,
    /// The buffer is doubled each time that a read has filled it.
    buffer: Vec<u8>,
    pub count: u64,
}

/// The command's ends.
pub(super) struct Ends {
    pub input: OwnedFd,
    pub output: OwnedFd,
    pub error: OwnedFd,
}

impl Streams {
    /// `with_input` copies standard input. The descriptor itself is never passed: it could be a directory or a device
    /// of the host.
    pub(super) fn pipes(with_input: bool) -> Result<(Streams, Ends)> {
        let step = || "make pipes for the command";
        let pipe = || pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step);
        let (output, theirs_output) = pipe()?;
        let (error, theirs_error) = pipe()?;
        let (theirs_input, input) = if with_input {
            let (theirs, ours) = pipe()?;
            (theirs, Some(ours))
        } else {
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            (null.failing(Kind::Internal, step)?, None)
        };
        for end in [Some(&output), Some(&error), input.as_ref()].into_iter().flatten() {
            fcntl_setfl(end, OFlags::NONBLOCK).failing(Kind::Internal, step)?;
        }
        let streams = Streams { output: Some(output), error: Some(error), input, ..Streams::default() };
        Ok((streams, Ends { input: theirs_input, output: theirs_output, error: theirs_error }))
    }

    /// A terminal's master comes later, by [`Streams::adopt`].
    pub(super) fn none() -> Streams {
        Streams { terminal: true, ..Streams::default() }
    }

    pub(super) fn adopt(&mut self, master: OwnedFd) -> Result<()> {
        fcntl_setfl(&master, OFlags::NONBLOCK).failing(Kind::Internal, || "watch the terminal")?;
        self.input = Some(master.try_clone().failing(Kind::Internal, || "watch the terminal")?);
        self.output = Some(master);
        Ok(())
    }

    pub(super) fn master(&self) -> Option<&OwnedFd> {
        self.output.as_ref().filter(|_| self.terminal)
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(super) fn takes_input(&self) -> bool {
        self.input.is_some()
    }

    pub(super) fn ended(&self) -> bool {
        self.output.is_none() && self.error.is_none()
    }

    pub(super) fn wants_input(&self) -> bool {
        self.input.is_some() && self.pending_input.is_empty()
    }

    /// An empty slice ends the input.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.input = None;
        } else if self.input.is_some() {
            self.pending_input.extend_from_slice(bytes);
            self.flush_input();
        }
    }

    fn flush_input(&mut self) {
        let Some(input) = &self.input else { return };
        match rustix::io::write(input, &self.pending_input) {
            Ok(written) => drop(self.pending_input.drain(..written)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The command closed its input: drop the rest.
            Err(_) => {
                self.input = None;
                self.pending_input.clear();
            }
        }
    }

    pub(super) fn watch<'own>(
        &'own self,
        sink: &'own dyn Sink,
        waits: &mut Vec<(Slot, PollFd<'own>)>,
        blocked: [bool; 2],
    ) {
        for (stream, end, blocked) in
            [(Stream::Output, &self.output, blocked[0]), (Stream::Error, &self.error, blocked[1])]
        {
            let Some(end) = end else { continue };
            match sink.gate(stream).filter(|_| blocked) {
                Some(gate) => waits.push((Slot::Gate(stream), PollFd::from_borrowed_fd(gate, PollFlags::OUT))),
                None => waits.push((Slot::Read(stream), PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN))),
            }
        }
        if let Some(input) = self.input.as_ref().filter(|_| !self.pending_input.is_empty()) {
            waits.push((Slot::Write, PollFd::from_borrowed_fd(input.as_fd(), PollFlags::OUT)));
        }
    }

    /// Returns how many bytes went to the sink.
    pub(super) fn serve(&mut self, slot: Slot, sink: &mut dyn Sink) -> Result<usize> {
        match slot {
            Slot::Write => {
                self.flush_input();
                Ok(0)
            }
            Slot::Gate(_) => Ok(0),
            Slot::Read(stream) => self.read(stream, sink),
        }
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn Sink) -> Result<usize> {
        let end = match stream {
            Stream::Output => &mut self.output,
            Stream::Error => &mut self.error,
        };
        let Some(open) = end else { return Ok(0) };
        if self.buffer.is_empty() {
            self.buffer.resize(LEAST_READ, 0);
        }
        match rustix::io::read(&*open, &mut self.buffer) {
            // EIO of a terminal's master: no process has the other side open.
            Ok(0) | Err(Errno::IO) => {
                *end = None;
                Ok(0)
            }
            Ok(count) => {
                self.count += count as u64;
                sink.take(stream, &self.buffer[..count])?;
                if count == self.buffer.len() && count < MOST_READ {
                    self.buffer.resize(2 * count, 0);
                }
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno).failing(Kind::Internal, || "read the command's output"),
        }
    }

    /// Reads what the pipes contain, whatever the sink's reader takes. A process of another sandbox may have received a
    /// pipe through a shared folder, and never stop writing.
    pub(super) fn drain(&mut self, sink: &mut dyn Sink) -> Result<()> {
        for stream in [Stream::Output, Stream::Error] {
            let most = self.count + LARGEST_PIPE as u64;
            while self.count < most && self.read(stream, sink)? > 0 {}
        }
        Ok(())
    }

    /// Later output is lost.
    pub(super) fn close(&mut self) {
        self.output = None;
        self.error = None;
        self.input = None;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Read(Stream),
    /// The sink takes bytes again.
    Gate(Stream),
    /// The command takes input again.
    Write,
}
