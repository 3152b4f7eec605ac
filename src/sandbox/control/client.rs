//! The client of the control socket.

use super::super::checkpoint::Checkpoint;
use super::super::report::Sample;
use super::wire::{Peer, Reply, Request};
use super::{NAME, address};
use crate::error::{Context, Error, Kind, Result};
use crate::files::read_memory;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Client(Peer);

impl Client {
    pub(crate) fn connect(directory: &Path) -> Result<Client> {
        let step = || format!("reach the sandbox of `{}`", directory.display());
        let folder = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::NotFound, step)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .failing(Kind::Internal, step)?;
        match connect(&socket, &address(&folder).failing(Kind::Store, step)?) {
            Ok(()) => Ok(Client(Peer::new(socket))),
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                Err(Error::new(Kind::State, "it is not running").hint("see `brig task ls`"))
            }
            Err(errno) => Err(errno).failing(Kind::Store, || format!("{}: {NAME}", step())),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        self.0.ask(request)?;
        match self.0.answer()? {
            Some((Reply::Failed(error), _)) => Err(error),
            Some((reply, _)) => Ok(reply),
            None => Err(over()),
        }
    }

    /// Waits for the answer.
    pub(crate) fn request(&self, request: &Request) -> Result<()> {
        self.ask(request).map(|_| ())
    }

    /// Answers, descriptors, start and end come as [`Client::next`].
    pub(crate) fn send(&self, request: &Request) -> Result<()> {
        self.0.ask(request)
    }

    pub(crate) fn checkpoint(&self, name: Option<String>) -> Result<Checkpoint> {
        match self.ask(&Request::Checkpoint { name })? {
            Reply::Checkpoint(made) => Ok(made),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn stats(&self) -> Result<Sample> {
        match self.ask(&Request::Stats)? {
            Reply::Stats(sample) => Ok(*sample),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        match self.ask(&Request::Processes)? {
            Reply::Processes(processes) => Ok(processes),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        match self.ask(&Request::Environment)? {
            Reply::Environment(environment) => Ok(environment),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn values(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.0.ask(&Request::Values)?;
        let memory = match self.0.answer()? {
            Some((Reply::Values, Some(memory))) => memory,
            Some((Reply::Failed(error), _)) => return Err(error),
            Some((other, _)) => return Err(unexpected(&other)),
            None => return Err(over()),
        };
        serde_json::from_slice(&read_memory(&memory)?).map_err(|cause| Error::new(Kind::Lost, cause.to_string()))
    }

    /// This client's bytes become the command's input. Returns whether it has a terminal, and takes input.
    pub(crate) fn attach(&self) -> Result<(bool, bool)> {
        match self.ask(&Request::Attach)? {
            Reply::Attached { terminal, input } => Ok((terminal, input)),
            other => Err(unexpected(&other)),
        }
    }

    /// An empty slice ends the command's input.
    pub(crate) fn input(&self, bytes: &[u8]) -> Result<()> {
        self.0.input(bytes).failing(Kind::Lost, || "pass input on")
    }

    /// `None` when the sandbox is gone.
    pub(crate) fn next(&self) -> Result<Option<(Reply, Option<OwnedFd>)>> {
        self.0.answer()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn over() -> Error {
    Error::new(Kind::State, "it has ended meanwhile").hint("see `brig task show ID`")
}

fn unexpected(reply: &Reply) -> Error {
    Error::new(Kind::Lost, format!("an answer to another question: {reply:?}")).hint("use one version of brig for both")
}
