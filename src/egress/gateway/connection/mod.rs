//! A client's connection: reads its destination, decides, dials the server, moves bytes.

mod brokered;
mod dial;

use super::flow::{Budget, End, Flow, Pass, Pipes};
use super::front::{self, Opening, SSH};
use crate::egress::broker::Served;
use crate::egress::hello::HANDSHAKE;
use crate::egress::http::{self, Requests, Step};
use crate::egress::policy::Ech;
use crate::egress::rule::{Host, Rule};
use crate::sys::weaken;
use brokered::{Brokered, HTTP_2_PREFACE, HTTP_2_REFUSED};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a client that wait for a check.
pub(super) const HELD: usize = 72 * 1024;
/// Time for one address to answer.
pub(super) const DIAL: Duration = Duration::from_secs(10);
/// Time for a client to send its request.
pub(super) const ASK: Duration = Duration::from_secs(30);
/// How a server accepts a websocket.
const AGREED: &[u8] = b"HTTP/1.1 101";
/// Time for the last bytes.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
    /// In the ledger.
    pub(super) row: usize,
}

pub(super) enum Front {
    /// DNS by TCP.
    Questions,
    /// SOCKS5 has two steps.
    Proxy {
        greeted: bool,
    },
    Opening,
    /// Each request is checked.
    Requests {
        requests: Requests,
        count: u64,
        upgrade: bool,
    },
    /// The client's first line passes; the rest waits for the server's.
    Ssh,
    Brokered(Box<Brokered>),
    Through,
    /// The client receives the buffered answer; its bytes are discarded.
    Farewell,
}

pub(super) enum Back {
    None,
    Resolving,
    /// The other addresses wait.
    Dialling(VecDeque<SocketAddr>),
    Open,
    /// The reason.
    Failed(String),
}

/// How a proxy client learns that its connection is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyReply {
    None,
    Connect,
    Socks,
}

pub(super) struct Connection {
    pub(super) front: Front,
    pub(super) back: Back,
    pub(super) proxy_reply: ProxyReply,
    pub(super) target: Option<Target>,
    pub(super) client: End,
    pub(super) server: Option<End>,
    /// The address of `server`.
    dialled: Option<SocketAddr>,
    /// The client's bytes before a decision.
    pub(super) held: Vec<u8>,
    pub(super) client_ended: bool,
    /// Bytes in `held` wait for room in `up`.
    held_back: bool,
    /// Of the server's answers since the last call.
    pub(super) statuses: Vec<u16>,
    pub(super) broker: Option<Rc<Served>>,
    pub(super) ech: Ech,
    pub(super) up: Flow,
    pub(super) down: Flow,
    pub(super) deadline: Option<Instant>,
    /// Whether the server's socket returns to the spare ones.
    pub(super) inward: bool,
    /// The rules exclude this host's addresses. Checked again at the dial: those addresses change.
    pub(super) stays_out: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Wait until a socket is ready.
    Nothing,
    /// Make another pass soon.
    Again,
    /// Make another pass when the rate allows it.
    Later,
    /// Answer the DNS questions in `held`.
    Answers,
    /// Decide on the request in `held`.
    ProxyRequest,
    /// Watch a new socket of the server's side.
    Watch,
    /// The server cannot be reached or trusted; inform the client.
    Unanswered(String),
    /// Record a refusal; the connection sends a last answer or ends.
    Refuse(String),
    /// `true` resets the client.
    End(bool),
}

impl Connection {
    pub(super) fn new(client: OwnedFd, front: Front) -> Connection {
        Connection {
            front,
            back: Back::None,
            proxy_reply: ProxyReply::None,
            target: None,
            client: End::new(client),
            server: None,
            dialled: None,
            held: Vec::new(),
            client_ended: false,
            held_back: false,
            statuses: Vec::new(),
            broker: None,
            ech: Ech::Refuse,
            up: Flow::default(),
            down: Flow::default(),
            deadline: None,
            inward: false,
            stays_out: false,
        }
    }

