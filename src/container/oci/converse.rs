//! The parent's answers to a process, from its birth to its program.

use super::record::Record;
use super::socket;
use crate::error::{Context, Error, Kind, Result};
use crate::hooks;
use crate::net::{self, Route};
use crate::ns::{self, Namespaces};
use crate::process::{self, Message, Spawned};
use crate::spec::config::Config;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::state::{State, Status};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, prlimit};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

#[derive(Default)]
pub(super) struct Handed {
    /// The terminal's master, unless a console socket got it.
    pub console: Option<OwnedFd>,
    /// The root directory of the capped disk.
    pub scratch: Option<OwnedFd>,
    /// See [`Message::Network`].
    pub network: Vec<OwnedFd>,
}

pub(super) struct Answers<'a> {
    pub config: &'a Config,
    pub rlimits: &'a [(Resource, Rlimit)],
    pub console_socket: Option<&'a Path>,
    /// For hooks and a listener.
    pub record: &'a Record,
    pub status: Status,
    /// Runs createContainer hooks beside a container that joins a PID namespace.
    pub joins_processes: bool,
}

impl Answers<'_> {
    /// Until init is ready (`true`) or `exec`'s program runs.
    ///
    /// # Errors
    /// Those of the process, or of an answer. The process may still run.
    pub(super) fn answer_all(&self, spawned: &mut Spawned) -> Result<(Handed, bool)> {
        let mut handed = Handed::default();
        loop {
            match spawned.receive()? {
                Some(Message::Hooks) => {
                    self.run_hooks(spawned.pid)?;
                    spawned.go()?;
                }
                Some(Message::Born(pidfd)) => spawned.succeed(pidfd)?,
                Some(Message::Limits) => {
                    limit(spawned.pid, self.rlimits)?;
                    spawned.go()?;
                }
                Some(Message::Console(master)) => match self.console_socket {
                    Some(path) => socket::send_console(path, &master)?,
                    None => handed.console = Some(master),
                },
                Some(Message::Scratch(root)) => handed.scratch = Some(root),
                Some(Message::Network(connection)) => handed.network.push(connection),
                Some(Message::Listener(number)) => {
                    let listener = pidfd_getfd(spawned.pidfd(), number, PidfdGetfdFlags::empty())
                        .failing(Kind::Seccomp, || "fetch the filter's listener")?;
                    if let Some(profile) = &self.config.linux.seccomp {
                        // The state is of the container, also for the filter of `exec`.
                        let state = self.record.state(self.status);
                        socket::send_listener(profile, &listener, spawned.pid, &state)?;
                    }
                    spawned.go()?;
                }
                Some(Message::Ready) => return Ok((handed, true)),
                None => return Ok((handed, false)),
                Some(Message::Failed(error)) => return Err(error),
                Some(other) => {
                    return Err(Error::new(Kind::Lost, format!("the process sent an unexpected message: {other:?}")));
                }
            }
        }
    }

    fn run_hooks(&self, pid: i32) -> Result<()> {
        let state = self.record.state(self.status);
        run_hooks_of_runtime(self.config, &state)?;
        if self.joins_processes {
            process::beside(pid, || hooks::run("createContainer", &self.config.hooks.create_container, &state))?;
        }
        Ok(())
    }
}

pub(super) fn run_hooks_of_runtime(config: &Config, state: &State) -> Result<()> {
    hooks::run("prestart", &config.hooks.prestart, state)?;
    hooks::run("createRuntime", &config.hooks.create_runtime, state)
}

/// In a separate user namespace no process can raise a hard limit.
fn limit(pid: i32, limits: &[(Resource, Rlimit)]) -> Result<()> {
    for (resource, limit) in limits {
        prlimit(Pid::from_raw(pid), *resource, *limit)
            .failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"))?;
    }
    Ok(())
}

/// After the hooks, which may have made some.
pub(super) fn move_devices(pid: i32, config: &Config) -> Result<()> {
    if config.linux.net_devices.is_empty() {
        return Ok(());
    }
    let step = || "open a connection to the kernel's network part";
    let path = format!("/proc/{pid}/ns/net");
    let target = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Network, || "open the container's network namespace")?;
    let host = Route::open().failing(Kind::Network, step)?;
    // A netlink socket stays in the namespace in which it was opened.
    let joined = vec![(NamespaceKind::Network, path.into())];
    let left = ns::visit(&Namespaces { joined, ..Namespaces::default() })?;
    let inside = Route::open();
    left.back()?;
    net::move_devices(&config.linux.net_devices, &host, &inside.failing(Kind::Network, step)?, target.as_fd())
}
