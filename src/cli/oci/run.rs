//! `run`: creates and starts; in the foreground waits, passes signals on and serves the terminal.

use super::arguments::{Arguments, Flag, switch};
use super::{Context, Verb, create, verb};
use crate::cli::console::Raw;
use brig::error::{Context as _, Kind, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::termios::{tcgetwinsize, tcsetwinsize};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

const FLAGS: [Flag; 11] = {
    let mut flags = [switch("keep", None, "do not remove the container when it has ended"); 11];
    let mut index = 0;
    while index < create::FLAGS.len() {
        flags[index] = create::FLAGS[index];
        index += 1;
    }
    flags[10] = switch("no-subreaper", None, "accepted and ignored");
    flags
};

pub(super) const RUN: Verb = Verb { enters: true, ..verb("run", "create and start a container", &FLAGS, run) };

fn run(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    let mut wish = create::creation(context, &arguments)?;
    wish.detached = arguments.is_on("detach");
    let signals = if wish.detached { None } else { Some(Signals::block()?) };
    let failed = |error: brig::error::Error| error.doing(format!("{} run failed", context.name));
    let mut created = context.containers.create(&id, &wish).map_err(failed)?;
    created.warnings.iter().for_each(|warning| context.log.warn(warning));
    context.log.debug_start(&created.notes, create::CREATED);
    let console = created.take_console();
    if let Some(Err(error)) = console.as_ref().map(|_| check_terminal()) {
        created.discard();
        return Err(failed(error));
    }
    let notify = match created.start() {
        Ok(notify) => notify,
        Err(error) => {
            created.discard();
            return Err(failed(error));
        }
    };
    let pid = created.pid();
    drop(created); // and its lock: other commands may read the state meanwhile
    let Some(signals) = signals else {
        notify.map_or(Ok(()), |notify| notify.pass_on(&open(pid)?, pid))?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(notify) = notify {
        let process = open(pid)?;
        // A thread passes the readiness notification on beside this wait. Nothing is cloned from here on.
        std::thread::spawn(move || notify.pass_on(&process, pid));
    }
    let status = serve(&signals, pid, console)?;
    if !arguments.is_on("keep") {
        context.containers.delete(&id, true)?.iter().for_each(|words| context.log.warn(words));
    }
    Ok(ExitCode::from(status))
}

/// The signals for the process inside, read one by one.
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks them. Processes started later unblock them for themselves.
    pub(super) fn block() -> Result<Signals> {
        let mut set = SigSet::all();
        // Fault signals and SIGPIPE are this process's own.
        for own in [Signal::SIGURG, Signal::SIGPIPE, Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE] {
            set.remove(own);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None).failing(Kind::Internal, || "take over the signals")?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .failing(Kind::Internal, || "take over the signals")
            .map(Signals)
    }
}

/// Waits for a child, passes signals on and copies between both terminals. Returns its exit status.
pub(super) fn serve(signals: &Signals, pid: i32, console: Option<OwnedFd>) -> Result<u8> {
    let step = || "wait for the process";
    let process = open(pid)?;
    let stdin = rustix::stdio::stdin();
    let raw = if console.is_some() && rustix::termios::isatty(stdin) { Some(Raw::enter()?) } else { None };
    resize(console.as_ref());
    // A write that waits for the program could wait for ever: the program may wait for its output to be read.
    if let Some(console) = &console {
        rustix::io::ioctl_fionbio(console, true).failing(Kind::Internal, step)?;
    }
    let (mut reads_input, mut ended) = (console.is_some(), false);
    let mut open = console.is_some();
    let mut typed = Vec::new();
    while !ended || open {
        let mut watched = vec![PollFd::new(&process, PollFlags::IN), PollFd::new(&signals.0, PollFlags::IN)];
        if ended {
            watched.clear(); // only its remaining output
        }
        let first = watched.len();
        if let (Some(console), true) = (&console, open) {
            let events = if typed.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            watched.push(PollFd::new(console, events));
            if reads_input && !ended && typed.is_empty() {
                watched.push(PollFd::new(&stdin, PollFlags::IN));
            }
        }
        match poll(&mut watched, None) {
            Err(Errno::INTR) => continue,
            other => other.failing(Kind::Lost, step)?,
        };
        let ready = |index: usize| watched.get(index).is_some_and(|each| !each.revents().is_empty());
        let (process_ready, signal_ready) = (first > 0 && ready(0), first > 0 && ready(1));
        let (output_ready, input_ready) = (ready(first), ready(first + 1));
        drop(watched);
        if signal_ready {
            pass(signals, &process, console.as_ref())?;
        }
        if input_ready {
            reads_input = read(stdin, &mut typed);
        }
        if let (Some(console), false) = (&console, typed.is_empty()) {
            // After an error no process reads the input any more.
            let written = write(console, &typed).unwrap_or(typed.len());
            typed.drain(..written);
        }
        if let (Some(console), true) = (&console, output_ready) {
            let mut output = Vec::new();
            // EIO: no process has the terminal open any more.
            open = read(console, &mut output) && print(&output);
        }
        ended |= process_ready;
    }
    drop(raw);
    let status = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED).failing(Kind::Lost, step)?;
    let code = status
        .and_then(|status| status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)));
    Ok(code.unwrap_or(255) as u8)
}

