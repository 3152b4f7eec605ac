//! The gateway: an unprivileged process outside the sandbox that serves sockets of the sandbox's network namespace.
//!
//! One thread, one epoll(7), edge-triggered. The address that a client dialled determines the destination (`names`).
//! Never: a file, a DNS query for a name that is not allowed, a wait without an end.

mod connection;
mod decide;
mod flow;
mod front;
mod host_address;
mod questions;
mod resolver;
mod source;

use super::broker::{Broker, Brokers};
use super::ledger::{Ledger, Order, Word};
use super::names::Names;
use super::policy::Policy;
use crate::files::{Channel, take_memory};
use crate::spec::network::Socket;
use crate::start::pages::ProgramPages;
use connection::Waiting;
use connection::{ASK, Connection, Front, Need};
use flow::{Budget, Pipes};
pub(crate) use resolver::Sources;
use resolver::{LookupStep, Resolver};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use source::Source;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Further ones are cut.
const MOST_CONNECTIONS: usize = 1024;
/// Time between checks of deadlines.
const TICK: Duration = Duration::from_millis(500);
/// When a throttled connection continues.
const REFILL: Duration = Duration::from_millis(10);
/// Connections and questions accepted in one go.
const BURST: usize = 64;
/// How often a growing account is sent.
const TELL: Duration = Duration::from_millis(100);
/// After this idle time, memory is released. The next request takes some 100 us longer.
const IDLE: Duration = Duration::from_millis(500);
const USED_UP: &str = "all bytes that may pass have passed";

#[derive(Debug, Default)]
pub(crate) struct Service {
    pub policy: Policy,
    /// Bytes a second, both directions together.
    pub rate: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Listening sockets outside, and the port inside of each.
    pub published: Vec<(OwnedFd, u16)>,
    pub broker: Option<Broker>,
}

struct Gateway {
    epoll: OwnedFd,
    supervisor: Channel,
    init: Option<Channel>,
    policy: Policy,
    brokers: Brokers,
    names: Names,
    resolver: Resolver,
    most: usize,
    ledger: Ledger,
    questions: Option<OwnedFd>,
    listeners: Vec<(OwnedFd, u16)>,
    published: Vec<(OwnedFd, u16)>,
    spares: Vec<OwnedFd>,
    connections: HashMap<u32, Connection>,
    waiting: Waiting,
    next: u32,
    pipes: Pipes,
    budget: Budget,
    again: Vec<u32>,
    later: Vec<u32>,
    wild: decide::Bucket,
    told: Instant,
    finishing: bool,
    parts: Option<ProgramPages>,
}

/// Returns when the supervisor sends the end, or exits.
pub(crate) fn serve(
    mut service: Service,
    mut sources: Sources,
    init: Channel,
    supervisor: Channel,
) -> Result<(), Errno> {
    let now = Instant::now();
    service.broker = None; // the sources have loaded it
    let mut gateway = Gateway {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        supervisor,
        init: Some(init),
        policy: service.policy,
        brokers: sources.brokers(),
        parts: sources.parts(),
        names: Names::default(),
        most: sources.connections(MOST_CONNECTIONS),
        resolver: Resolver::new(sources),
        ledger: Ledger::default(),
        questions: None,
        listeners: Vec::new(),
        published: service.published,
        spares: Vec::new(),
        connections: HashMap::new(),
        waiting: Waiting::default(),
        next: 0,
        pipes: Pipes::default(),
        budget: Budget::new(service.rate, service.total),
        again: Vec::new(),
        later: Vec::new(),
        wild: decide::Bucket::new(),
        told: now,
        finishing: false,
    };
    gateway.watch_level(gateway.supervisor.as_fd(), Source::Supervisor)?;
    if let Some(init) = &gateway.init {
        gateway.watch_level(init.as_fd(), Source::Init)?;
    }
    for (index, (socket, _)) in gateway.published.iter().enumerate() {
        gateway.watch_level(socket.as_fd(), Source::Published(index as u32))?;
    }
    gateway.run()
}

