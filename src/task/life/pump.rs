//! Copies between a caller's streams and a running task, with one thread and one poll(2).
//!
//! The caller's function makes output safe for a terminal. Input is read only when the other side has taken the last
//! piece. So a process that does not read stops neither its output nor a signal.

use super::hiding::Hiding;
use super::live::{Executed, Live, over};
use crate::error::{Context, Kind, Result};
use crate::files::is_ready_by;
use crate::sandbox::{Reply, Request};
use crate::task::records::follow::Follower;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// For output of an ended process: its child may hold the pipes for ever.
const DRAIN: Duration = Duration::from_secs(2);
/// The least time between two reports of output to the supervisor, which counts idle time.
const REPORT: Duration = Duration::from_millis(100);
/// Bytes of one read of input.
const CHUNK: usize = 4096;
/// Bytes of one read of output, and the reads after the drain: a pipe's largest capacity.
const OUTPUT: usize = 16 * 1024;
const LAST_READS: usize = (1 << 20) / OUTPUT;
/// Ctrl-P, Ctrl-Q: detach from a terminal without ending the process.
const LEAVE: [u8; 2] = [0x10, 0x11];

/// The caller's side.
pub trait Console {
    /// `error` is true for standard error.
    fn output(&mut self, error: bool, bytes: &[u8]);
    /// `None` at the end of input or without one.
    fn input(&self) -> Option<BorrowedFd<'_>>;
    /// Input has ended.
    fn input_ended(&mut self);
    /// Readable when [`Console::signals`] has something.
    fn signals_ready(&self) -> BorrowedFd<'_>;
    /// Signals to pass on, and the new size of the terminal if it has changed.
    fn signals(&mut self) -> (Vec<i32>, Option<(u16, u16)>);
}

/// How an attachment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The task has ended, with this status if it is known.
    Ended(Option<u8>),
    /// The caller has detached.
    Detached,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecEnd {
    /// With this status.
    Exited(u8),
    /// The time limit killed its process tree.
    TimedOut,
}

impl Executed {
    /// Returns when the process has ended.
    pub fn serve(mut self, console: &mut dyn Console) -> Result<ExecEnd> {
        let mut ended: Option<(ExecEnd, Instant)> = None;
        let mut reported: Option<Instant> = None;
        let mut pending = Vec::new();
        for target in [&self.terminal, &self.input].into_iter().flatten() {
            let flags = fcntl_getfl(target).and_then(|flags| fcntl_setfl(target, flags | OFlags::NONBLOCK));
            flags.failing(Kind::Internal, || "prepare the input")?;
        }
        loop {
            if let Some((status, since)) = ended {
                let drained = self.output.is_none() && self.error.is_none() && self.terminal.is_none();
                if drained || since.elapsed() >= DRAIN {
                    self.copy_rest(console)?;
                    if let Some(hiding) = &mut self.hiding {
                        for error in [false, true] {
                            console.output(error, &hiding.finish(error));
                        }
                    }
                    return Ok(status);
                }
            }
            let [signals, client, output, error, input] = self.wait_for_any(console, &pending, ended.is_some())?;
            if signals {
                self.pass_signals(console)?;
            }
            if (output || error) && reported.is_none_or(|at| at.elapsed() >= REPORT) {
                reported = Some(Instant::now());
                // The end of a sandbox is noticed below.
                let _ = self.client.send(&Request::Active);
            }
            if output {
                let source = if self.terminal.is_some() { &mut self.terminal } else { &mut self.output };
                copy_output(source, false, &mut self.hiding, console)?;
            }
            if error {
                copy_output(&mut self.error, true, &mut self.hiding, console)?;
            }
            if input {
                self.copy_input(console, &mut pending)?;
            }
            if client {
                match self.client.next()? {
                    Some((Reply::Exited(status), _)) => ended = Some((ExecEnd::Exited(status), Instant::now())),
                    Some((Reply::TimedOut, _)) => ended = Some((ExecEnd::TimedOut, Instant::now())),
                    Some(_) => {}
                    None if ended.is_some() => {}
                    None => return Err(over()),
                }
            }
        }
    }

