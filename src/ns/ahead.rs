//! Makes the network namespace early, in the disk helper or its child, while this process reads the command line. It
//! takes half a millisecond of a start (docs/decisions/0005-start-path.md).
//!
//! A root sandbox's network namespace belongs to the machine's root: no process inside has a right over it. A namespace
//! that a host program serves belongs to a new user namespace of that program, so the program needs no other privilege.

use super::idmap::Maps;
use super::user::{Channel, Helper, Mapped, forbid_nested, open_and_map};
use crate::error::Result;
use crate::files::{self, Packet};
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::{ioctl, weaken};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, socketpair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// Dropping it ends the child and waits for it.
#[derive(Debug)]
pub(crate) struct Ahead {
    pid: i32,
    channel: Channel,
    helper: Helper,
}

#[derive(Debug)]
pub(crate) struct EarlyNamespaces {
    pub users: Mapped,
    /// Its loopback interface is up.
    pub network: OwnedFd,
}

/// At most one order: the program's first lines make it, and the first sandbox takes it.
static COMING: Mutex<Option<Coming>> = Mutex::new(None);

struct Coming {
    channel: files::Channel,
    has_begun: bool,
    made: Option<OwnedFd>,
}

impl Coming {
    /// Returns whether the namespace is there, or will never be.
    fn is_over(&mut self) -> bool {
        while self.made.is_none() {
            let mut wait = [PollFd::new(&self.channel, PollFlags::IN)];
            if poll(&mut wait, Some(&Timespec::default())) == Ok(0) {
                return false;
            }
            if !self.receive() {
                break;
            }
        }
        true
    }

    /// Returns whether another message follows.
    fn receive(&mut self) -> bool {
        match self.channel.receive().ok().flatten() {
            Some(Packet { bytes, .. }) if bytes == BEGUN => self.has_begun = true,
            packet => {
                self.made = packet.and_then(|packet| packet.descriptor);
                return false;
            }
        }
        true
    }
}

const BEGUN: &[u8] = b"B";
const READY: &[u8] = b"R";

/// For the machine's root only. The result is for [`bring`] in another process. Without an order the sandbox makes its
/// namespace as usual.
pub(crate) fn order() -> Option<OwnedFd> {
    if weaken::is_off("network-namespace") {
        return None;
    }
    let (channel, theirs) = files::Channel::pair().ok()?;
    *COMING.lock().ok()? = Some(Coming { channel, has_begun: false, made: None });
    Some(theirs.into())
}

/// Returns to the former namespace, so that this process does not keep the new one. Makes none if the order was
/// cancelled. On `None` the process must end.
pub(crate) fn bring(to: OwnedFd) -> Option<()> {
    let to = files::Channel::from(to);
    let Some(ours) = own_network().filter(|_| to.send(BEGUN, None).is_ok()) else { return Some(()) };
    if let Some(made) = make_network().and_then(|()| own_network()) {
        // The process that ordered it may have exited.
        let _ = to.send(READY, Some(made.as_fd()));
    }
    move_into_link_name_space(ours.as_fd(), Some(LinkNameSpaceType::Network)).ok()
}

/// Waits for the ordered namespace. Later sandboxes make their own.
///
/// `None` also if the helper has not begun: its sleeping processor takes up to a millisecond to wake up in a virtual
/// machine. The clone of init makes the namespace in half of that. The closed channel tells the helper.
pub(crate) fn network() -> Option<OwnedFd> {
    let mut coming = COMING.lock().ok()?.take()?;
    if !coming.is_over() && coming.has_begun {
        while coming.receive() {}
    }
    coming.made
}

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

pub(crate) fn begin_network() -> Option<Ahead> {
    start(EarlyKind::Network)
}

/// [`Ahead::finish`] returns the network namespace and the new user namespace that owns it.
pub(crate) fn begin_owned_network() -> Option<Ahead> {
    start(EarlyKind::Owned)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyKind {
    Network,
    /// Owned by a new user namespace.
    Owned,
}

fn start(what: EarlyKind) -> Option<Ahead> {
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

fn lend(parent: &OwnedFd, what: EarlyKind) -> Option<()> {
    if what == EarlyKind::Owned {
        unshare(CloneFlags::CLONE_NEWUSER).ok()?;
        forbid_nested();
    }
    make_network()?;
    send(parent, b"R", SendFlags::NOSIGNAL).ok()?;
    recv(parent, &mut [0_u8; 1][..], RecvFlags::empty()).ok().map(|_| ())
}

/// Repeats `step` until it returns false or the ordered namespace is ready.
pub(crate) fn meanwhile(mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    let Ok(mut coming) = COMING.lock() else { return Ok(()) };
    let Some(coming) = &mut *coming else { return Ok(()) };
    while !coming.is_over() && step()? {}
    Ok(())
}

impl Ahead {
    /// `None` if the child failed. The child stays until its helper is dropped: its exit now would take processor time
    /// of the start.
    pub(crate) fn finish(mut self, maps: &Maps) -> Result<Option<EarlyNamespaces>> {
        let Some(network) = self.network() else { return Ok(None) };
        let userns = open_and_map(self.pid, maps)?;
        self.helper.stays(self.channel);
        Ok(Some(EarlyNamespaces { users: Mapped { userns, helper: self.helper }, network }))
    }

    /// Drop the helper when it has ended.
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

    /// A process has one order: these tests run one after the other.
    static ORDERS: Mutex<()> = Mutex::new(());

    #[test]
    fn cancelled_order_does_not_wait() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let copy = ours.try_clone().unwrap(); // like the copy of a child
        drop(Channel(ours));
        assert!(matches!(recv(&theirs, &mut [0_u8; 1][..], RecvFlags::DONTWAIT), Ok((_, 1))));
        drop(copy);
        drop(begin_network()); // like an error before the clone
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
        meanwhile(|| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok(true)
        })
        .unwrap();
        let made = network().unwrap();
        let mut after = [0; 8];
        assert_eq!(rustix::io::read(&reading, &mut after), Ok(8));
        assert_eq!(u64::from_le_bytes(after), own("net"));
        assert_ne!(inode(&made), own("net"));
        crate::sys::clone::wait(pidfd.as_fd()).unwrap();
        assert!(network().is_none());
    }

    #[test]
    fn an_order_that_has_not_begun_in_time_is_cancelled() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("an_order_that_has_not_begun_in_time_is_cancelled: needs root");
            return;
        }
        let _one_at_a_time = ORDERS.lock();
        let to = order().unwrap();
        assert!(network().is_none());
        let pidfd = match clone_process(0, None).unwrap() {
            // Without a way into a network namespace: nothing may be made.
            Side::Child => {
                let is_done = unshare(CloneFlags::CLONE_NEWUSER).is_ok() && bring(to).is_some();
                exit(i32::from(!is_done))
            }
            Side::Parent(_, pidfd) => pidfd,
        };
        assert_eq!(crate::sys::clone::wait(pidfd.as_fd()).unwrap().and_then(|ended| ended.exit_status()), Some(0));
    }

    #[test]
    fn order_to_a_process_that_dies_returns_nothing() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("order_to_a_process_that_dies_returns_nothing: needs root");
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
