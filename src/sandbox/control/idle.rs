//! The control socket before the sandbox exists: serves requests to end, and refuses all others.

use super::super::signals::Signals;
use super::wire::{ClientMessage, Reply, Request};
use super::{Caller, Connected, Control};
use crate::error::{Context, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    Nothing,
    Cancelled,
}

/// Waits until `other` is readable, a client sends a request, or the time is up.
pub(crate) fn idle(control: &mut Control, signals: &Signals, other: BorrowedFd<'_>, limit: Duration) -> Result<Idle> {
    let mut waits: Vec<_> = [other, signals.as_fd(), control.listener.as_fd()]
        .into_iter()
        .chain(control.clients.iter().map(|client| client.peer.as_fd()))
        .chain(control.caller.iter().map(AsFd::as_fd))
        .map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN))
        .collect();
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut waits, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno).failing(Kind::Internal, || "wait for a turn"),
    }
    let ready: Vec<bool> = waits.iter().skip(3).map(|wait| !wait.revents().is_empty()).collect();
    drop(waits);
    let is_cancelled = signals.wants_end() || control.caller.as_ref().is_some_and(Caller::has_ended);
    let mut found = if is_cancelled { Idle::Cancelled } else { Idle::Nothing };
    for (client, _) in control.clients.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
        if answer_early_request(client) == Idle::Cancelled {
            found = Idle::Cancelled;
        }
    }
    control.clients.retain(|client| !client.gone);
    control.accept();
    Ok(found)
}

impl Control {
    /// Whether a client asks, or the caller has ended, in a task without a sandbox. Other requests wait for the
    /// sandbox.
    pub(crate) fn is_asked_to_end(&mut self) -> bool {
        self.accept();
        let asks = |client: &&mut Connected| client.peer.peek().is_some_and(|request| is_end(&request));
        let found = self
            .clients
            .iter_mut()
            .filter(asks)
            .fold(false, |found, client| found | (answer_early_request(client) == Idle::Cancelled));
        self.forget();
        found || self.caller.as_ref().is_some_and(Caller::has_ended)
    }
}

fn is_end(request: &Request) -> bool {
    matches!(request, Request::Stop { .. } | Request::Kill { signal: 9 | 15 | 2 })
}

fn answer_early_request(client: &mut Connected) -> Idle {
    let reply = match client.peer.receive() {
        Ok(Some(ClientMessage::Request(request))) if is_end(&request) => {
            client.gone |= client.peer.reply(&Reply::Done, None).is_err();
            return Idle::Cancelled;
        }
        Ok(Some(_)) => {
            let error = Error::new(Kind::State, "it has not started: it waits for its turn");
            client
                .peer
                .reply(&Reply::Failed(error.hint("try again when `brig task events -f ID` shows `running`")), None)
        }
        Err(error) if error.errno() == Some(libc::EAGAIN) => Ok(()),
        Ok(None) | Err(_) => Err(rustix::io::Errno::PIPE),
    };
    client.gone |= reply.is_err();
    Idle::Nothing
}