    /// Copies what the pipes contain: writes to a slow reader may have taken the time of the drain.
    fn copy_rest(&mut self, console: &mut dyn Console) -> Result<()> {
        let output = if self.terminal.is_some() { &mut self.terminal } else { &mut self.output };
        for (source, error) in [(output, false), (&mut self.error, true)] {
            for _ in 0..LAST_READS {
                let open = source.as_ref();
                if !open.is_some_and(|open| is_ready_by(open, PollFlags::IN, Instant::now()).unwrap_or(false)) {
                    break;
                }
                copy_output(source, error, &mut self.hiding, console)?;
            }
        }
        Ok(())
    }

    /// In this order: signals, the client, output, error, input.
    fn wait_for_any(&self, console: &dyn Console, pending: &[u8], has_ended: bool) -> Result<[bool; 5]> {
        let output = self.terminal.as_ref().or(self.output.as_ref()).map(|end| (end.as_fd(), PollFlags::IN));
        let input = match self.terminal.as_ref().or(self.input.as_ref()).filter(|_| !has_ended) {
            Some(target) if !pending.is_empty() => Some((target.as_fd(), PollFlags::OUT)),
            Some(_) => console.input().map(|source| (source, PollFlags::IN)),
            None => None,
        };
        let all = [
            Some((console.signals_ready(), PollFlags::IN)),
            (!has_ended).then(|| (self.client.as_fd(), PollFlags::IN)),
            output,
            self.error.as_ref().map(|end| (end.as_fd(), PollFlags::IN)),
            input,
        ];
        ready(all, has_ended.then_some(Duration::from_millis(100)))
    }

