//! Messages to the parent over a SOCK_SEQPACKET pair: each arrives whole or not at all, and can carry descriptors
//! (unix(7), SCM_RIGHTS).

use crate::error::{Context, Error, Kind, Result, wire};
use crate::files;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(u8),
    Signaled(i32),
}

/// A task sends `Scratch`, `Volume`, `Secrets` and `Console` if it has them. Then come `Ready` from pid 1 and
/// `Refusals` from the command in any order, then `Ended`. An OCI container sends `Hooks`, `Console` and `Listener` on
/// request, then `Ready`. `Failed` may come at any point. The parent sends `Group` and `Go`.
#[derive(Debug)]
pub(crate) enum Message {
    /// The pidfd of a first process that a helper made in a user or PID namespace.
    Born(OwnedFd),
    /// The root directory.
    Scratch(OwnedFd),
    /// A written volume's files in memory, in the volumes' order.
    Volume(OwnedFd),
    /// Writable.
    Secrets(OwnedFd),
    /// First to the container's routes, then to its nf_tables.
    Network(OwnedFd),
    /// The terminal's master.
    Console(OwnedFd),
    /// The root is built, not entered: the parent runs its hooks and answers.
    Hooks,
    /// The parent sets limits that the process may not set, and answers.
    Limits,
    /// The sender's number of the listener of a filter in force.
    Listener(i32),
    /// An agent's listener: the supervisor refuses and counts requests for namespaces.
    Refusals(OwnedFd),
    /// The command waits for `start`. For a task: its root is entered and pid 1 serves, so other processes may enter.
    Ready,
    /// The `tasks` file of a v1 cgroup to join.
    Group(OwnedFd),
    Go,
    Failed(Error),
    /// The rest of the container ends too.
    Ended(Ended),
}

#[derive(Debug)]
pub(crate) struct Channel(files::Channel);

impl Channel {
    /// The parent's end and init's.
    pub(crate) fn pair() -> Result<(Channel, Channel)> {
        files::Channel::pair()
            .failing(Kind::Internal, || "make a channel to the container")
            .map(|(ours, theirs)| (Channel(ours), Channel(theirs)))
    }

    pub(crate) fn hand(&self, tag: Tag, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.send(tag, &[], Some(descriptor))
    }

    /// If this fails, the parent sees the channel close.
    pub(crate) fn fail(&self, error: &Error) {
        let mut bytes = wire::to_bytes(error);
        if bytes.len() >= files::Channel::LARGEST {
            bytes = wire::to_bytes(&Error::new(error.kind(), "the reason was too long to be sent"));
        }
        let _ = self.send(Tag::Failed, &bytes, None);
    }

    /// A parent that is gone needs no report.
    pub(crate) fn ended(&self, ended: Ended) {
        let (kind, value) = match ended {
            Ended::Exited(code) => (0, i32::from(code)),
            Ended::Signaled(signal) => (1, signal),
        };
        let mut bytes = [kind; 5];
        bytes[1..].copy_from_slice(&value.to_le_bytes());
        let _ = self.send(Tag::Ended, &bytes, None);
    }

    /// By write(2), which a filter in force must still allow.
    pub(crate) fn send_tag(&self, tag: Tag) -> Result<()> {
        self.write(&[tag as u8])
    }

    /// For pidfd_getfd(2).
    pub(crate) fn listening(&self, number: i32) -> Result<()> {
        let [a, b, c, d] = number.to_le_bytes();
        self.write(&[Tag::Listener as u8, a, b, c, d])
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        rustix::io::write(&self.0, bytes).failing(Kind::Lost, || "report to the parent").map(|_| ())
    }

    pub(crate) fn wait_for_go(&self) -> Result<()> {
        match self.receive()? {
            Some(Message::Go) => Ok(()),
            _ => Err(Error::new(Kind::Lost, "the parent is gone")),
        }
    }

    pub(crate) fn wait_for_groups(&self, join: impl Fn(OwnedFd) -> Result<()>) -> Result<()> {
        loop {
            match self.receive()? {
                Some(Message::Group(file)) => join(file)?,
                Some(Message::Go) => return Ok(()),
                _ => return Err(Error::new(Kind::Lost, "the parent is gone")),
            }
        }
    }

    /// By read(2), under a filter in force.
    pub(crate) fn wait_for_word(&self) -> Result<()> {
        let mut word = [0_u8; 1];
        match rustix::io::read(&self.0, &mut word).failing(Kind::Lost, || "hear from the parent")? {
            1 if word[0] == Tag::Go as u8 => Ok(()),
            _ => Err(Error::new(Kind::Lost, "the parent is gone")),
        }
    }

