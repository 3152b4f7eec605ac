//! A synchronous connection to a bus or to systemd's private socket: no thread, one call at a time.

use super::wire::{CALL, Call, ERROR, MESSAGE_BYTES, Message, PREFIX_BYTES, RETURN, SIGNAL};
use crate::error::{Context, Error, Kind, Result};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// As runc. systemd needs seconds while it loads a thousand units.
pub(super) const REPLY_WAIT: Duration = Duration::from_secs(30);
/// The specification's limit.
const LINE_BYTES: usize = 16 * 1024;
/// Older signals belong to jobs of other programs.
const KEPT_SIGNALS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

/// A bus daemon that routes messages, or systemd itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Bus,
    Direct,
}

#[derive(Debug)]
pub(super) enum CallError {
    Refused { name: String, text: String },
    Broken(Error),
}

#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    peer: Peer,
    serial: u32,
    signals: VecDeque<Message>,
}

impl Bus {
    pub(super) fn connect(address: &Address, peer: Peer) -> Result<Bus> {
        let step = || format!("connect to the bus `{}`", address.show());
        let stream = open(address, REPLY_WAIT).map_err(|errno| late(errno, REPLY_WAIT).doing(step()))?;
        let mut bus = Bus { stream, peer, serial: 0, signals: VecDeque::new() };
        bus.authenticate().map_err(|error| error.doing(step()))?;
        if peer == Peer::Bus {
            let hello = Call {
                destination: Some("org.freedesktop.DBus"),
                path: "/org/freedesktop/DBus",
                interface: "org.freedesktop.DBus",
                member: "Hello",
                signature: "",
                body: Vec::new(),
            };
            bus.call(&hello).map_err(|error| Error::from(error).doing(step()))?;
        }
        Ok(bus)
    }

