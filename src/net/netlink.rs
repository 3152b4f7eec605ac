//! A small rtnetlink(7) client. Numbers are from linux/netlink.h and linux/rtnetlink.h.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
pub(super) const CREATE: u16 = 0x400;
const REPLACE: u16 = 0x100;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
/// From the type of a NEW message to that of its GET message.
const ASK: u16 = 2;

/// NEW messages. The DEL message has the next number.
pub(super) const LINK: u16 = 16;
pub(super) const ADDRESS: u16 = 20;
pub(super) const ROUTE: u16 = 24;
/// `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg`.
pub(super) const LINK_BYTES: usize = 16;
pub(super) const ADDRESS_BYTES: usize = 8;
pub(super) const ROUTE_BYTES: usize = 12;
pub(super) const LINK_NAME: u16 = 3;
pub(super) const LINK_INFO: u16 = 18;
/// In [`LINK_INFO`], as `ip link add … type KIND`.
pub(super) const LINK_KIND: u16 = 1;
pub(super) const LINK_NAMESPACE: u16 = 28;
/// The same in every network namespace.
pub(super) const LOOPBACK: u32 = 1;
/// `IFF_UP`.
pub(super) const UP: u32 = 1;
/// The kernel's answers are at most a page or this; a smaller buffer would cut them.
const BUFFER: usize = 32 << 10;

/// In the network namespace that opened it.
#[derive(Debug)]
pub(crate) struct Route(OwnedFd);

#[derive(Default)]
pub(super) struct Request(Vec<u8>);

impl Request {
    pub(super) fn new(fixed: &[u8]) -> Request {
        Request(fixed.to_vec())
    }

    pub(super) fn nest(self, kind: u16, Request(inner): Request) -> Request {
        const NESTED: u16 = 0x8000;
        self.attribute(kind | NESTED, &inner)
    }

    /// Adds the NUL.
    pub(super) fn text(self, kind: u16, words: &str) -> Request {
        self.attribute(kind, &[words.as_bytes(), b"\0"].concat())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Aligned to four bytes.
    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        let length = (value.len() + 4) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

impl From<OwnedFd> for Route {
    fn from(socket: OwnedFd) -> Route {
        Route(socket)
    }
}

impl AsFd for Route {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Route {
    pub(crate) fn open() -> Result<Route, Errno> {
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).map(Route)
    }

    pub(super) fn change(&self, kind: u16, request: Request) -> Result<(), Errno> {
        self.exchange(kind, ACKNOWLEDGE, request).map(drop)
    }

    /// The object must not exist.
    pub(super) fn make(&self, kind: u16, request: Request) -> Result<(), Errno> {
        const EXCLUSIVE: u16 = 0x200;
        self.exchange(kind, ACKNOWLEDGE | CREATE | EXCLUSIVE, request).map(drop)
    }

    pub(super) fn remove(&self, kind: u16, request: Request) -> Result<(), Errno> {
        self.exchange(kind + 1, ACKNOWLEDGE, request).map(drop)
    }

    /// The message after its header.
    pub(super) fn get(&self, kind: u16, request: Request) -> Result<Option<Vec<u8>>, Errno> {
        self.ask(kind, ACKNOWLEDGE, request).map(|told| told.into_iter().next())
    }

    /// Creates or replaces.
    pub(super) fn add(&self, kind: u16, request: Request) -> Result<(), Errno> {
        self.exchange(kind, ACKNOWLEDGE | CREATE | REPLACE, request).map(drop)
    }

    pub(super) fn dump(&self, kind: u16, request: Request) -> Result<Vec<Vec<u8>>, Errno> {
        self.ask(kind, DUMP, request)
    }

    fn ask(&self, kind: u16, flags: u16, request: Request) -> Result<Vec<Vec<u8>>, Errno> {
        let answers = self.exchange(kind + ASK, flags, request)?;
        Ok(answers.into_iter().filter(|(each, _)| *each == kind).map(|(_, body)| body).collect())
    }

    /// The type of each reply, and the bytes after its header.
    fn exchange(&self, kind: u16, flags: u16, Request(body): Request) -> Result<Vec<(u16, Vec<u8>)>, Errno> {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend([0; 8]); // number and port: one request at a time
        message.extend(body);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0_u8; BUFFER];
        loop {
            let (length, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..length];
            while let Some((kind, body, after)) = split(rest) {
                match kind {
                    DONE => return Ok(answers),
                    ERROR => return outcome(body).map(|()| answers),
                    kind => answers.push((kind, body.to_vec())),
                }
                rest = after;
            }
        }
    }
}

/// 0 is success. A message without a number is EIO.
pub(super) fn outcome(body: &[u8]) -> Result<(), Errno> {
    match body.first_chunk().map_or(-Errno::IO.raw_os_error(), |bytes| i32::from_ne_bytes(*bytes)) {
        0 => Ok(()),
        code => Err(Errno::from_raw_os_error(-code)),
    }
}

pub(super) fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

pub(super) fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_written_and_torn_ones_end_the_list() {
        let Request(bytes) = Request::new(&[0; 4]).attribute(3, b"eth0\0").attribute(28, &7_u32.to_ne_bytes());
        let found: Vec<_> = attributes(&bytes, 4).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (28, &7_u32.to_ne_bytes()[..])]);
        assert_eq!(attributes(&bytes[..bytes.len() - 1], 4).count(), 1);
        assert_eq!(attributes(&[9, 0], 0).count(), 0);
        assert!(split(&[255; 8]).is_none());
    }
}
