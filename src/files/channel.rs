//! A pair of connected sockets for whole messages, each with at most one descriptor (unix(7), SOCK_SEQPACKET and SCM_RIGHTS).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end of the pair.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// A whole message.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What came with it.
    pub descriptor: Option<OwnedFd>,
}

impl Channel {
    /// The largest message: an error chain of our own words.
    pub(crate) const LARGEST: usize = 16 * 1024;

    /// Two connected ends.
    pub(crate) fn pair() -> Result<(Channel, Channel), Errno> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(one), Channel(other)))
    }

    /// The same end under another number.
    pub(crate) fn try_clone(&self) -> std::io::Result<Channel> {
        self.0.try_clone().map(Channel)
    }

    /// Sends one message.
    pub(crate) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Sends one message unless that takes a wait.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Result<(), Errno> {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
    }

    /// Waits for the next message; `None` when the other end is gone.
    pub(crate) fn receive(&self) -> Result<Option<Packet>, Errno> {
        self.receive_up_to(Self::LARGEST)
    }

    /// The same for messages of at most `largest` bytes; what is longer arrives cut. On a socket that does not wait, EAGAIN says that there is none.
    pub(crate) fn receive_up_to(&self, largest: usize) -> Result<Option<Packet>, Errno> {
        let mut bytes = vec![0_u8; largest];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut was_reset = false;
        let length = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                // The other end was closed with words of ours unread. What it said before that can still be heard: the error comes first, and once.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other?.bytes,
            }
        };
        let descriptor = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .last();
        if length == 0 {
            return Ok(None);
        }
        bytes.truncate(length);
        Ok(Some(Packet { bytes, descriptor }))
    }
}

impl From<OwnedFd> for Channel {
    /// A connected socket of type SOCK_SEQPACKET.
    fn from(socket: OwnedFd) -> Channel {
        Channel(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_the_end_is_heard_although_our_words_were_not() {
        let (ours, theirs) = Channel::pair().unwrap();
        theirs.send(b"why", None).unwrap();
        ours.send(b"unread", None).unwrap();
        drop(theirs);
        assert_eq!(ours.receive().unwrap().unwrap().bytes, b"why");
        assert!(ours.receive().unwrap().is_none());
    }
}
