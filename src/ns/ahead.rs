//! The namespaces that take longest to make, made by a child while we still read the command line: a network namespace (half a millisecond of
//! a start, docs/decisions/0005-start-path.md), and the user namespace that is entered last, whose map is written when the range is known.
//!
//! The network namespace belongs to the machine's root, like all that a sandbox of root's is built from: nobody inside has a right over it. One that a
//! program of the host's is to serve belongs to a user namespace of that program's own, so that it needs no right over anything else.

use super::idmap::Maps;
use super::user::{Helper, Mapped, forbid_nested, open_and_map};
use crate::error::Result;
use crate::sys::clone::{Side, bring_here, clone_process, exit, send_away};
use crate::sys::{net, weaken};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// How long a child that is at work, and does not wait for its turn on a busy processor, may still need.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// The child, and what it waits on. Dropped, it is told to end before it is waited for.
#[derive(Debug)]
pub(crate) struct Ahead {
    pid: i32,
    channel: Channel,
    helper: Helper,
}

/// What the child waits on. Others of our children may hold a copy of it, so its closing alone would tell nothing.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Drop for Channel {
    fn drop(&mut self) {
        // A child that has ended already need not be told.
        let _ = send(&self.0, b"E", SendFlags::NOSIGNAL);
    }
}

/// What was made ahead.
#[derive(Debug)]
pub(crate) struct Made {
    pub users: Mapped,
    /// The network namespace; its loopback interface is up.
    pub network: OwnedFd,
}

/// At most one is begun, by the program's own first lines; the first sandbox takes it.
static BEGUN: Mutex<Option<Ahead>> = Mutex::new(None);

/// Begins both, if we are root and the caller has one thread. What goes wrong is found out, and said, by the ordinary way. The pipe that is returned ends when
/// they are made: for others that are to work on the same processor, since this is what everything waits for first.
pub(crate) fn begin() -> Option<OwnedFd> {
    let (done, working) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let ahead = start(What::Both, Some(working))?;
    *BEGUN.lock().ok()? = Some(ahead);
    Some(done)
}

/// Begins a network namespace alone, for a container that has no user namespace of its own.
pub(crate) fn begin_network() -> Option<Ahead> {
    start(What::Network, None)
}

/// Begins a network namespace that belongs to a new user namespace; [`Ahead::finish`] has both.
pub(crate) fn begin_owned_network() -> Option<Ahead> {
    start(What::Owned, None)
}

/// What is made, and whose the network namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The machine's root's.
    Network,
    /// The same, and beside it a user namespace.
    Both,
    /// The user namespace's.
    Owned,
}

fn start(what: What, working: Option<OwnedFd>) -> Option<Ahead> {
    if !rustix::process::geteuid().is_root() || weaken::is_off("network-namespace") {
        return None;
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    match clone_process(0, None).ok()? {
        Side::Child => {
            drop(ours);
            exit(i32::from(lend(&theirs, what, working).is_none()))
        }
        Side::Parent(pid, pidfd) => {
            send_away(pid);
            Some(Ahead { pid, helper: Helper::new(pidfd), channel: Channel(ours) })
        }
    }
}

/// The child: makes them, says so, and ends when it is told to or when nobody is left to tell it.
fn lend(parent: &OwnedFd, what: What, working: Option<OwnedFd>) -> Option<()> {
    if what == What::Owned {
        unshare(CloneFlags::CLONE_NEWUSER).ok()?;
        forbid_nested();
    }
    unshare(CloneFlags::CLONE_NEWNET).ok()?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    net::bring_loopback_up(socket.as_fd()).ok()?;
    if what == What::Both {
        unshare(CloneFlags::CLONE_NEWUSER).ok()?;
        forbid_nested();
    }
    send(parent, b"R", SendFlags::NOSIGNAL).ok()?;
    drop(working);
    recv(parent, &mut [0_u8; 1][..], RecvFlags::empty()).ok().map(|_| ())
}

/// Does what else there is to do, one step after the other, as long as both are in the making and there is a step.
pub(crate) fn meanwhile(mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    let Ok(begun) = BEGUN.lock() else { return Ok(()) };
    let Some(ahead) = &*begun else { return Ok(()) };
    while poll(&mut [PollFd::new(&ahead.channel.0, PollFlags::IN)], Some(&Timespec::default())) == Ok(0) && step()? {}
    Ok(())
}

/// What was begun, if anything was.
pub(crate) fn take() -> Option<Ahead> {
    BEGUN.lock().ok()?.take()
}

impl Ahead {
    /// Waits for the child and maps the user namespace; `None` if the child could not make them. It stays until its helper is dropped: its end takes a
    /// processor that others wait for now.
    pub(crate) fn finish(mut self, maps: &Maps) -> Result<Option<Made>> {
        let Some(network) = self.network() else { return Ok(None) };
        let userns = open_and_map(self.pid, maps)?;
        self.helper.stays(self.channel);
        Ok(Some(Made { users: Mapped { userns, helper: self.helper }, network }))
    }

    /// The same for a network namespace alone; the helper is to be dropped when it has ended.
    pub(crate) fn finish_network(self) -> Option<(OwnedFd, Helper)> {
        let network = self.network();
        network.map(|network| (network, self.helper))
    }

    fn network(&self) -> Option<OwnedFd> {
        let word = |flags| recv(&self.channel.0, &mut [0_u8; 1][..], flags);
        let said = match word(RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => {
                // One that is at work is not moved: that costs more than it still needs.
                let mut wait = [PollFd::new(&self.channel.0, PollFlags::IN)];
                if poll(&mut wait, Some(&SOON)) == Ok(0) {
                    bring_here(self.pid);
                }
                word(RecvFlags::empty())
            }
            said => said,
        };
        if !matches!(said, Ok((_, 1))) {
            return None;
        }
        let path = format!("/proc/{}/ns/net", self.pid);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::idmap::IdMap;
    use super::*;
    use std::os::linux::fs::MetadataExt;

    #[test]
    fn who_does_not_want_it_any_more_is_not_kept_waiting() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let copy = ours.try_clone().unwrap(); // as a child that was made meanwhile has
        drop(Channel(ours));
        assert!(matches!(recv(&theirs, &mut [0_u8; 1][..], RecvFlags::DONTWAIT), Ok((_, 1))));
        drop(copy);
        drop(begin_network()); // as an error on the way to the clone does
    }

    #[test]
    fn what_is_made_ahead_is_new_mapped_and_taken_once() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("what_is_made_ahead_is_new_mapped_and_taken_once: needs root");
            return;
        }
        begin();
        let map = vec![IdMap { inside: 0, outside: 0x7FFC_0000, size: 65_536 }];
        let begun = take().unwrap();
        let made = begun.finish(&Maps { uid: map.clone(), gid: map }).unwrap().unwrap();
        assert!(take().is_none());
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        let own = |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).unwrap().st_ino();
        assert_ne!(inode(&made.network), own("net"));
        assert_ne!(inode(&made.users.userns), own("user"));
    }
}