    fn pass_signals(&mut self, console: &mut dyn Console) -> Result<()> {
        let (signals, size) = console.signals();
        if let (Some(terminal), Some((rows, columns))) = (&self.terminal, size) {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // A wrong size of a terminal is harmless.
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
        signals.into_iter().try_for_each(|signal| self.signal(signal))
    }

    fn copy_input(&mut self, console: &mut dyn Console, pending: &mut Vec<u8>) -> Result<()> {
        if pending.is_empty() {
            let mut buffer = [0_u8; CHUNK];
            pending.extend_from_slice(read_input(console, &mut buffer)?);
        }
        let target = self.terminal.as_ref().or(self.input.as_ref());
        let written = match target {
            Some(target) if !pending.is_empty() => rustix::io::write(target, pending),
            _ => Ok(0),
        };
        match written {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The input has ended, or the process has closed it. A terminal's end of input is a typed key.
            Ok(0) | Err(_) => {
                pending.clear();
                console.input_ended();
                self.input = None;
            }
            Ok(count) => drop(pending.drain(..count)),
        }
        Ok(())
    }
}

impl Live {
    /// Shows output and passes input on, until the task ends or the caller detaches (on a terminal with Ctrl-P Ctrl-Q).
    pub fn attach(&self, mut output: Follower, console: &mut dyn Console) -> Result<Left> {
        let client = self.client()?;
        let (is_terminal, takes_input) = client.attach()?;
        // A message for the supervisor; an empty one is the end of input.
        let mut pending: Option<Vec<u8>> = None;
        let mut buffer = vec![0_u8; 64 << 10];
        let mut is_over = false;
        let mut keys = Keys::default();
        output.changes()?;
        loop {
            // Keys and signals count beside a command that writes without a pause.
            let wait = match output.available(&mut buffer)? {
                None => return Ok(Left::Ended(None)),
                Some([]) => Duration::from_millis(200),
                Some(bytes) => {
                    console.output(false, bytes);
                    Duration::ZERO
                }
            };
            let source = console.input().filter(|_| takes_input && !is_over && pending.is_none());
            let all = [
                Some((console.signals_ready(), PollFlags::IN)),
                (!is_over).then(|| (client.as_fd(), PollFlags::IN)),
                Some((output.changes()?, PollFlags::IN)),
                pending.as_ref().filter(|_| !is_over).map(|_| (client.as_fd(), PollFlags::OUT)),
                source.map(|input| (input, PollFlags::IN)),
            ];
            let [signals, word, _, takes, input] = ready(all, Some(wait))?;
            if signals {
                let (signals, size) = console.signals();
                if let (true, Some((rows, columns))) = (is_terminal, size) {
                    client.send(&Request::Resize { rows, columns })?;
                }
                if !signals.is_empty() {
                    return Ok(Left::Detached);
                }
            }
            if word {
                is_over = client.next().is_ok_and(|word| word.is_none());
            }
            if takes && let Some(message) = pending.take() {
                is_over |= client.input(&message).is_err();
            }
            if input {
                let mut bytes = [0_u8; CHUNK];
                let bytes = read_input(console, &mut bytes)?;
                if bytes.is_empty() {
                    console.input_ended();
                }
                pending = match is_terminal {
                    false => Some(bytes.to_vec()),
                    true => match keys.passed(bytes) {
                        None => return Ok(Left::Detached),
                        Some(passed) => Some(passed).filter(|passed| !passed.is_empty()),
                    },
                };
            }
        }
    }
}

/// Finds [`LEAVE`].
#[derive(Debug, Default)]
struct Keys {
    /// The last key was the first of [`LEAVE`].
    begun: bool,
}

impl Keys {
    /// `None` to detach. The first key is held back until the next one decides.
    fn passed(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Vec::with_capacity(bytes.len() + 1);
        for &byte in bytes {
            if std::mem::take(&mut self.begun) {
                if byte == LEAVE[1] {
                    return None;
                }
                passed.push(LEAVE[0]);
            }
            if byte == LEAVE[0] {
                self.begun = true;
            } else {
                passed.push(byte);
            }
        }
        Some(passed)
    }
}

fn ready(all: [Option<(BorrowedFd<'_>, PollFlags)>; 5], limit: Option<Duration>) -> Result<[bool; 5]> {
    let mut waits: Vec<_> = all.iter().flatten().map(|(end, flags)| PollFd::from_borrowed_fd(*end, *flags)).collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut waits, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno).failing(Kind::Internal, || "wait for the task"),
    }
    let mut found = waits.iter().map(|wait| !wait.revents().is_empty());
    Ok(all.map(|each| each.is_some() && found.next().unwrap_or(false)))
}

fn copy_output(
    source: &mut Option<OwnedFd>,
    error: bool,
    hiding: &mut Option<Hiding>,
    console: &mut dyn Console,
) -> Result<()> {
    let Some(open) = source else { return Ok(()) };
    let mut buffer = [0_u8; OUTPUT];
    match rustix::io::read(&*open, &mut buffer) {
        // EIO of a terminal's master: no process has the other side open.
        Ok(0) | Err(Errno::IO) => *source = None,
        Ok(count) => match hiding {
            Some(hiding) => console.output(error, &hiding.pass(error, &buffer[..count])),
            None => console.output(error, &buffer[..count]),
        },
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(errno) => return Err(errno).failing(Kind::Internal, || "read output"),
    }
    Ok(())
}

fn read_input<'buffer>(console: &dyn Console, buffer: &'buffer mut [u8]) -> Result<&'buffer [u8]> {
    let Some(input) = console.input() else { return Ok(&[]) };
    // EIO: this process is in the background of its terminal. No input comes.
    let count = retry_on_intr(|| rustix::io::read(input, &mut *buffer)).unwrap_or(0);
    Ok(&buffer[..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_leave_and_every_other_key_arrives() {
        let check = |pieces: &[&[u8]], expected: Option<&[u8]>| {
            let mut keys = Keys::default();
            let passed = pieces.iter().map(|piece| keys.passed(piece)).collect::<Option<Vec<_>>>();
            assert_eq!(passed.map(|all| all.concat()).as_deref(), expected, "{pieces:?}");
        };
        check(&[b"ls\r"], Some(b"ls\r"));
        check(&[b"a\x10\x11b"], None);
        check(&[b"a\x10", b"\x11"], None);
        check(&[b"\x10", b"x\x11"], Some(b"\x10x\x11"));
        check(&[b"\x10\x10a"], Some(b"\x10\x10a"));
    }
}
