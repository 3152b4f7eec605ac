//! The parent's side: one clone, and what it gets back.

use super::init;
use super::message::{Channel, Message, Tag};
use super::plan::{Plan, UserNamespace};
use crate::error::{Context, Kind, Result, Step};
use crate::host::user_namespace_advice;
use crate::ns;
use crate::sys::clone::{Side, clone_process};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The container's first process, as the parent holds it.
#[derive(Debug)]
pub(crate) struct Spawned {
    /// Its id in our PID namespace, for records and for reading /proc.
    pub pid: i32,
    pidfd: OwnedFd,
    channel: Channel,
}

/// Starts the container that `plan` describes. The caller has one thread. An error of init arrives later, as [`Message::Failed`].
pub(crate) fn spawn(mut plan: Plan) -> Result<Spawned> {
    let (ours, theirs) = Channel::pair()?;
    let mut flags = plan.namespaces.made;
    if matches!(plan.user_namespace, UserNamespace::Born(_) | UserNamespace::Mapped(_)) {
        flags |= libc::CLONE_NEWUSER as u64;
    }
    let cgroup = plan.cgroup.take();
    let maps = match &plan.user_namespace {
        UserNamespace::Mapped(maps) => Some(maps.clone()),
        _ => None,
    };
    let left = ns::visit(&plan.namespaces)?; // what is joined is inherited, so that one clone is enough
    let side = clone_process(flags, cgroup.as_ref().map(AsFd::as_fd))
        .failing(Kind::Namespace, || "create the container's namespaces")
        .hint(user_namespace_advice)?;
    match side {
        Side::Child => {
            drop(ours); // so that our end is the last one, and its closing is seen
            init::run(plan, theirs)
        }
        Side::Parent(pid, pidfd) => {
            let spawned = Spawned { pid, pidfd, channel: ours };
            left.back()?;
            if let Some(maps) = maps {
                ns::write_maps(pid, &maps)?;
                spawned.go()?;
            }
            Ok(spawned)
        }
    }
}

impl Spawned {
    pub(super) fn new(pid: i32, pidfd: OwnedFd, channel: Channel) -> Spawned {
        Spawned { pid, pidfd, channel }
    }

    /// Answers init, which waits for that: go on.
    pub(crate) fn go(&self) -> Result<()> {
        self.channel.say(Tag::Go)
    }

    /// The process, for those who send it signals or take descriptors from it.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The container's mount namespace, if we may open it: an ordinary user may not, since init cannot be looked into.
    pub(crate) fn mount_namespace(&self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/ns/mnt", self.pid);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// The next word from inside; `None` when nobody is left to say one.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        self.channel.receive()
    }

    /// Readable when a message waits.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Sends a signal to pid 1, which passes it on to the command; SIGKILL ends the whole container. A container that has ended is no error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno).failing(Kind::State, || "signal the container"),
        }
    }

    /// Waits until pid 1, and with it every process of the container, is gone.
    pub(crate) fn reap(&self) -> Result<()> {
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(errno).failing(Kind::State, || "wait for the container's end"),
            }
        }
    }
}