    /// Goes as far as it can without waiting.
    pub(super) fn pass(&mut self, pipes: &mut Pipes, budget: &mut Budget) -> Need {
        self.try_pass(pipes, budget).unwrap_or(Need::End(true))
    }

    fn try_pass(&mut self, pipes: &mut Pipes, budget: &mut Budget) -> Result<Need, Errno> {
        if let Front::Brokered(_) = self.front {
            return self.pass_brokered(budget);
        }
        self.read_client()?;
        match self.front {
            Front::Questions if !self.held.is_empty() => return Ok(Need::Answers),
            Front::Proxy { .. } if !self.held.is_empty() => return Ok(Need::ProxyRequest),
            Front::Questions => return self.ask_on(),
            Front::Proxy { .. } => {
                self.down.flush(&mut self.client)?;
                return Ok(if self.client_ended { Need::End(false) } else { Need::Nothing });
            }
            _ => {}
        }
        if let Back::Dialling(_) = self.back
            && let Some(need) = self.check_dial()?
        {
            return Ok(need);
        }
        if let Some(refusal) = self.check_held()? {
            return Ok(Need::Refuse(refusal));
        }
        if let Front::Brokered(_) = self.front {
            return self.pass_brokered(budget);
        }
        if let Front::Farewell = self.front {
            self.down.flush(&mut self.client)?;
            self.down.ended = true;
            self.down.close_when_done(&self.client)?;
            self.discard()?;
            return Ok(if self.down.closed && self.client_ended { Need::End(false) } else { Need::Nothing });
        }
        if let Back::Failed(why) = &self.back {
            return Ok(match (&self.front, self.target.as_ref()) {
                (Front::Requests { .. }, _) => self.farewell(http::answer(502, &why.clone())),
                // A client of HTTP receives the reason: wait for its request.
                (Front::Opening, Some(Target { port: 80, .. })) if !self.client_ended => Need::Nothing,
                (Front::Opening, _) if self.broker.is_some() && !self.client_ended => Need::Nothing,
                _ => Need::End(true),
            });
        }
        self.exchange(pipes, budget)
    }

    pub(super) fn release_memory(&mut self) {
        self.held.shrink_to_fit();
        if let Front::Brokered(tls) = &mut self.front {
            tls.release_memory();
        }
    }

