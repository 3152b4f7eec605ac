//! The parent's answers to a container's first process while it is made.

use super::creation::Creation;
use super::socket;
use crate::error::{Context, Error, Kind, Result};
use crate::hooks;
use crate::net::{self, Route};
use crate::ns::{self, Namespaces};
use crate::process::{self, Message, Spawned};
use crate::spec::config::Config;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::state::State;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, prlimit};
use std::os::fd::{AsFd, OwnedFd};

/// Descriptors that init handed over.
#[derive(Default)]
pub(super) struct Handed {
    /// The terminal's master, where no console socket got it.
    pub console: Option<OwnedFd>,
    /// The root directory of the capped disk.
    pub scratch: Option<OwnedFd>,
}

/// Answers init until it is ready.
pub(super) fn create(
    spawned: &mut Spawned,
    config: &Config,
    wish: &Creation,
    rlimits: &[(Resource, Rlimit)],
    state: &State,
    joins_processes: bool,
) -> Result<Handed> {
    let mut handed = Handed::default();
    loop {
        match spawned.receive()? {
            Some(Message::Hooks) => {
                hooks::run("prestart", &config.hooks.prestart, state)?;
                hooks::run("createRuntime", &config.hooks.create_runtime, state)?;
                if joins_processes {
                    process::beside(spawned.pid, || {
                        hooks::run("createContainer", &config.hooks.create_container, state)
                    })?;
                }
                spawned.go()?;
            }
            Some(Message::Born(pidfd)) => spawned.succeed(pidfd)?,
            Some(Message::Limits) => {
                limit(spawned.pid, rlimits)?;
                spawned.go()?;
            }
            Some(Message::Console(master)) => match &wish.console_socket {
                Some(path) => socket::send_console(path, &master)?,
                None => handed.console = Some(master),
            },
            Some(Message::Scratch(root)) => handed.scratch = Some(root),
            Some(Message::Listener(number)) => {
                let listener = pidfd_getfd(spawned.pidfd(), number, PidfdGetfdFlags::empty())
                    .failing(Kind::Seccomp, || "fetch the filter's listener")?;
                if let Some(profile) = &config.linux.seccomp {
                    socket::send_listener(profile, &listener, &State { pid: spawned.pid, ..state.clone() })?;
                }
                spawned.go()?;
            }
            Some(Message::Ready) => {
                move_devices(spawned.pid, config)?;
                return Ok(handed);
            }
            Some(Message::Failed(error)) => return Err(error),
            Some(other) => return Err(Error::new(Kind::Lost, format!("init said something out of turn: {other:?}"))),
            None => return Err(Error::new(Kind::Lost, "init ended without a word").doing("wait for the container")),
        }
    }
}

/// Sets the limits of a process that may not do so itself: in a user namespace of its own nobody can raise a hard limit.
pub(super) fn limit(pid: i32, limits: &[(Resource, Rlimit)]) -> Result<()> {
    for (resource, limit) in limits {
        prlimit(Pid::from_raw(pid), *resource, *limit)
            .failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"))?;
    }
    Ok(())
}

/// Moves network devices into the container's namespace: after the hooks, which may have made some.
fn move_devices(pid: i32, config: &Config) -> Result<()> {
    if config.linux.net_devices.is_empty() {
        return Ok(());
    }
    let step = || "open a connection to the kernel's network part";
    let path = format!("/proc/{pid}/ns/net");
    let target = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Network, || "open the container's network namespace")?;
    let host = Route::open().failing(Kind::Network, step)?;
    // A connection is of the namespace in which it was opened, for good.
    let joined = vec![(NamespaceKind::Network, path.into())];
    let left = ns::visit(&Namespaces { joined, ..Namespaces::default() })?;
    let inside = Route::open();
    left.back()?;
    net::move_devices(&config.linux.net_devices, &host, &inside.failing(Kind::Network, step)?, target.as_fd())
}
