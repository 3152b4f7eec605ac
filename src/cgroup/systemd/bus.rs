//! A synchronous connection to a bus or to systemd's own socket: no thread, no event loop, one call at a time.

use super::wire::{CALL, Call, ERROR, MESSAGE_BYTES, Message, PREFIX_BYTES, RETURN, SIGNAL};
use crate::error::{Context, Error, Kind, Result};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// systemd answers in milliseconds; when it is loading a thousand units it can take many seconds. runc waits as long.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The longest line of the handshake (the specification's limit).
const LINE_BYTES: usize = 16 * 1024;
/// Signals that nobody has asked for yet; older ones are of jobs that are not ours.
const SIGNALS: usize = 1024;

/// Where a bus or a peer listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

/// Whether a daemon routes messages, or the other side is systemd itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Bus,
    Direct,
}

/// Why a call did not return.
#[derive(Debug)]
pub(super) enum Failure {
    /// The other side said no: the error's name and its words.
    Refused { name: String, words: String },
    /// The connection is of no more use.
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
    /// Connects and says who we are.
    pub(super) fn connect(address: &Address, peer: Peer) -> Result<Bus> {
        let words = || format!("connect to the bus `{}`", address.show());
        let stream = match address {
            Address::Path(path) => UnixStream::connect(path),
            Address::Abstract(name) => {
                SocketAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address))
            }
        };
        let mut bus = Bus { stream: stream.failing(Kind::Cgroup, words)?, peer, serial: 0, signals: VecDeque::new() };
        bus.authenticate().map_err(|error| error.doing(words()))?;
        if peer == Peer::Bus {
            let hello = Call {
                destination: Some("org.freedesktop.DBus"),
                path: "/org/freedesktop/DBus",
                interface: "org.freedesktop.DBus",
                member: "Hello",
                signature: "",
                body: Vec::new(),
            };
            bus.call(&hello).map_err(|failure| Error::from(failure).doing(words()))?;
        }
        Ok(bus)
    }

    /// SASL EXTERNAL without a name: the other side takes the one that the kernel tells it, which is right in a user
    /// namespace too, where the id that we know is not the one that it sees.
    ///
    /// All of it goes in one write, as libsystemd's own clients do: of a `BEGIN` and a call that systemd finds together on
    /// its private socket, it leaves the call lying until more comes.
    fn authenticate(&mut self) -> Result<()> {
        self.send(b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n")?;
        // To the first line `DATA`, from an older systemd `OK`; to the second `OK`.
        let first = self.line()?;
        let answer = if first.starts_with("DATA") || first.starts_with("OK ") { self.line()? } else { first };
        if !answer.starts_with("OK ") {
            return Err(Error::new(Kind::Cgroup, format!("the bus refuses us: {}", answer.escape_default())));
        }
        Ok(())
    }

    /// One line of the handshake. Byte by byte: nothing may be read of what follows.
    fn line(&mut self) -> Result<String> {
        let end = Instant::now() + ANSWER_WAIT;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.receive(&mut byte, end)?;
            line.push(byte[0]);
            if line.len() > LINE_BYTES {
                return Err(Error::new(Kind::Cgroup, "the bus answers without end"));
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).failing(Kind::Cgroup, || "write to the bus")
    }

    fn receive(&mut self, bytes: &mut [u8], end: Instant) -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Kind::Cgroup, format!("no answer within {} s", ANSWER_WAIT.as_secs())));
            }
            self.stream.set_read_timeout(Some(left)).failing(Kind::Cgroup, || "wait for the bus")?;
            match self.stream.read(&mut bytes[at..]) {
                Ok(0) => return Err(Error::new(Kind::Cgroup, "the bus hung up")),
                Ok(more) => at += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).failing(Kind::Cgroup, || "read from the bus"),
            }
        }
        Ok(())
    }

    fn message(&mut self, end: Instant) -> Result<Message> {
        let torn = || Error::new(Kind::Cgroup, "the bus sent a message that is none");
        let mut bytes = vec![0; PREFIX_BYTES];
        self.receive(&mut bytes, end)?;
        let length = Message::length(&bytes).filter(|length| *length <= MESSAGE_BYTES).ok_or_else(torn)?;
        bytes.resize(length, 0);
        self.receive(&mut bytes[PREFIX_BYTES..], end)?;
        Message::parse(&bytes).ok_or_else(torn)
    }

    /// Calls and waits for the answer. Signals that come before it are kept.
    pub(super) fn call(&mut self, call: &Call<'_>) -> Result<Message, Failure> {
        self.serial += 1;
        let serial = self.serial;
        self.send(&call.to_bytes(serial)).map_err(Failure::Broken)?;
        let end = Instant::now() + ANSWER_WAIT;
        loop {
            let message = self.message(end).map_err(Failure::Broken)?;
            match message.kind {
                RETURN if message.reply_serial == serial => return Ok(message),
                ERROR if message.reply_serial == serial => {
                    let words = message.body().text().unwrap_or_default();
                    return Err(Failure::Refused { name: message.error_name, words });
                }
                SIGNAL => self.keep(message),
                // A call to us (a bus may ping) or an answer that came too late.
                CALL | RETURN | ERROR => {}
                _ => {}
            }
        }
    }

    fn keep(&mut self, signal: Message) {
        if self.signals.len() == SIGNALS {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    /// The next signal, kept or new; `None` when `end` has come.
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

impl Address {
    /// Every address of a list such as `unix:path=/run/user/1000/bus,guid=…;unix:abstract=/tmp/x` that is a socket of
    /// this machine (D-Bus specification, "Server Addresses").
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

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Broken(error) => error,
            Failure::Refused { name, words } => Error::new(Kind::Cgroup, format!("{words} ({name})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_their_escapes_and_others_left_out() {
        assert_eq!(
            Address::parse("tcp:host=x;unix:path=/run/user/1000/bus,guid=ab;unix:abstract=/tmp/a%20b"),
            [Address::Path("/run/user/1000/bus".into()), Address::Abstract(b"/tmp/a b".to_vec())]
        );
        assert_eq!(Address::parse("unix:path=/a%2"), []);
    }
}
