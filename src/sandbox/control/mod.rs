//! Control of a running sandbox: a private socket in its record, served by the supervisor's loop.
//!
//! The kernel identifies the client (SO_PEERCRED): the same user or the machine's root. Each request gets one reply, a
//! new process also its descriptors and its end. No request weakens the sandbox. A slow client is dropped, so that it
//! does not stop the supervisor.

mod caller;
mod client;
mod idle;
mod jobs;
mod session;
mod wire;

pub use caller::Caller;
pub(crate) use client::Client;
pub(crate) use idle::{Idle, idle};
pub(super) use jobs::Job;
pub(super) use session::Session;
pub(super) use wire::ClientMessage;
pub(crate) use wire::Request;
pub(crate) use wire::{Exec, Reply};

use super::streams::Stream;
use crate::error::{Context, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::Peer;

const NAME: &str = "control.sock";
/// A further client waits to be accepted, until the oldest one without a request is dropped.
const CLIENTS: usize = MOST_SESSIONS + 32;
/// Clients with a process. The others can still stop the sandbox, and ask for its state.
const MOST_SESSIONS: usize = 64;
/// A client that has asked nothing for this time waits for the end, as `brig task wait`, and connects again.
const SILENT: Duration = Duration::from_secs(1);
const MOST_RELEASED: usize = 64;

#[derive(Debug)]
pub(crate) struct Control {
    listener: OwnedFd,
    path: PathBuf,
    pub(super) clients: Vec<Connected>,
    ending: Vec<Session>,
    /// Ended processes whose background processes live on without a client.
    released: Vec<Session>,
    jobs: Vec<jobs::Job>,
    last_job: u32,
    /// Its end ends the sandbox.
    caller: Option<Caller>,
}

#[derive(Debug)]
pub(super) struct Connected {
    pub(super) peer: Peer,
    /// Whether its bytes are the command's input.
    pub(super) is_attached: bool,
    pub(super) session: Option<Session>,
    pub(super) gone: bool,
    /// The time of the connection, until the first request.
    pub(super) silent_since: Option<Instant>,
}

impl Connected {
    /// Drops a client that does not take the reply.
    pub(super) fn answer(&mut self, reply: &Reply) {
        self.gone |= self.peer.reply(reply, None).is_err();
    }

    fn is_silent(&self) -> bool {
        self.silent_since.is_some_and(|since| since.elapsed() >= SILENT)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Listener,
    CallerEnd,
    Client(usize),
    Start(usize),
    End(usize),
    JobOutput(usize, Stream),
    JobEnd(usize),
}

impl Control {
    /// Makes the socket for this user alone.
    pub(crate) fn open(directory: &Path) -> Result<Control> {
        let step = || format!("make the control socket in `{}`", directory.display());
        let folder = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::Store, step)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).failing(Kind::Store, step)?;
        // Before it has a name: it never has one with more rights.
        rustix::fs::fchmod(&listener, Mode::from_raw_mode(0o600)).failing(Kind::Store, step)?;
        bind(&listener, &address(&folder).failing(Kind::Store, step)?).failing(Kind::Store, step)?;
        listen(&listener, 16).failing(Kind::Store, step)?;
        Ok(Control {
            listener,
            path: directory.join(NAME),
            clients: Vec::new(),
            ending: Vec::new(),
            released: Vec::new(),
            jobs: Vec::new(),
            last_job: 0,
            caller: None,
        })
    }

    pub(crate) fn end_with(&mut self, caller: Option<Caller>) {
        self.caller = caller;
    }

    pub(super) fn forget_caller(&mut self) {
        self.caller = None;
    }

    pub(super) fn accept(&mut self) {
        while self.clients.len() < CLIENTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { return };
            let allowed = sockopt::socket_peercred(&socket).is_ok_and(|who| is_allowed(who.uid.as_raw()));
            if allowed {
                self.clients.push(Connected {
                    peer: Peer::new(socket),
                    is_attached: false,
                    session: None,
                    gone: false,
                    silent_since: Some(Instant::now()),
                });
            }
        }
        // The next call takes its place: clients are removed when all ready ones were served.
        if let Some(client) = self.clients.iter_mut().find(|client| client.is_silent()) {
            client.gone = true;
        }
    }

    fn can_accept(&self) -> bool {
        self.clients.len() < CLIENTS || self.clients.iter().any(Connected::is_silent)
    }

    /// Reads attached clients only if the command `takes_input`.
    pub(super) fn waits<'own>(&'own self, takes_input: bool) -> Vec<(Slot, PollFd<'own>)> {
        let mut waits = Vec::new();
        let mut add = |slot, descriptor: BorrowedFd<'own>| {
            waits.push((slot, PollFd::from_borrowed_fd(descriptor, PollFlags::IN)))
        };
        if self.can_accept() {
            add(Slot::Listener, self.listener.as_fd());
        }
        self.caller.iter().for_each(|caller| add(Slot::CallerEnd, caller.as_fd()));
        for (index, client) in self.clients.iter().enumerate() {
            if takes_input || !client.is_attached {
                add(Slot::Client(index), client.peer.as_fd());
            }
            let Some(session) = &client.session else { continue };
            match session.channel() {
                Some(channel) => add(Slot::Start(index), channel),
                None => session.pidfd().into_iter().for_each(|pidfd| add(Slot::End(index), pidfd)),
            }
        }
        self.job_waits().for_each(|(slot, end)| add(slot, end));
        waits
    }

    /// Call this before the wait for pid 1: the kernel keeps it until all others are reaped.
    pub(crate) fn end(&mut self) {
        for client in &mut self.clients {
            let Some(mut session) = client.session.take() else { continue };
            session.end();
            // A client that does not take its status is gone.
            client.gone |= session.report_end(&client.peer).is_err();
        }
        self.end_jobs();
        std::mem::take(&mut self.released).iter().for_each(Session::end);
        for mut session in std::mem::take(&mut self.ending) {
            // A reaped process has ended already.
            let _ = session.wait();
        }
    }

    /// Ends the processes of clients that are gone.
    pub(super) fn forget(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.gone) {
            let Some(session) = client.session.take() else { continue };
            if session.is_released() {
                self.released.push(session);
            } else {
                session.end();
                self.ending.push(session);
            }
        }
        self.released.retain(|session| !session.is_gone());
        self.clients.retain(|client| !client.gone);
        self.ending.retain(|session| !session.is_gone());
    }

    pub(super) fn has_room_for_session(&self) -> Result<()> {
        if self.clients.iter().filter(|client| client.session.is_some()).count() < MOST_SESSIONS {
            return Ok(());
        }
        let words = format!("{MOST_SESSIONS} processes of clients run, the most of one sandbox");
        Err(Error::new(Kind::Busy, words).hint("end some of them, or begin jobs: brig task exec --detach"))
    }

    /// Lets background processes of the client's ended process outlive the client.
    pub(super) fn release(&mut self, index: usize) -> Result<()> {
        let own = self.clients.get(index).and_then(|client| client.session.as_ref());
        if own.is_some_and(Session::is_gone) {
            return Ok(()); // it has left nothing in the background
        }
        let released =
            self.clients.iter().filter_map(|client| client.session.as_ref()).filter(|each| each.is_released());
        if released.count() + self.released.len() >= MOST_RELEASED {
            let words =
                format!("{MOST_RELEASED} processes have left others in the background, the most of one sandbox");
            return Err(Error::new(Kind::State, words).hint("end some of them, or begin jobs: brig task exec --detach"));
        }
        match self.clients.get_mut(index).and_then(|client| client.session.as_mut()) {
            Some(session) => session.release(),
            None => Err(Error::new(Kind::State, "this connection has no process").hint("send `exec` first")),
        }
    }

    pub(super) fn is_active(&self) -> bool {
        let mut sessions = self.clients.iter().filter_map(|client| client.session.as_ref());
        sessions.any(Session::is_activity) || self.jobs.iter().any(jobs::Job::is_activity)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
        // A remaining socket is removed with the task.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_allowed(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Leads through the folder's descriptor: a socket's path has at most 107 bytes (unix(7)).
fn address(folder: &OwnedFd) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{NAME}", folder.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_its_users_alone_and_goes_with_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        // Deeper than a socket's address allows.
        let deep = directory.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let control = Control::open(&deep).unwrap();
        let path = deep.join(NAME);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Client::connect(&deep).is_ok());
        drop(control);
        assert!(!path.exists());
        assert!(Client::connect(&deep).is_err());
        assert!(!is_allowed(12_345_678) && is_allowed(0));
    }
}
