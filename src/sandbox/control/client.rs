//! The client of the control socket.

use super::super::checkpoint::Checkpoint;
use super::super::job_limits::JobLimits;
use super::super::report::Sample;
use super::wire::{Exec, Peer, Reply, Request};
use super::{NAME, address};
use crate::egress::Rule;
use crate::error::{Context, Error, Kind, Result};
use crate::files::read_memory;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

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

    fn done(&self, request: &Request) -> Result<()> {
        self.ask(request).map(|_| ())
    }

    pub(crate) fn stop(&self, grace: Option<Duration>, drain: Option<Duration>) -> Result<()> {
        self.done(&Request::Stop { grace, drain })
    }

    pub(crate) fn kill(&self, signal: i32) -> Result<()> {
        self.done(&Request::Kill { signal })
    }

    /// The answer is among the later ones.
    pub(crate) fn kill_later(&self, signal: i32) -> Result<()> {
        self.0.ask(&Request::Kill { signal })
    }

    pub(crate) fn report_output(&self) -> Result<()> {
        self.0.ask(&Request::Active)
    }

    pub(crate) fn pause(&self) -> Result<()> {
        self.done(&Request::Pause)
    }

    pub(crate) fn reach(&self, rule: &Rule, allow: bool) -> Result<()> {
        self.done(&Request::Reach { rule: rule.to_string(), allow })
    }

    pub(crate) fn unpause(&self) -> Result<()> {
        self.done(&Request::Unpause)
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

    /// The answer is among the later ones.
    pub(crate) fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.0.ask(&Request::Resize { rows, columns })
    }

    pub(crate) fn stop_job(&self, job: u32, grace: Option<Duration>) -> Result<()> {
        self.done(&Request::StopJob { job, grace })
    }

    pub(crate) fn kill_job(&self, job: u32, signal: i32) -> Result<()> {
        self.done(&Request::KillJob { job, signal })
    }

    /// Descriptors, start and end come as [`Client::next`].
    pub(crate) fn exec(&self, exec: Exec) -> Result<()> {
        self.0.ask(&Request::Exec(exec))
    }

    pub(crate) fn exec_limited(&self, exec: Exec, limits: JobLimits) -> Result<()> {
        self.0.ask(&Request::LimitedJob { exec, limits })
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
