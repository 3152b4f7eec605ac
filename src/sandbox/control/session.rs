//! A client's process in a running sandbox, until its end.

use super::super::refusals::Refusals;
use super::super::visitor;
use super::wire::{Exec, Peer, Reply};
use crate::container::{Entered, Running, Visit};
use crate::error::{Context, Error, Kind, Result};
use crate::process::{Message, Stdio, Terminal};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd};

/// A process and its state.
#[derive(Debug)]
pub(in crate::sandbox) struct Session {
    entered: Entered,
    /// Whether its program has started or failed to.
    is_settled: bool,
    /// Whether the process has ended. Its descendants live until the client is gone: they may still have output.
    has_ended: bool,
    /// Whether it copies files, which counts as activity of the task.
    copies: bool,
}

impl Session {
    /// Starts it, and sends the client its ends of the pipes.
    pub(in crate::sandbox) fn start(running: &Running, exec: Exec, peer: &Peer) -> Result<Session> {
        let step = || "make pipes for the process";
        let mut ours = Vec::new();
        let stdio = match exec.terminal {
            Some((rows, columns)) => Stdio::Terminal(Terminal { rows, columns, passes_newlines: false }),
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
        let session =
            Session { entered: running.enter(visit)?, is_settled: false, has_ended: false, copies: exec.errand };
        for (number, end) in ours {
            peer.reply(&Reply::Stream(Some(number)), Some(end.as_fd())).failing(Kind::Lost, || "answer a client")?;
        }
        Ok(session)
    }

    /// Readable for the messages of its start; `None` after it.
    pub(in crate::sandbox) fn channel(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_settled).then(|| self.entered.channel())
    }

    /// Readable when it ends; `None` after it.
    pub(in crate::sandbox) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_ended).then(|| self.entered.pidfd())
    }

    /// Whether it copies files now.
    pub(in crate::sandbox) fn is_copying(&self) -> bool {
        self.copies && !self.has_ended
    }

    /// Kills the process and its descendants, without waiting.
    pub(in crate::sandbox) fn end(&self) {
        // A process that cannot be killed here ends with the sandbox.
        let _ = self.entered.end();
    }

    /// Whether the process and its tree are gone after [`Session::end`].
    pub(in crate::sandbox) fn is_gone(&self) -> bool {
        self.entered.is_gone()
    }

    pub(in crate::sandbox) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        if self.has_ended { Ok(()) } else { self.entered.signal(signal) }
    }

    /// Passes the next message on. A filter's listener is for the supervisor.
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

    /// Waits for the end of the process.
    pub(in crate::sandbox) fn wait(&self) {
        // A reaped process has ended already.
        let _ = self.entered.reap();
    }

    /// Waits for its end and sends the client its status, once.
    pub(in crate::sandbox) fn report_end(&mut self, peer: &Peer) -> Result<(), Errno> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        match self.entered.reap() {
            Ok(status) => peer.reply(&Reply::Exited(status), None),
            Err(error) => peer.reply(&Reply::Failed(error), None),
        }
    }
}