impl Gateway {
    fn watch_level(&self, socket: BorrowedFd<'_>, source: Source) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(source.token()), epoll::EventFlags::IN)
    }

    fn watch_edges(&self, socket: BorrowedFd<'_>, source: Source) -> Result<(), Errno> {
        use epoll::EventFlags as E;
        let flags = E::IN | E::OUT | E::RDHUP | E::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(source.token()), flags)
    }

    fn run(&mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(BURST);
        let (mut swept, mut worked, mut rests) = (Instant::now(), Instant::now(), false);
        loop {
            events.clear();
            let timeout = self.timeout();
            let is_busy = !(self.again.is_empty() && self.later.is_empty());
            if !rests && !is_busy && worked.elapsed() >= IDLE {
                rests = true;
                self.release_memory(); // last before the wait: later code is paged in again
            }
            let timeout = if rests { timeout } else { Some(timeout.unwrap_or(IDLE).min(IDLE)) };
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            for event in &events {
                // Copied out of a packed struct.
                let (flags, data) = (event.flags, event.data);
                if !self.handle(Source::of(data.u64()), flags)? {
                    return Ok(());
                }
            }
            let now = Instant::now();
            if is_busy || !events.is_empty() {
                (worked, rests) = (now, false);
            }
            let again = std::mem::take(&mut self.again);
            again.into_iter().for_each(|number| self.drive(number));
            let later = std::mem::take(&mut self.later);
            later.into_iter().for_each(|number| self.drive(number));
            if now - swept >= TICK {
                swept = now;
                self.sweep(now);
            }
            self.send_rows();
            if self.finishing && self.ledger.next_change().is_none() {
                return self.send_word(&Word::Done).map(|_| ());
            }
        }
    }

    fn timeout(&mut self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let unheard = self.ledger.next_change().is_some();
        let tick = match (self.later.is_empty(), unheard) {
            (false, _) => Some(REFILL),
            (_, true) => Some(TELL),
            _ => None,
        };
        let waits = self.connections.values().any(|connection| connection.deadline.is_some());
        tick.or_else(|| (waits || self.resolver.deadline().is_some()).then_some(TICK))
    }

    fn release_memory(&mut self) {
        for (number, connection) in &mut self.connections {
            connection.release_memory();
            self.waiting.is_too_much(*number, connection); // the next pass acts on it
        }
        if let Some(parts) = &mut self.parts {
            let _ = parts.release(); // pages that cannot be released stay
        }
    }

    /// `false`: the supervisor has exited.
    fn handle(&mut self, source: Source, flags: epoll::EventFlags) -> Result<bool, Errno> {
        match source {
            Source::Supervisor => return self.obey(),
            Source::Init => self.adopt()?,
            Source::Questions => self.answer_datagrams(),
            Source::Listener(index) => self.accept(index as usize),
            Source::Published(index) => self.accept_inward(index as usize),
            Source::Lookup(number) => {
                self.hear_lookup(number);
            }
            Source::Client(number) | Source::Server(number) => {
                use epoll::EventFlags as E;
                let Some(connection) = self.connections.get_mut(&number) else { return Ok(true) };
                let end = match source {
                    Source::Client(_) => Some(&mut connection.client),
                    _ => connection.server.as_mut(),
                };
                if let Some(end) = end {
                    end.readable |= flags.intersects(E::IN | E::RDHUP | E::HUP | E::ERR);
                    end.writable |= flags.intersects(E::OUT | E::HUP | E::ERR);
                }
                self.drive(number);
            }
        }
        Ok(true)
    }

    fn hear_lookup(&mut self, number: u32) {
        match self.resolver.read_replies(number) {
            LookupStep::Nothing => {}
            LookupStep::Answer(answer) => self.resolved(answer),
            LookupStep::Stream => {
                if let Some(socket) = self.resolver.socket(number) {
                    // An unwatched socket ends at its deadline.
                    let _ = self.watch_edges(socket, Source::Lookup(number));
                }
            }
        }
    }

    fn adopt(&mut self) -> Result<(), Errno> {
        let Some(init) = &self.init else { return Ok(()) };
        let packet = init.receive()?;
        let Some(packet) = packet else {
            // Delete it explicitly: another child of the supervisor may have a copy, whose end would wake the gateway
            // without end.
            epoll::delete(&self.epoll, init)?;
            self.init = None;
            return Ok(());
        };
        match (Socket::from_bytes(&packet.bytes), packet.descriptor) {
            (Some(Socket::Questions), Some(socket)) => {
                self.watch_level(socket.as_fd(), Source::Questions)?;
                self.questions = Some(socket);
            }
            (Some(Socket::Listener(port)), Some(socket)) => self.add_listener(socket, port)?,
            (Some(Socket::Spare), Some(socket)) => self.spares.push(socket),
            _ => {}
        }
        Ok(())
    }

    fn add_listener(&mut self, socket: OwnedFd, port: u16) -> Result<(), Errno> {
        self.watch_level(socket.as_fd(), Source::Listener(self.listeners.len() as u32))?;
        self.listeners.push((socket, port));
        Ok(())
    }

    /// `false`: the channel has ended.
    fn obey(&mut self) -> Result<bool, Errno> {
        let Some(packet) = self.supervisor.receive()? else { return Ok(false) };
        match serde_json::from_slice(&packet.bytes) {
            Ok(Order::Allow(text)) => self.allow(&text),
            Ok(Order::Deny(text)) => self.deny(&text),
            Ok(Order::Replace) => {
                let value = packet.descriptor.and_then(|memory| take_memory(memory).ok());
                if let Some(value) = value.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                    self.brokers.replace(value);
                }
            }
            Ok(Order::Revoke(name)) => self.brokers.revoke(&name),
            Ok(Order::Finish) => self.finishing = true,
            Err(_) => {}
        }
        Ok(true)
    }

    fn open(&mut self, connection: Connection) {
        self.next = self.next.wrapping_add(1);
        let number = self.next;
        if self.watch_edges(connection.client.socket.as_fd(), Source::Client(number)).is_err() {
            return;
        }
        self.connections.insert(number, connection);
        self.drive(number);
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..BURST {
            let Some((socket, _)) = self.listeners.get(index) else { return };
            let Some(client) = accepted(socket.as_fd()) else { return };
            if self.connections.len() >= self.most {
                self.ledger.note("(any)", None, false, "too many connections at once");
                cut(&client);
                continue;
            }
            self.welcome(client);
        }
    }

    fn accept_inward(&mut self, index: usize) {
        for _ in 0..BURST {
            let Some((socket, port)) = self.published.get(index) else { return };
            let (port, Some(client)) = (*port, accepted(socket.as_fd())) else { return };
            let Some(spare) = self.spares.pop() else {
                cut(&client);
                continue;
            };
            let mut connection = Connection::new(client, Front::Through);
            if let Err(spare) = connection.dial_inward(spare, port) {
                self.spares.push(spare);
                continue;
            }
            self.open(connection);
            let number = self.next;
            if let Some(server) = self.connections.get(&number).and_then(|connection| connection.server.as_ref()) {
                let _ = self.watch_edges(server.socket.as_fd(), Source::Server(number));
            }
        }
    }

    fn drive(&mut self, number: u32) {
        loop {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            let need = connection.pass(&mut self.pipes, &mut self.budget);
            let is_too_much = self.waiting.is_too_much(number, connection);
            self.account(number);
            if is_too_much {
                self.ledger.note("(any)", None, false, "too many bytes wait in all connections together");
                return self.end(number, true);
            }
            let need = match need {
                Need::Answers => self.answer_stream(number),
                Need::ProxyRequest => self.grant(number),
                Need::Refuse(why) => self.refuse(number, &why),
                Need::Unanswered(why) => self.unanswered(number, &why),
                other => other,
            };
            match need {
                Need::Nothing => return,
                Need::Again => return self.again.push(number),
                Need::Later => {
                    if self.budget.is_used_up() {
                        self.ledger.note("(any)", None, false, USED_UP);
                        return self.end(number, true);
                    }
                    return self.later.push(number);
                }
                Need::Watch => {
                    let Some(server) = self.connections.get(&number).and_then(|each| each.server.as_ref()) else {
                        return;
                    };
                    if self.watch_edges(server.socket.as_fd(), Source::Server(number)).is_err() {
                        return self.end(number, true);
                    }
                }
                Need::End(cut) => return self.end(number, cut),
                Need::Answers | Need::ProxyRequest | Need::Refuse(_) | Need::Unanswered(_) => {}
            }
        }
    }

    fn account(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (sent, received) = (connection.up.take_moved(), connection.down.take_moved());
        if let Some(target) = &connection.target {
            self.ledger.add_bytes(target.row, sent, received);
            self.ledger.add_statuses(target.row, connection.statuses.drain(..));
        }
    }

    fn end(&mut self, number: u32, is_cut: bool) {
        self.account(number);
        let Some(mut connection) = self.connections.remove(&number) else { return };
        self.waiting.forget(number);
        if is_cut {
            cut(&connection.client.socket);
        }
        if let (true, Some(server)) = (connection.inward, connection.server.take()) {
            // A socket of the sandbox's namespace cannot be made here, so it is reused.
            let _ = epoll::delete(&self.epoll, &server.socket);
            if rustix::net::connect_unspec(&server.socket).is_ok() {
                self.spares.push(server.socket);
            }
        }
    }

    fn sweep(&mut self, now: Instant) {
        let (renewed, answers) = self.resolver.expire(now);
        for number in renewed {
            if let Some(socket) = self.resolver.socket(number) {
                let _ = self.watch_level(socket, Source::Lookup(number));
            }
        }
        answers.into_iter().for_each(|answer| self.resolved(answer));
        let late = |connection: &Connection| connection.deadline.is_some_and(|deadline| deadline <= now);
        let numbers: Vec<u32> =
            self.connections.iter().filter(|(_, connection)| late(connection)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            connection.deadline = Some(now + ASK);
            match connection.time_out() {
                Need::End(cut) => self.end(number, cut),
                Need::Watch => {
                    if let Some(server) = self.connections.get(&number).and_then(|each| each.server.as_ref()) {
                        let _ = self.watch_edges(server.socket.as_fd(), Source::Server(number));
                    }
                }
                _ => self.drive(number),
            }
        }
    }

    /// Rows that the supervisor does not read are sent later.
    fn send_rows(&mut self) {
        if !self.finishing && self.told.elapsed() < TELL {
            return;
        }
        while let Some(index) = self.ledger.next_change() {
            let word = Word::Row(index, self.ledger.rows[index].clone());
            match self.send_word(&word) {
                Ok(true) => self.ledger.told(index),
                _ => break,
            }
        }
        self.told = Instant::now();
    }

    /// `false` if the supervisor has not read for long. At the end this waits.
    fn send_word(&self, word: &Word) -> Result<bool, Errno> {
        let bytes = serde_json::to_vec(word).unwrap_or_default();
        match self.supervisor.try_send(&bytes) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) if self.finishing => self.supervisor.send(&bytes, None).map(|()| true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

fn accepted(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    use rustix::net::{SocketFlags, accept_with, sockopt};
    let client = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
    // Without it the connection is only slower.
    let _ = sockopt::set_tcp_nodelay(&client, true);
    Some(client)
}

/// Resets the connection, so that the peer sees an error.
fn cut(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