    /// SASL EXTERNAL without a user id: the peer takes the id from the kernel. In a user namespace the peer sees
    /// another id.
    ///
    /// The handshake is one write, as in libsystemd, without a call. On its private socket, systemd does not read a
    /// call that arrives with `BEGIN` until more bytes come.
    fn authenticate(&mut self) -> Result<()> {
        self.send(b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n")?;
        // The first reply is `DATA`, from an older systemd `OK`; the second is `OK`.
        let first = self.line()?;
        let answer = if first.starts_with("DATA") || first.starts_with("OK ") { self.line()? } else { first };
        if !answer.starts_with("OK ") {
            return Err(Error::new(
                Kind::Cgroup,
                format!("the bus refused authentication: {}", answer.escape_default()),
            ));
        }
        Ok(())
    }

    /// Byte by byte: the bytes after the line belong to a message.
    fn line(&mut self) -> Result<String> {
        let end = Instant::now() + REPLY_WAIT;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.receive(&mut byte, end)?;
            line.push(byte[0]);
            if line.len() > LINE_BYTES {
                return Err(Error::new(Kind::Cgroup, "the bus sent a line without an end"));
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(|cause| {
            let errno = Errno::from_io_error(&cause).unwrap_or(Errno::IO);
            late(errno, REPLY_WAIT).doing("write to the bus")
        })
    }

    fn receive(&mut self, bytes: &mut [u8], end: Instant) -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Kind::Cgroup, format!("no reply within {} s", REPLY_WAIT.as_secs())));
            }
            self.stream.set_read_timeout(Some(left)).failing(Kind::Cgroup, || "wait for the bus")?;
            match self.stream.read(&mut bytes[at..]) {
                Ok(0) => return Err(Error::new(Kind::Cgroup, "the bus closed the connection")),
                Ok(more) => at += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).failing(Kind::Cgroup, || "read from the bus"),
            }
        }
        Ok(())
    }

    fn message(&mut self, end: Instant) -> Result<Message> {
        let torn = || Error::new(Kind::Cgroup, "the bus sent an invalid message");
        let mut bytes = vec![0; PREFIX_BYTES];
        self.receive(&mut bytes, end)?;
        let length = Message::length(&bytes).filter(|length| *length <= MESSAGE_BYTES).ok_or_else(torn)?;
        bytes.resize(length, 0);
        self.receive(&mut bytes[PREFIX_BYTES..], end)?;
        Message::parse(&bytes).ok_or_else(torn)
    }

    /// Keeps signals that arrive before the reply.
    pub(super) fn call(&mut self, call: &Call<'_>) -> Result<Message, CallError> {
        self.serial += 1;
        let serial = self.serial;
        self.send(&call.to_bytes(serial)).map_err(CallError::Broken)?;
        let end = Instant::now() + REPLY_WAIT;
        loop {
            let message = self.message(end).map_err(CallError::Broken)?;
            match message.kind {
                RETURN if message.reply_serial == serial => return Ok(message),
                ERROR if message.reply_serial == serial => {
                    let text = message.body().text().unwrap_or_default();
                    return Err(CallError::Refused { name: message.error_name, text });
                }
                SIGNAL => self.keep(message),
                // A call from the peer (a bus may ping), or a late reply.
                CALL | RETURN | ERROR => {}
                _ => {}
            }
        }
    }

    fn keep(&mut self, signal: Message) {
        if self.signals.len() == KEPT_SIGNALS {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    /// Kept or new; `None` at `end`.
    pub(super) fn signal(&mut self, end: Instant) -> Result<Option<Message>> {
        if let Some(kept) = self.signals.pop_front() {
            return Ok(Some(kept));
        }
        while Instant::now() < end {
            match self.message(end) {
                Ok(message) if message.kind == SIGNAL => return Ok(Some(message)),
                Ok(_) => {}
                Err(_) if Instant::now() >= end => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }
}

/// The timeout is set first: connect(2) waits while the peer accepts no connection.
fn open(address: &Address, wait: Duration) -> Result<UnixStream, Errno> {
    let there = match address {
        Address::Path(path) => SocketAddrUnix::new(path.as_path()),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
    }?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(wait))?;
    connect(&socket, &there)?;
    Ok(socket.into())
}

fn late(errno: Errno, wait: Duration) -> Error {
    if errno == Errno::AGAIN {
        return Error::new(Kind::Cgroup, format!("it took nothing within {} s", wait.as_secs()));
    }
    Error::os(Kind::Cgroup, errno)
}

impl Address {
    /// Parses a list (D-Bus specification, "Server Addresses"). Keeps only sockets of this machine.
    pub(super) fn parse(text: &str) -> Vec<Address> {
        let one = |text: &str| {
            let pairs = text.strip_prefix("unix:")?.split(',').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find_map(|(key, value)| match key {
                "path" => Some(Address::Path(PathBuf::from(String::from_utf8(unescape(value)?).ok()?))),
                "abstract" => Some(Address::Abstract(unescape(value)?)),
                _ => None,
            })
        };
        text.split(';').filter_map(one).collect()
    }

    fn show(&self) -> String {
        match self {
            Address::Path(path) => path.display().to_string(),
            Address::Abstract(name) => format!("@{}", String::from_utf8_lossy(name).escape_default()),
        }
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut parts = text.split('%');
    out.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        out.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        out.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(out)
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Broken(error) => error,
            CallError::Refused { name, text } => Error::new(Kind::Cgroup, format!("{text} ({name})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_kept() {
        assert_eq!(
            Address::parse("tcp:host=x;unix:path=/run/user/1000/bus,guid=ab;unix:abstract=/tmp/a%20b"),
            [Address::Path("/run/user/1000/bus".into()), Address::Abstract(b"/tmp/a b".to_vec())]
        );
        assert_eq!(Address::parse("unix:path=/a%2"), []);
    }

    #[test]
    fn a_peer_that_accepts_and_reads_nothing_is_not_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Path(folder.path().join("bus"));
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(folder.path().join("bus")).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let wait = Duration::from_millis(50);
        let mut first = open(&address, wait).unwrap();
        assert_eq!(open(&address, wait).unwrap_err(), Errno::AGAIN);
        let cause = first.write_all(&vec![0; 8 << 20]).unwrap_err();
        assert_eq!(cause.kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(late(Errno::AGAIN, REPLY_WAIT).to_string(), "it took nothing within 30 s");
    }
}
