//! The network namespace, which takes longest to make (half a millisecond of a start, docs/decisions/0005-start-path.md), made by another process while we
//! still read the command line: the one that makes the disk afterwards, or a child of its own.
//!
//! The network namespace belongs to the machine's root, like all that a sandbox of root's is built from: nobody inside has a right over it. One that a
//! program of the host's is to serve belongs to a user namespace of that program's own, so that it needs no right over anything else.

use super::idmap::Maps;
use super::user::{Channel, Helper, Mapped, forbid_nested, open_and_map};
use crate::error::Result;
use crate::files;
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::{ioctl, weaken};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, socketpair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// The child, and what it waits on. Dropped, it is told to end before it is waited for.
#[derive(Debug)]
pub(crate) struct Ahead {
    pid: i32,
    channel: Channel,
    helper: Helper,
}

/// What was made ahead.
#[derive(Debug)]
pub(crate) struct Made {
    pub users: Mapped,
    /// The network namespace; its loopback interface is up.
    pub network: OwnedFd,
}

/// At most one is ordered, by the program's own first lines; the first sandbox takes it.
static COMING: Mutex<Option<files::Channel>> = Mutex::new(None);

/// Orders one, for the machine's root: what is returned is for [`bring`], in another process, which has other things to do afterwards. What goes wrong is found
/// out, and said, by the ordinary way.
pub(crate) fn order() -> Option<OwnedFd> {
    if weaken::is_off("network-namespace") {
        return None;
    }
    let (channel, theirs) = files::Channel::pair().ok()?;
    *COMING.lock().ok()? = Some(channel);
    Some(theirs.into())
}

/// Makes what was ordered and goes back to where we were: the namespace is not to stay because of us. `None` if that fails, and the process is to end then.
pub(crate) fn bring(to: OwnedFd) -> Option<()> {
    let Some(ours) = own_network() else { return Some(()) };
    if let Some(made) = make_network().and_then(|()| own_network()) {
        // Whoever ordered it may be gone.
        let _ = files::Channel::from(to).send(b"R", Some(made.as_fd()));
    }
    move_into_link_name_space(ours.as_fd(), Some(LinkNameSpaceType::Network)).ok()
}

/// Waits for what was ordered; `None` if there is nothing. The next one is the caller's to make.
pub(crate) fn network() -> Option<OwnedFd> {
    let channel = COMING.lock().ok()?.take()?;
    channel.receive().ok().flatten()?.descriptor
}

/// Nobody wants it any more.
pub(crate) fn forget() {
    if let Ok(mut coming) = COMING.lock() {
        *coming = None;
    }
}

fn own_network() -> Option<OwnedFd> {
    rustix::fs::open(c"/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn make_network() -> Option<()> {
    unshare(CloneFlags::CLONE_NEWNET).ok()?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    ioctl::bring_loopback_up(socket.as_fd()).ok()
}

/// Begins a network namespace alone, for a container that has no user namespace of its own.
pub(crate) fn begin_network() -> Option<Ahead> {
    start(What::Network)
}

/// Begins a network namespace that belongs to a new user namespace; [`Ahead::finish`] has both.
pub(crate) fn begin_owned_network() -> Option<Ahead> {
    start(What::Owned)
}

/// What is made, and whose the network namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The machine's root's.
    Network,
    /// The user namespace's.
    Owned,
}

fn start(what: What) -> Option<Ahead> {
    if !rustix::process::geteuid().is_root() || weaken::is_off("network-namespace") {
        return None;
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    match clone_process(0, None).ok()? {
        Side::Child => {
            drop(ours);
            exit(i32::from(lend(&theirs, what).is_none()))
        }
        Side::Parent(pid, pidfd) => Some(Ahead { pid, helper: Helper::new(pidfd), channel: Channel(ours) }),
    }
}

/// The child: makes them, says so, and ends when it is told to or when nobody is left to tell it.
fn lend(parent: &OwnedFd, what: What) -> Option<()> {
    if what == What::Owned {
        unshare(CloneFlags::CLONE_NEWUSER).ok()?;
        forbid_nested();
    }
    make_network()?;
    send(parent, b"R", SendFlags::NOSIGNAL).ok()?;
    recv(parent, &mut [0_u8; 1][..], RecvFlags::empty()).ok().map(|_| ())
}

/// Does what else there is to do, one step after the other, as long as what was ordered is in the making and there is a step.
pub(crate) fn meanwhile(mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    let Ok(coming) = COMING.lock() else { return Ok(()) };
    let Some(coming) = &*coming else { return Ok(()) };
    while poll(&mut [PollFd::new(coming, PollFlags::IN)], Some(&Timespec::default())) == Ok(0) && step()? {}
    Ok(())
}

impl Ahead {
    /// Waits for the child and maps the user namespace that owns the network's; `None` if the child could not make them. It stays until its helper is dropped:
    /// its end takes a processor that others wait for now.
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
        if !matches!(recv(&self.channel.0, &mut [0_u8; 1][..], RecvFlags::empty()), Ok((_, 1))) {
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
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::os::linux::fs::MetadataExt;

    /// There is one order in a process.
    static ORDERS: Mutex<()> = Mutex::new(());

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
    fn what_is_made_ahead_is_new_and_mapped() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("what_is_made_ahead_is_new_and_mapped: needs root");
            return;
        }
        let map = vec![IdMap { inside: 0, outside: 0x7FFC_0000, size: 65_536 }];
        let made = begin_owned_network().unwrap().finish(&Maps { uid: map.clone(), gid: map }).unwrap().unwrap();
        assert_ne!(inode(&made.network), own("net"));
        assert_ne!(inode(&made.users.userns), own("user"));
    }

    #[test]
    fn what_is_ordered_is_new_and_taken_once_and_its_maker_does_not_stay_in_it() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("what_is_ordered_is_new_and_taken_once_and_its_maker_does_not_stay_in_it: needs root");
            return;
        }
        let _one_at_a_time = ORDERS.lock();
        let to = order().unwrap();
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let pidfd = match clone_process(0, None).unwrap() {
            Side::Child => {
                let is_back = bring(to).is_some();
                let now = rustix::fs::stat(c"/proc/self/ns/net").map_or(0, |found| found.st_ino);
                exit(i32::from(!is_back || rustix::io::write(&writing, &now.to_le_bytes()) != Ok(8)))
            }
            Side::Parent(_, pidfd) => pidfd,
        };
        drop((to, writing));
        let made = network().unwrap();
        let mut after = [0; 8];
        assert_eq!(rustix::io::read(&reading, &mut after), Ok(8));
        assert_eq!(u64::from_le_bytes(after), own("net"));
        assert_ne!(inode(&made), own("net"));
        crate::sys::clone::wait(pidfd.as_fd()).unwrap();
        assert!(network().is_none());
    }

    #[test]
    fn who_orders_of_somebody_who_dies_does_without() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("who_orders_of_somebody_who_dies_does_without: needs root");
            return;
        }
        let _one_at_a_time = ORDERS.lock();
        drop(order());
        assert!(network().is_none());
    }

    fn inode(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_ino
    }

    fn own(name: &str) -> u64 {
        std::fs::metadata(format!("/proc/self/ns/{name}")).unwrap().st_ino()
    }
}