    fn read_client(&mut self) -> Result<(), Errno> {
        if matches!(self.front, Front::Through | Front::Farewell | Front::Requests { upgrade: true, .. }) {
            return Ok(());
        }
        let mut buffer = [0_u8; 16 * 1024];
        let has_room = self.up.waiting() < HELD && self.down.waiting() < HELD;
        while has_room && self.client.readable && !self.client_ended && self.held.len() < HELD {
            match recv(&self.client.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => self.client_ended = true,
                Ok((_, count)) => self.held.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Closing with unread bytes would lose the answer (TCP reset).
    fn discard(&mut self) -> Result<(), Errno> {
        let mut buffer = [0_u8; 16 * 1024];
        while self.client.readable && !self.client_ended {
            match recv(&self.client.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => self.client_ended = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn check_held(&mut self) -> Result<Option<String>, Errno> {
        let Some(Target { host, port, .. }) = self.target.clone() else { return Ok(None) };
        if let Front::Opening = self.front {
            // Where TLS ends here, the visible name counts.
            let ech = if self.broker.is_some() { Ech::Pass } else { self.ech };
            let opening = front::opening(&self.held, &host, port, ech);
            if let (Some(served), Opening::Through | Opening::Requests | Opening::Ssh(_)) = (&self.broker, &opening) {
                if self.held.starts_with(HTTP_2_PREFACE) {
                    return Ok(Some(HTTP_2_REFUSED.to_owned()));
                }
                if self.held.first() != Some(&HANDSHAKE) {
                    return Ok(Some(format!("the broker serves `{host}:{port}`, and takes TLS only")));
                }
                return Ok(self.begin_broker(Rc::clone(served)).err());
            }
            match opening {
                Opening::More if self.client_ended => self.front = Front::Through, // the client sent nothing
                Opening::More => {}
                Opening::Through => {
                    self.up.push(&std::mem::take(&mut self.held));
                    self.front = Front::Through;
                }
                Opening::Ssh(first) => {
                    self.up.push(&self.held[..first]);
                    self.held.drain(..first);
                    self.front = Front::Ssh;
                }
                Opening::Requests if weaken::is_off("egress-host") => {
                    self.up.push(&std::mem::take(&mut self.held));
                    self.front = Front::Through;
                }
                Opening::Requests => {
                    self.front = Front::Requests { requests: Requests::new(), count: 0, upgrade: false };
                }
                Opening::Refused(why) => return Ok(Some(why)),
            }
        }
        let Front::Requests { requests, count, upgrade } = &mut self.front else { return Ok(None) };
        while !*upgrade && self.up.waiting() < HELD {
            match requests.step(&self.held) {
                Step::More => break,
                Step::Content(length) => {
                    self.up.push(&self.held[..length]);
                    self.held.drain(..length);
                }
                Step::Head(head, length) => {
                    if let Some(why) = front::check_request(&head, &host, port) {
                        return Ok(Some(why));
                    }
                    *count += 1;
                    // A later upgrade could not be matched to its answer.
                    *upgrade = head.websocket && *count == 1;
                    self.up.push(&self.held[..length]);
                    self.held.drain(..length);
                }
                Step::Invalid(why) => return Ok(Some(format!("the request is not as it must be: {why}"))),
            }
        }
        self.held_back = self.up.waiting() >= HELD;
        if self.held.is_empty() {
            self.held = Vec::new();
        }
        Ok(None)
    }

    fn exchange(&mut self, pipes: &mut Pipes, budget: &mut Budget) -> Result<Need, Errno> {
        let (Back::Open, Some(server)) = (&self.back, &mut self.server) else {
            self.down.flush(&mut self.client)?; // a proxy's answer
            // A client that sent its request and waits for the answer has not ended.
            let silent = self.client_ended && self.held.is_empty() && self.up.waiting() == 0;
            return Ok(if silent { Need::End(false) } else { Need::Nothing });
        };
        if let Front::Ssh = self.front {
            if self.up.flush_within(server, budget)? == Pass::Throttled {
                return Ok(Need::Later);
            }
            match begins_with(server, SSH)? {
                None => {
                    self.deadline.get_or_insert_with(|| Instant::now() + ASK);
                    return Ok(Need::Nothing);
                }
                Some(false) => {
                    return Ok(Need::Refuse("the client begins as SSH does, and the server does not".into()));
                }
                Some(true) => (self.front, self.deadline) = (Front::Through, None),
            }
            self.up.push(&std::mem::take(&mut self.held));
        }
        if let Front::Requests { upgrade: true, .. } = self.front {
            if self.up.flush_within(server, budget)? == Pass::Throttled {
                return Ok(Need::Later);
            }
            match begins_with(server, AGREED)? {
                None => return Ok(Need::Nothing),
                Some(true) => self.front = Front::Through,
                Some(false) => self.front = Front::Requests { requests: Requests::new(), count: 1, upgrade: false },
            }
            self.up.push(&std::mem::take(&mut self.held));
            if let Front::Requests { .. } = self.front {
                // Bytes before the answer were meant for a websocket.
                if self.up.waiting() > 0 {
                    return Ok(Need::Refuse("more bytes than the request before the server's answer".into()));
                }
                return Ok(Need::Again);
            }
        }
        let up = match self.front {
            Front::Through => self.up.splice(&mut self.client, server, pipes, budget)?,
            _ => {
                let pass = self.up.flush_within(server, budget)?;
                self.up.ended = self.client_ended && self.held.is_empty();
                self.up.close_when_done(server)?;
                // Read again what waited for room.
                let can_read = self.client.readable && !self.client_ended;
                let held_back = std::mem::replace(&mut self.held_back, false) || can_read;
                if held_back && self.up.waiting() == 0 { Pass::More } else { pass }
            }
        };
        let down = self.down.splice(server, &mut self.client, pipes, budget)?;
        if self.up.closed && self.down.closed {
            return Ok(Need::End(false));
        }
        if self.down.closed && !matches!(self.front, Front::Through) {
            return Ok(Need::End(false)); // a closed server accepts no more requests
        }
        Ok(match (up, down) {
            (Pass::Throttled, _) | (_, Pass::Throttled) => Need::Later,
            (Pass::More, _) | (_, Pass::More) => Need::Again,
            _ => Need::Nothing,
        })
    }

    pub(super) fn farewell(&mut self, answer: Vec<u8>) -> Need {
        self.down.push(&answer);
        (self.server, self.back) = (None, Back::None);
        self.front = Front::Farewell;
        self.held = Vec::new();
        self.deadline = Some(Instant::now() + FAREWELL);
        Need::Again
    }

    pub(super) fn time_out(&mut self) -> Need {
        match &mut self.back {
            Back::Dialling(_) if self.inward => Need::End(true), // the server's socket is reused
            Back::Dialling(rest) if !rest.is_empty() => {
                let rest = std::mem::take(rest);
                self.dial(rest)
            }
            Back::Dialling(_) | Back::Resolving => {
                self.server = None;
                self.failed("the server does not answer in time".into())
            }
            _ => match &mut self.front {
                Front::Brokered(tls) => tls.time_out(),
                _ => Need::End(true),
            },
        }
    }
}

impl Connection {
    /// Whether it leads, or may still lead, to a host or an address that the rule denies.
    pub(super) fn is_denied(&self, rule: &Rule) -> bool {
        let rest = match &self.back {
            Back::Dialling(rest) => Some(rest),
            _ => None,
        };
        let denies = |each: &SocketAddr| rule.denies(&Host::Address(each.ip().to_canonical()), each.port());
        self.target.as_ref().is_some_and(|target| rule.denies(&target.host, target.port))
            || self.dialled.iter().chain(rest.into_iter().flatten()).any(denies)
    }
}

/// `None` until the bytes come.
fn begins_with(server: &mut End, words: &[u8]) -> Result<Option<bool>, Errno> {
    let mut first = [0_u8; AGREED.len()];
    let first = &mut first[..words.len().min(AGREED.len())];
    match recv(&server.socket, &mut *first, RecvFlags::PEEK) {
        Ok((_, count)) if count < words.len() && count > 0 && words.starts_with(&first[..count]) => Ok(None),
        Ok((_, count)) => Ok(Some(first[..count] == *words)),
        Err(Errno::AGAIN | Errno::INTR) => {
            server.readable = false;
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

/// A connection whose peer does not read buffers up to 0.6 MiB, and there are 1,024.
const MOST: usize = 32 << 20;
/// A connection with less is not cut for the sum.
const LITTLE: usize = 16 << 10;

/// A bound on the buffers of all connections: the sandbox's memory limit does not cover the gateway.
#[derive(Default)]
pub(super) struct Waiting {
    sum: usize,
    of: HashMap<u32, usize>,
}

impl Waiting {
    /// Returns whether the connection must end.
    pub(super) fn is_too_much(&mut self, number: u32, connection: &Connection) -> bool {
        self.count(number, connection.memory())
    }

    fn count(&mut self, number: u32, bytes: usize) -> bool {
        self.sum = self.sum + bytes - self.of.insert(number, bytes).unwrap_or(0);
        self.sum > MOST && bytes > LITTLE && !weaken::is_off("gateway-memory")
    }

    pub(super) fn forget(&mut self, number: u32) {
        self.sum -= self.of.remove(&number).unwrap_or(0);
    }
}

impl Connection {
    fn memory(&self) -> usize {
        let in_tls = match &self.front {
            Front::Brokered(tls) => tls.memory(),
            _ => 0,
        };
        self.held.capacity() + self.up.memory() + self.down.memory() + in_tls
    }
}

#[cfg(test)]
mod tests;
