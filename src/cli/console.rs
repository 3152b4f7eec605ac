//! Standard streams of verbs that attach to a running task: output made safe for a terminal, signals as messages. The
//! terminal in raw mode.

use super::output::Escaper;
use brig::error::{Context, Kind, Result};
use brig::task::Console;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

/// Standard input, output and error.
pub(super) struct Streams {
    signals: SignalFd,
    reads_input: bool,
    escapers: [Option<Escaper>; 2],
}

impl Streams {
    /// With `reads_input` standard input is passed on. With `is_terminal` the task's process has a terminal, whose
    /// bytes pass unchanged. Otherwise output for a terminal is escaped.
    pub(super) fn new(reads_input: bool, is_terminal: bool) -> Result<Streams> {
        let step = || "take signals as messages";
        let wanted: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH].into_iter().collect();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&wanted), None).failing(Kind::Internal, step)?;
        let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .failing(Kind::Internal, step)?;
        let escapers = [rustix::stdio::stdout(), rustix::stdio::stderr()]
            .map(|stream| (isatty(stream) && !is_terminal).then(Escaper::default));
        Ok(Streams { signals, reads_input, escapers })
    }
}

/// The size of our terminal.
pub(super) fn terminal_size() -> Option<(u16, u16)> {
    tcgetwinsize(rustix::stdio::stdin()).ok().map(|size| (size.ws_row, size.ws_col))
}

impl Console for Streams {
    fn output(&mut self, error: bool, bytes: &[u8]) {
        let escaped = self.escapers[usize::from(error)].as_mut().map(|escaper| escaper.escape(bytes));
        let bytes = escaped.as_deref().unwrap_or(bytes);
        // The reader of the output has gone; the task goes on.
        let _ = if error {
            std::io::stderr().write_all(bytes)
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        };
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.reads_input.then(rustix::stdio::stdin)
    }

    fn input_ended(&mut self) {
        self.reads_input = false;
    }

    fn signals_ready(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    fn signals(&mut self) -> (Vec<i32>, Option<(u16, u16)>) {
        let (mut signals, mut size) = (Vec::new(), None);
        while let Ok(Some(info)) = self.signals.read_signal() {
            if info.ssi_signo == Signal::SIGWINCH as u32 {
                size = terminal_size();
            } else {
                signals.push(info.ssi_signo as i32);
            }
        }
        (signals, size)
    }
}

/// The terminal in raw mode. Its drop restores the old mode.
pub(super) struct Raw(Termios);

impl Raw {
    /// Stops the terminal from interpreting keys: Ctrl-C is for the command inside.
    pub(super) fn enter() -> Result<Raw> {
        let step = || "prepare the terminal";
        let before = tcgetattr(rustix::stdio::stdin()).failing(Kind::Usage, step)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).failing(Kind::Usage, step)?;
        Ok(Raw(before))
    }
}

/// Ends what would hide or garble later lines (XTerm Control Sequences). That is an open string, the alternate screen,
/// margins, attributes, character sets, modes, and text below the cursor.
const RESET: &[u8] = b"\x1b\\\x1b[!p\x1b[?1047l\x1b7\x1b[r\x1b8\x1b[0m\x1b(B\x0f\x1b[?7h\x1b[?25h\
                       \x1b[?1000;1002;1003;1006;2004l\x1b[J";

/// Brig's own lines follow.
pub(super) fn reset_terminal() {
    // A closed terminal shows nothing.
    let _ = match isatty(rustix::stdio::stdout()) {
        true => rustix::io::write(rustix::stdio::stdout(), RESET),
        false => rustix::io::write(rustix::stdio::stderr(), RESET),
    };
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A closed terminal needs no restoration.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
