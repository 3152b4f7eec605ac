//! One process that somebody has started in a running sandbox, until its end.

use super::super::visitor;
use super::wire::{Exec, Peer, Reply};
use crate::container::{Entered, Running, Visit};
use crate::error::{Context, Error, Kind, Result};
use crate::process::{Message, Stdio, Terminal};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd};

/// A process and how far it has come.
#[derive(Debug)]
pub(super) struct Session {
    entered: Entered,
    /// Whether its program has taken over, or never will.
    is_settled: bool,
}

impl Session {
    /// Starts it, and gives its ends of the pipes to who asked.
    pub(super) fn start(running: &Running, exec: Exec, peer: &Peer) -> Result<Session> {
        let step = || "make pipes for the process";
        let mut ours = Vec::new();
        let stdio = match exec.terminal {
            Some((rows, columns)) => Stdio::Terminal(Terminal { rows, columns }),
            None => {
                let pipe = || pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step);
                let ((input, to_it), (of_it, output), (of_it_too, error)) = (pipe()?, pipe()?, pipe()?);
                ours.extend([(0, to_it), (1, of_it), (2, of_it_too)]);
                Stdio::Descriptors { input, output, error }
            }
        };
        let command = if exec.errand { vec!["brig-files".into()] } else { exec.command };
        let visit = Visit {
            command,
            environment: exec.environment,
            directory: exec.directory,
            errand: exec.errand.then_some(visitor::serve as crate::process::Errand),
            stdio,
        };
        let session = Session { entered: running.enter(visit)?, is_settled: false };
        for (number, end) in ours {
            peer.reply(&Reply::Stream(Some(number)), Some(end.as_fd())).failing(Kind::Lost, || "answer a client")?;
        }
        Ok(session)
    }

    /// What to wait for: its first words, then its end.
    pub(super) fn channel(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_settled).then(|| self.entered.channel())
    }

    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.entered.pidfd()
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        self.entered.signal(signal)
    }

    /// Passes its next word on.
    pub(super) fn hear(&mut self, peer: &Peer) -> Result<(), Errno> {
        match self.entered.receive() {
            Ok(Some(Message::Console(master))) => peer.reply(&Reply::Stream(None), Some(master.as_fd())),
            Ok(None) => {
                self.is_settled = true;
                peer.reply(&Reply::Started, None)
            }
            Ok(Some(Message::Failed(error))) | Err(error) => {
                self.is_settled = true;
                peer.reply(&Reply::Failed(error), None)
            }
            Ok(Some(other)) => {
                self.is_settled = true;
                let error = Error::new(Kind::Lost, format!("it said something out of turn: {other:?}"));
                peer.reply(&Reply::Failed(error), None)
            }
        }
    }

    /// Its status, when it has ended.
    pub(super) fn reap(&self) -> Result<u8> {
        self.entered.reap()
    }
}