fn open(pid: i32) -> Result<OwnedFd> {
    let child = Pid::from_raw(pid).ok_or_else(|| brig::error::Error::new(Kind::Internal, "a process without a pid"))?;
    pidfd_open(child, PidfdFlags::empty()).failing(Kind::Lost, || "wait for the process")
}

fn pass(signals: &Signals, process: &OwnedFd, console: Option<&OwnedFd>) -> Result<()> {
    while let Ok(Some(info)) = signals.0.read_signal() {
        match Signal::try_from(info.ssi_signo as i32) {
            Ok(Signal::SIGCHLD) => {}
            Ok(Signal::SIGWINCH) if console.is_some() => resize(console),
            _ => brig::container::signal_process(process.as_fd(), info.ssi_signo as i32)?,
        }
    }
    Ok(())
}

/// Checks that one standard stream is a terminal: otherwise no input could reach the container's.
pub(super) fn check_terminal() -> Result<()> {
    use rustix::stdio::{stderr, stdin, stdout};
    if [stdin(), stdout(), stderr()].iter().any(rustix::termios::isatty) {
        return Ok(());
    }
    Err(brig::error::Error::new(Kind::Usage, "provided file is not a console")
        .hint("run it in a terminal, or with `terminal: false`, or with --detach and --console-socket"))
}

/// Gives the container's terminal the size of this one.
fn resize(console: Option<&OwnedFd>) {
    if let (Some(console), Ok(size)) = (console, tcgetwinsize(rustix::stdio::stdin())) {
        // A terminal works without a size.
        let _ = tcsetwinsize(console, size);
    }
}

/// Appends available bytes; `false` at the end.
fn read(from: impl AsFd, to: &mut Vec<u8>) -> bool {
    let mut bytes = [0_u8; 16384];
    match rustix::io::read(from, &mut bytes) {
        Ok(length @ 1..) => to.extend_from_slice(&bytes[..length]),
        Err(Errno::INTR | Errno::AGAIN) => {}
        Ok(0) | Err(_) => return false,
    }
    true
}

/// Returns how many bytes were written now.
fn write(to: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::io::write(to, bytes) {
        Err(Errno::INTR | Errno::AGAIN) => Ok(0),
        other => other,
    }
}

/// Writes to standard output, which another program may have made non-blocking. `false` after an error.
fn print(mut rest: &[u8]) -> bool {
    let stdout = rustix::stdio::stdout();
    while !rest.is_empty() {
        match write(stdout, rest) {
            Ok(0) => drop(poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None)),
            Ok(written) => rest = &rest[written..],
            Err(_) => return false,
        }
    }
    true
}
