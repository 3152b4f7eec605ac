//! A container's first process, as its parent sees it.

use super::message::{Channel, Message, Tag};
use crate::error::{Context, Error, Kind, Result};
use crate::ns::{self, Maps};
use crate::sys::clone::wait;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Spawned {
    /// In our PID namespace.
    pub pid: i32,
    pidfd: OwnedFd,
    channel: Channel,
}

impl Spawned {
    pub(super) fn new(pid: i32, pidfd: OwnedFd, channel: Channel) -> Spawned {
        Spawned { pid, pidfd, channel }
    }

    /// Replaces the first process, which has ended, by its successor, which waits for `Go`.
    pub(crate) fn succeed(&mut self, pidfd: OwnedFd) -> Result<()> {
        self.reap()?;
        (self.pid, self.pidfd) = (pid_of(&pidfd)?, pidfd);
        self.go()
    }

    /// The error is reported already.
    pub(crate) fn abandon(&self) {
        let _ = self.signal(Signal::KILL);
        let _ = self.reap();
    }

    pub(crate) fn go(&self) -> Result<()> {
        self.channel.send_tag(Tag::Go)
    }

    /// Sends a process its groups' files (`Joins::Told`), then `Go`. If this fails, its next message is the error.
    pub(crate) fn admit(&self, files: &[OwnedFd]) {
        let _ = files.iter().try_for_each(|file| self.channel.hand(Tag::Group, file.as_fd())).and_then(|()| self.go());
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// `None` for an ordinary user: init is undumpable.
    pub(crate) fn mount_namespace(&self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/ns/mnt", self.pid);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    pub(crate) fn brings_descriptor(&self) -> bool {
        matches!(self.channel.peek(), Ok(tag) if [Tag::Scratch, Tag::Volume, Tag::Secrets, Tag::Refusals].iter().any(|each| *each as u8 == tag))
    }

    /// `None` after the last process has closed its end.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        self.channel.receive()
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Pid 1 forwards it to the command; SIGKILL ends the whole container. A container that has ended is not an error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno).failing(Kind::State, || "signal the container"),
        }
    }

    /// Every process of the container ends with pid 1.
    pub(crate) fn reap(&self) -> Result<()> {
        wait(self.pidfd.as_fd()).failing(Kind::State, || "wait for the container's end").map(drop)
    }
}

/// Takes over our child, made by an ending helper. It sends nothing before the helper has, and waits for `Go`, which
/// `goes` sends.
pub(super) fn born(ours: Channel, helper: &OwnedFd, maps: Option<&Maps>, goes: bool) -> Result<Spawned> {
    let step = || "start a helper in the container's user namespace";
    let born = ours.receive();
    wait(helper.as_fd()).failing(Kind::Namespace, step)?;
    match born? {
        Some(Message::Born(pidfd)) => {
            let pid = pid_of(&pidfd)?;
            let spawned = Spawned::new(pid, pidfd, ours);
            if let Some(maps) = maps {
                ns::write_maps(pid, maps).inspect_err(|_| spawned.abandon())?;
            }
            if goes {
                spawned.go()?;
            }
            Ok(spawned)
        }
        Some(Message::Failed(error)) => Err(error),
        _ => Err(Error::new(Kind::Lost, "the helper ended without a word").doing(step())),
    }
}

/// In our PID namespace. proc_pid_fdinfo(5).
fn pid_of(pidfd: &OwnedFd) -> Result<i32> {
    let step = || "find the container's first process";
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).failing(Kind::Lost, step)?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or_else(|| Error::new(Kind::Lost, "it has ended").doing(step()))
}
