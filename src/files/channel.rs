//! Sockets for whole messages with at most one descriptor each (unix(7), SOCK_SEQPACKET, SCM_RIGHTS).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

#[derive(Debug)]
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub descriptor: Option<OwnedFd>,
}

impl Channel {
    /// The largest message is an error chain.
    pub(crate) const LARGEST: usize = 16 * 1024;

    pub(crate) fn pair() -> Result<(Channel, Channel), Errno> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(one), Channel(other)))
    }

    pub(crate) fn try_clone(&self) -> std::io::Result<Channel> {
        self.0.try_clone().map(Channel)
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    pub(crate) fn try_send(&self, bytes: &[u8]) -> Result<(), Errno> {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
    }

    /// `None` when the other end is closed.
    pub(crate) fn receive(&self) -> Result<Option<Packet>, Errno> {
        self.receive_up_to(Self::LARGEST)
    }

    /// Truncates a longer message. EAGAIN on a non-blocking socket: no message waits.
    pub(crate) fn receive_up_to(&self, largest: usize) -> Result<Option<Packet>, Errno> {
        // Ask for the length first: a buffer for the largest message touches four pages.
        let Some(length) = patiently(|| {
            recv(&self.0, &mut [0_u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC).map(|(_, length)| length)
        })?
        else {
            return Ok(None);
        };
        let mut bytes = vec![0_u8; length.min(largest)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(length) = patiently(|| {
            let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            Ok(received.bytes)
        })?
        else {
            return Ok(None);
        };
        let descriptor = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .last();
        bytes.truncate(length);
        Ok(Some(Packet { bytes, descriptor }))
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.0
    }
}

impl From<OwnedFd> for Channel {
    /// Must be connected and of type SOCK_SEQPACKET.
    fn from(socket: OwnedFd) -> Channel {
        Channel(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Repeats `call` after signals; `None` at the end.
fn patiently(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<Option<usize>, Errno> {
    let mut was_reset = false;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            // The other end closed with unread bytes. The error comes once and first; earlier messages follow.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET) | Ok(0) => return Ok(None),
            other => return other.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptor_or_cut_where_less_is_wanted() {
        let (ours, theirs) = Channel::pair().unwrap();
        let long: Vec<u8> = (0..Channel::LARGEST).map(|at| at as u8).collect();
        for descriptor in [None, Some(theirs.as_fd())] {
            theirs.send(&long, descriptor).unwrap();
            theirs.send(b"next", None).unwrap();
            let packet = ours.receive().unwrap().unwrap();
            assert!(packet.bytes == long && packet.descriptor.is_some() == descriptor.is_some());
            assert_eq!(ours.receive_up_to(2).unwrap().unwrap().bytes, b"ne");
        }
        drop(theirs);
        assert!(ours.receive().unwrap().is_none());
    }

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
