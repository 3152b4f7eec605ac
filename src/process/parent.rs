//! The parent's side: one clone, and what it gets back.

use super::message::{Channel, Message, Tag};
use super::plan::{First, Plan, UserNamespace};
use super::{enter, init, newcomer};
use crate::error::{Context, Kind, Result, Step};
use crate::host::user_namespace_advice;
use crate::ns;
use crate::sys::clone::{Side, clone_process, wait};
use crate::sys::heap::StartHeap;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, pidfd_send_signal};
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
///
/// If `plan.waits`, the new process does nothing before `settle`, which gets its pid, has returned; if that fails, there is no container.
pub(crate) fn spawn_with(mut plan: Plan, settle: impl FnOnce(i32) -> Result<()>) -> Result<Spawned> {
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
    let waits = plan.waits;
    if let Some(processes) = plan.namespaces.take_processes()? {
        plan.first = First::Newcomer;
        let spawned = newcomer::spawn(plan, ours, theirs, cgroup, maps.as_ref(), &processes)?;
        return settled(spawned, waits, settle);
    }
    let is_helped = matches!(plan.user_namespace, UserNamespace::Joined(_))
        || (maps.is_some() && plan.cgroup_namespace.is_some())
        || !ns::can_return(&plan.namespaces);
    if is_helped {
        let spawned = enter::spawn(plan, ours, theirs, cgroup, maps.as_ref())?;
        return settled(spawned, waits, settle);
    }
    let left = ns::visit(&plan.namespaces)?; // what is joined is inherited, so that one clone is enough
    StartHeap.share();
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
                ns::write_maps(pid, &maps).inspect_err(|_| spawned.abandon())?;
                spawned.go()?;
            }
            settled(spawned, waits, settle)
        }
    }
}

/// Lets a process that waits go on, when the parent has done its part.
fn settled(spawned: Spawned, waits: bool, settle: impl FnOnce(i32) -> Result<()>) -> Result<Spawned> {
    if waits {
        settle(spawned.pid).inspect_err(|_| spawned.abandon())?;
        spawned.go()?;
    }
    Ok(spawned)
}

impl Spawned {
    pub(super) fn new(pid: i32, pidfd: OwnedFd, channel: Channel) -> Spawned {
        Spawned { pid, pidfd, channel }
    }

    /// From now on this is the process that the first one has made in its stead: that one has ended, and the new one waits for a word to go on.
    pub(crate) fn succeed(&mut self, pidfd: OwnedFd) -> Result<()> {
        self.reap()?;
        (self.pid, self.pidfd) = (enter::pid_of(&pidfd)?, pidfd);
        self.go()
    }

    /// Ends a process that will never be a container. The error that led here is on its way already.
    pub(crate) fn abandon(&self) {
        let _ = self.signal(Signal::KILL);
        let _ = self.reap();
    }

    /// Answers init, which waits for that: go on.
    pub(crate) fn go(&self) -> Result<()> {
        self.channel.say(Tag::Go)
    }

    /// Lets a process that is told its groups (`Joins::Told`) join those of `files`, and go on. One that has failed cannot be told any more; its
    /// reason is the next message.
    pub(crate) fn admit(&self, files: &[OwnedFd]) {
        let _ = files.iter().try_for_each(|file| self.channel.hand(Tag::Group, file.as_fd())).and_then(|()| self.go());
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

    /// Whether the word that waits is one of those that only bring a descriptor to keep.
    pub(crate) fn brings_descriptor(&self) -> bool {
        matches!(self.channel.peek(), Ok(tag) if [Tag::Scratch as u8, Tag::Secrets as u8, Tag::Refusals as u8].contains(&tag))
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
        wait(self.pidfd.as_fd()).failing(Kind::State, || "wait for the container's end").map(drop)
    }
}