    fn send(&self, tag: Tag, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        self.0.send(&[&[tag as u8], bytes].concat(), descriptor).failing(Kind::Lost, || "report to the parent")
    }

    /// Shows that a parent ended before die_with_parent took effect.
    pub(crate) fn is_open(&self) -> bool {
        let mut wait = [PollFd::new(&self.0, PollFlags::empty())];
        // A failed poll proves nothing.
        poll(&mut wait, Some(&Timespec::default())).is_err() || !wait[0].revents().contains(PollFlags::HUP)
    }

    pub(crate) fn peek(&self) -> Result<u8, Errno> {
        let mut first = [0_u8; 1];
        match recv(&self.0, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)? {
            (_, 0) => Err(Errno::PIPE),
            _ => Ok(first[0]),
        }
    }

    /// `None` when the other end is gone.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        let packet = self.0.receive().failing(Kind::Lost, || "hear from the container")?;
        packet.map(|packet| parse(&packet.bytes, packet.descriptor)).transpose()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The first byte of the [`Message`] of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    Born = b'B',
    Scratch = b'S',
    Volume = b'V',
    Secrets = b'K',
    Network = b'T',
    Console = b'C',
    Hooks = b'H',
    Limits = b'U',
    Listener = b'L',
    Refusals = b'N',
    Ready = b'R',
    Group = b'J',
    Go = b'G',
    Failed = b'F',
    Ended = b'E',
}

fn parse(bytes: &[u8], descriptor: Option<OwnedFd>) -> Result<Message> {
    let torn = || Error::new(Kind::Lost, format!("a torn message of {} bytes came from the container", bytes.len()));
    let (tag, rest) = bytes.split_first().ok_or_else(torn)?;
    match (*tag, descriptor) {
        (tag, Some(descriptor)) if tag == Tag::Born as u8 => Ok(Message::Born(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Scratch as u8 => Ok(Message::Scratch(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Volume as u8 => Ok(Message::Volume(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Secrets as u8 => Ok(Message::Secrets(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Group as u8 => Ok(Message::Group(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Refusals as u8 => Ok(Message::Refusals(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Network as u8 => Ok(Message::Network(descriptor)),
        (tag, Some(descriptor)) if tag == Tag::Console as u8 => Ok(Message::Console(descriptor)),
        (tag, None) if tag == Tag::Hooks as u8 => Ok(Message::Hooks),
        (tag, None) if tag == Tag::Limits as u8 => Ok(Message::Limits),
        (tag, None) if tag == Tag::Ready as u8 => Ok(Message::Ready),
        (tag, None) if tag == Tag::Go as u8 => Ok(Message::Go),
        (tag, None) if tag == Tag::Listener as u8 => {
            rest.try_into().map(|bytes| Message::Listener(i32::from_le_bytes(bytes))).map_err(|_| torn())
        }
        (tag, None) if tag == Tag::Failed as u8 => Ok(Message::Failed(wire::from_bytes(rest))),
        (tag, None) if tag == Tag::Ended as u8 => {
            let (kind, value) = rest.split_first().ok_or_else(torn)?;
            let value = i32::from_le_bytes(value.try_into().map_err(|_| torn())?);
            match kind {
                0 => Ok(Message::Ended(Ended::Exited(value as u8))),
                1 => Ok(Message::Ended(Ended::Signaled(value))),
                _ => Err(torn()),
            }
        }
        _ => Err(torn()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (ours, theirs) = Channel::pair().unwrap();
        theirs.hand(Tag::Scratch, std::io::stdin().as_fd()).unwrap();
        theirs.fail(&Error::new(Kind::Mount, "no").doing("mount `x`"));
        theirs.ended(Ended::Signaled(9));
        drop(theirs);
        assert!(matches!(ours.receive(), Ok(Some(Message::Scratch(_)))));
        assert!(matches!(ours.receive(), Ok(Some(Message::Failed(error))) if error.to_string() == "mount `x`: no"));
        assert!(matches!(ours.receive(), Ok(Some(Message::Ended(Ended::Signaled(9))))));
        assert!(matches!(ours.receive(), Ok(None)));
    }

    #[test]
    fn a_parent_that_is_gone_is_seen_at_once() {
        let (ours, theirs) = Channel::pair().unwrap();
        assert!(theirs.is_open());
        ours.ended(Ended::Exited(0)); // a message that waits is not an end
        assert!(theirs.is_open());
        drop(ours);
        assert!(!theirs.is_open());
    }

    #[test]
    fn a_torn_or_foreign_message_is_an_error() {
        for bytes in [&b"E\0"[..], b"E\x07\0\0\0\0", b"S", b"?", b"E"] {
            assert!(parse(bytes, None).is_err(), "{bytes:?}");
        }
    }
}
