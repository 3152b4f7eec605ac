//! Signals to the supervisor, as messages for poll(2).

use crate::error::{Context, Kind, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// Signals that end brig, and the terminal's change of size.
pub(crate) struct Signals(SignalFd);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalKind {
    End,
    /// The service manager misses a sign of life (WatchdogSec=, systemd.service(5)).
    Watchdog,
    Resized,
}

impl Signals {
    /// Call this before the clone, so that no signal is lost; the command gets its own mask back.
    pub(crate) fn take() -> Result<Signals> {
        let step = || "take signals as messages";
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGABRT];
        let wanted: SigSet = ends.into_iter().chain([Signal::SIGWINCH]).collect();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&wanted), None).failing(Kind::Internal, step)?;
        SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Signals)
            .failing(Kind::Internal, step)
    }

    pub(super) fn next(&self) -> Option<SignalKind> {
        let signal = self.0.read_signal().ok().flatten()?;
        Some(match Signal::try_from(signal.ssi_signo as i32) {
            Ok(Signal::SIGWINCH) => SignalKind::Resized,
            Ok(Signal::SIGABRT) => SignalKind::Watchdog,
            _ => SignalKind::End,
        })
    }

    pub(crate) fn wants_end(&self) -> bool {
        std::iter::from_fn(|| self.next()).fold(false, |found, came| found | (came != SignalKind::Resized))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
