//! Signals to the supervisor, as messages that poll(2) can wait for.

use crate::error::{Context, Kind, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// Signals that a person or a service manager sends to end us, and the terminal's change of size.
pub(crate) struct Signals(SignalFd);

/// What a signal wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalKind {
    /// That we end.
    End,
    /// That the command's terminal gets the size of ours.
    Resized,
}

impl Signals {
    /// Takes them as messages from now on. Before the clone, so that none is lost; the command gets its own mask back.
    pub(crate) fn take() -> Result<Signals> {
        let step = || "take signals as messages";
        let wanted: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH].into_iter().collect();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&wanted), None).failing(Kind::Internal, step)?;
        SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Signals)
            .failing(Kind::Internal, step)
    }

    /// The next one that has come.
    pub(super) fn next(&self) -> Option<SignalKind> {
        let signal = self.0.read_signal().ok().flatten()?;
        Some(if signal.ssi_signo == Signal::SIGWINCH as u32 { SignalKind::Resized } else { SignalKind::End })
    }

    /// Whether one came that wants the end.
    pub(crate) fn wants_end(&self) -> bool {
        std::iter::from_fn(|| self.next()).fold(false, |found, came| found | (came == SignalKind::End))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
