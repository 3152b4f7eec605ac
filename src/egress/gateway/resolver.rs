//! A stub resolver: the C library's would need files and threads.
//!
//! Each question has a random id and a new socket, so the kernel picks a random port (RFC 5452).

use crate::egress::broker::{Broker, Brokers};
use crate::egress::dns::{self, Reply};
use crate::error::Result;
use crate::start::pages::ProgramPages;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time for one server.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often all servers are asked.
const ROUNDS: usize = 2;
/// The shortest and the longest cache time of an answer, in seconds.
const KEPT: (u32, u32) = (1, 300);
/// Cache time of a failure.
const KEPT_NOTHING: Duration = Duration::from_secs(5);
const MOST: usize = 512;
/// resolv.conf(5) has at most three servers.
const MOST_SERVERS: usize = 3;
/// Two messages.
const LONGEST_STREAM: usize = 2 * (65_535 + 2);
const PORT: u16 = 53;
const KINDS: [u16; 2] = [dns::A, dns::AAAA];

/// The addresses of a name, or why it has none.
pub(super) type Found = std::result::Result<Vec<IpAddr>, String>;

/// Read from the host before the gateway loses access to files.
#[derive(Default)]
pub(crate) struct Sources {
    servers: Vec<SocketAddr>,
    hosts: HashMap<String, Vec<IpAddr>>,
    descriptors: u64,
    brokers: Brokers,
    /// Pages to release; `None` keeps them.
    parts: Option<ProgramPages>,
}

impl Sources {
    /// An explicit resolver replaces the host's servers and `/etc/hosts`.
    pub(crate) fn read(resolver: Option<SocketAddr>, broker: Option<&Broker>) -> Result<Sources> {
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let brokers = broker.map(Brokers::load).transpose()?.unwrap_or_default();
        let parts = ProgramPages::open().ok();
        if let Some(server) = resolver {
            return Ok(Sources { servers: vec![server], hosts: HashMap::new(), descriptors, brokers, parts });
        }
        let text = |path| std::fs::read_to_string(path).unwrap_or_default(); // like the C library: a missing file has no entries
        let (servers, hosts) = (servers(&text("/etc/resolv.conf")), hosts(&text("/etc/hosts")));
        Ok(Sources { servers, hosts, descriptors, brokers, parts })
    }

    pub(super) fn brokers(&mut self) -> Brokers {
        std::mem::take(&mut self.brokers)
    }

    pub(super) fn parts(&mut self) -> Option<ProgramPages> {
        self.parts.take()
    }
}

impl Sources {
    /// A connection has two sockets, and two pipes while bytes are in transit.
    pub(super) fn connections(&self, most: usize) -> usize {
        const OTHERS: u64 = 400;
        usize::try_from(self.descriptors.saturating_sub(OTHERS) / 6).map_or(most, |some| some.clamp(16, most))
    }
}

fn servers(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut all: Vec<_> = named
        .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address, PORT))
        .take(MOST_SERVERS)
        .collect();
    if all.is_empty() {
        all.push((Ipv4Addr::LOCALHOST, PORT).into());
    }
    all
}

fn hosts(text: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut all: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        words.for_each(|name| all.entry(name.to_ascii_lowercase()).or_default().push(address));
    }
    all
}

/// Over TCP, after a truncated answer (RFC 7766, section 5).
#[derive(Default)]
struct Stream {
    unsent: Vec<u8>,
    got: Vec<u8>,
    /// Truncated replies of the datagrams, as a fallback.
    short: [Option<Reply>; 2],
}

struct Lookup {
    name: String,
    socket: OwnedFd,
    ids: [u16; 2],
    replies: [Option<Reply>; 2],
    asked: usize,
    stream: Option<Stream>,
    deadline: Instant,
    waiting: Vec<u32>,
}

pub(super) enum LookupStep {
    Nothing,
    Answer(Answer),
    /// A new TCP socket must be watched for both directions.
    Stream,
}

pub(super) struct Answer {
    pub(super) found: Found,
    pub(super) waiting: Vec<u32>,
}

pub(super) enum Resolution {
    Known(Found),
    /// The lookup's number, and whether its socket is new.
    Waiting(u32, bool),
}

pub(super) struct Resolver {
    sources: Sources,
    known: HashMap<String, (Found, Instant)>,
    lookups: HashMap<u32, Lookup>,
    next: u32,
}

impl Resolver {
    pub(super) fn new(sources: Sources) -> Resolver {
        Resolver { sources, known: HashMap::new(), lookups: HashMap::new(), next: 0 }
    }

    /// Whether [`Resolver::resolve`] sends a question.
    pub(super) fn must_ask(&self, name: &str) -> bool {
        let is_known = self.known.get(name).is_some_and(|(_, until)| *until > Instant::now());
        let is_asked = self.lookups.values().any(|lookup| lookup.name == name);
        !(self.sources.hosts.contains_key(name) || is_known || is_asked)
    }

    pub(super) fn resolve(&mut self, name: &str, connection: u32) -> Resolution {
        if let Some(addresses) = self.sources.hosts.get(name) {
            return Resolution::Known(Ok(addresses.clone()));
        }
        let now = Instant::now();
        match self.known.get(name) {
            Some((found, until)) if *until > now => return Resolution::Known(found.clone()),
            _ => {}
        }
        if let Some((number, lookup)) = self.lookups.iter_mut().find(|(_, lookup)| lookup.name == name) {
            lookup.waiting.push(connection);
            return Resolution::Waiting(*number, false);
        }
        let (socket, ids, asked) = match self.ask_next(name, 0) {
            Ok(sent) => sent,
            Err(errno) => return Resolution::Known(Err(format!("ask `{}`: {errno}", self.sources.servers[0]))),
        };
        self.next = self.next.wrapping_add(1);
        let lookup = Lookup {
            name: name.to_owned(),
            socket,
            ids,
            replies: [None, None],
            asked,
            stream: None,
            deadline: now + PATIENCE,
            waiting: vec![connection],
        };
        self.lookups.insert(self.next, lookup);
        Resolution::Waiting(self.next, true)
    }

    pub(super) fn socket(&self, number: u32) -> Option<BorrowedFd<'_>> {
        self.lookups.get(&number).map(|lookup| lookup.socket.as_fd())
    }

    /// Asks the first server that takes the question, after `asked` of all rounds. Returns how many it passed.
    fn ask_next(&self, name: &str, asked: usize) -> Result<(OwnedFd, [u16; 2], usize), Errno> {
        let mut last = Errno::TIMEDOUT;
        for server in asked..ROUNDS * self.sources.servers.len() {
            match self.send(name, server) {
                Ok((socket, ids)) => return Ok((socket, ids, server + 1)),
                Err(errno) => last = errno, // such as no route to its family
            }
        }
        Err(last)
    }

    fn send(&self, name: &str, server: usize) -> Result<(OwnedFd, [u16; 2]), Errno> {
        let socket = self.connect(server, SocketType::DGRAM)?;
        let ids = random_ids()?;
        for (id, kind) in ids.into_iter().zip(KINDS) {
            send(&socket, &dns::write_question(id, name, kind), SendFlags::NOSIGNAL)?;
        }
        Ok((socket, ids))
    }

    fn connect(&self, server: usize, kind: SocketType) -> Result<OwnedFd, Errno> {
        let server = self.sources.servers[server % self.sources.servers.len()];
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        }
    }

    /// Asks again for the truncated replies.
    fn ask_by_stream(&mut self, number: u32) -> Result<(), Errno> {
        let Some(lookup) = self.lookups.get(&number) else { return Ok(()) };
        let socket = self.connect(lookup.asked - 1, SocketType::STREAM)?;
        let ids = random_ids()?;
        let Some(lookup) = self.lookups.get_mut(&number) else { return Ok(()) };
        let mut stream = Stream::default();
        for (index, kind) in KINDS.into_iter().enumerate() {
            let Some(Reply::Truncated(some, seconds)) = &lookup.replies[index] else { continue };
            let short = if some.is_empty() { Reply::Failed } else { Reply::Addresses(some.clone(), *seconds) };
            (stream.short[index], lookup.replies[index]) = (Some(short), None);
            let question = dns::write_question(ids[index], &lookup.name, kind);
            stream.unsent.extend((question.len() as u16).to_be_bytes());
            stream.unsent.extend(question);
        }
        (lookup.socket, lookup.ids, lookup.stream) = (socket, ids, Some(stream));
        lookup.deadline = Instant::now() + PATIENCE;
        Ok(())
    }

    /// A complete answer ends the lookup.
    pub(super) fn read_replies(&mut self, number: u32) -> LookupStep {
        let Some(lookup) = self.lookups.get_mut(&number) else { return LookupStep::Nothing };
        match lookup.stream.take() {
            Some(mut stream) => {
                if lookup.read_stream(&mut stream).is_err() {
                    lookup.deadline = Instant::now();
                }
                lookup.stream = Some(stream);
            }
            None => lookup.read_datagrams(),
        }
        if !lookup.replies.iter().all(Option::is_some) {
            return LookupStep::Nothing;
        }
        let is = |wanted: fn(&Reply) -> bool| lookup.replies.iter().flatten().any(wanted);
        if is(|reply| matches!(reply, Reply::Truncated(..))) {
            let is_first = lookup.stream.is_none();
            return match if is_first { self.ask_by_stream(number) } else { Err(Errno::MSGSIZE) } {
                Ok(()) => LookupStep::Stream,
                Err(_) => self.end(number).map_or(LookupStep::Nothing, LookupStep::Answer),
            };
        }
        if !is(|reply| *reply != Reply::Failed) {
            lookup.deadline = Instant::now();
            return LookupStep::Nothing;
        }
        self.end(number).map_or(LookupStep::Nothing, LookupStep::Answer)
    }
}

impl Lookup {
    fn read_datagrams(&mut self) {
        let lookup = self;
        let mut buffer = [0_u8; dns::LARGEST_DATAGRAM as usize];
        loop {
            let length = match recv(&lookup.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => length.min(buffer.len()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                // ICMP reports an unreachable server: the next server is asked at once.
                Err(_) => {
                    lookup.deadline = Instant::now();
                    break;
                }
            };
            for (index, kind) in KINDS.into_iter().enumerate() {
                let reply = dns::read_reply(&buffer[..length], lookup.ids[index], &lookup.name, kind);
                if reply.is_some() && lookup.replies[index].is_none() {
                    lookup.replies[index] = reply;
                }
            }
        }
    }

    /// Also sends the unsent questions.
    fn read_stream(&mut self, stream: &mut Stream) -> Result<(), Errno> {
        if !stream.unsent.is_empty() {
            match send(&self.socket, &stream.unsent, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(stream.unsent.drain(..sent)),
                Err(Errno::AGAIN | Errno::NOTCONN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        let mut buffer = [0_u8; 4096];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, length)) => stream.got.extend_from_slice(&buffer[..length]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
            while let Some((length, rest)) = stream.got.split_first_chunk::<2>()
                && let Some(message) = rest.get(..usize::from(u16::from_be_bytes(*length)))
            {
                for ((reply, id), kind) in self.replies.iter_mut().zip(self.ids).zip(KINDS) {
                    if reply.is_none() {
                        *reply = dns::read_reply(message, id, &self.name, kind);
                    }
                }
                let taken = message.len() + 2;
                stream.got.drain(..taken);
            }
            if self.replies.iter().all(Option::is_some) {
                return Ok(());
            }
            if stream.got.len() > LONGEST_STREAM {
                return Err(Errno::MSGSIZE);
            }
        }
    }

    /// For the replies that did not come.
    fn use_truncated(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        for (reply, short) in self.replies.iter_mut().zip(stream.short) {
            if reply.is_none() {
                *reply = short;
            }
        }
    }
}

fn random_ids() -> Result<[u16; 2], Errno> {
    let mut random = [0_u8; 4];
    getrandom(&mut random[..], GetRandomFlags::empty())?;
    Ok([u16::from_ne_bytes([random[0], random[1]]), u16::from_ne_bytes([random[2], random[3]])])
}

impl Resolver {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lookups.values().map(|lookup| lookup.deadline).min()
    }

    /// Continues overdue lookups. Returns the numbers with a new socket, and finished answers.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<u32>, Vec<Answer>) {
        let late: Vec<u32> =
            self.lookups.iter().filter(|(_, lookup)| lookup.deadline <= now).map(|(number, _)| *number).collect();
        let (mut renewed, mut answers) = (Vec::new(), Vec::new());
        for number in late {
            if let Some(lookup) = self.lookups.get_mut(&number) {
                lookup.use_truncated();
            }
            let Some(lookup) = self.lookups.get(&number) else { continue };
            let some = lookup.replies.iter().flatten().any(|reply| *reply != Reply::Failed);
            let sent = if some { None } else { self.ask_next(&lookup.name, lookup.asked).ok() };
            match (sent, self.lookups.get_mut(&number)) {
                (Some((socket, ids, asked)), Some(lookup)) => {
                    (lookup.socket, lookup.ids, lookup.replies) = (socket, ids, [None, None]);
                    lookup.asked = asked;
                    lookup.deadline = now + PATIENCE;
                    renewed.push(number);
                }
                _ => answers.extend(self.end(number)),
            }
        }
        (renewed, answers)
    }

    fn end(&mut self, number: u32) -> Option<Answer> {
        let lookup = self.lookups.remove(&number)?;
        let (mut addresses, mut seconds, mut why) = (Vec::new(), KEPT.1, None);
        for reply in lookup.replies.into_iter().flatten() {
            match reply {
                Reply::Addresses(some, kept) | Reply::Truncated(some, kept) => {
                    addresses.extend(some);
                    seconds = seconds.min(kept);
                }
                Reply::Nothing(cause) => why = Some(cause),
                Reply::Failed => {}
            }
        }
        let name = &lookup.name;
        let (found, kept) = if !addresses.is_empty() {
            (Ok(addresses), Duration::from_secs(u64::from(seconds.clamp(KEPT.0, KEPT.1))))
        } else {
            let cause = why.unwrap_or("no server answered");
            (Err(format!("`{name}` does not resolve: {cause}")), KEPT_NOTHING)
        };
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(lookup.name, (found.clone(), Instant::now() + kept));
        Some(Answer { found, waiting: lookup.waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_host_are_read_as_the_c_library_does() {
        let two = servers("# x\nnameserver 10.0.0.1\nsearch a\n nameserver ::1\nnameserver nonsense\n");
        assert_eq!(two, ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
        let all = hosts("127.0.0.1 localhost Box # me\n\n::1 localhost\nbad line\n");
        assert_eq!(all["localhost"].len(), 2);
        assert_eq!(all["box"], ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    /// A socket that may not broadcast cannot be connected to it.
    const UNREACHABLE: &str = "255.255.255.255:53";

    fn resolver(servers: &[SocketAddr]) -> Resolver {
        Resolver::new(Sources { servers: servers.to_vec(), ..Sources::default() })
    }

    #[test]
    fn server_that_cannot_be_reached_is_skipped() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (near, far) = (server.local_addr().unwrap(), UNREACHABLE.parse().unwrap());
        for servers in [[far, near], [near, far]] {
            let mut resolver = resolver(&servers);
            assert!(matches!(resolver.resolve("a.example", 1), Resolution::Waiting(1, true)));
            for _ in 0..ROUNDS {
                server.recv(&mut [0; 512]).unwrap(); // A
                server.recv(&mut [0; 512]).unwrap(); // AAAA
                resolver.expire(resolver.deadline().unwrap());
            }
            assert!(resolver.lookups.is_empty());
        }
        assert!(matches!(resolver(&[far, far]).resolve("a.example", 1), Resolution::Known(Err(_))));
    }

    #[test]
    fn only_an_unknown_name_is_a_question() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut resolver = resolver(&[server.local_addr().unwrap()]);
        resolver.sources.hosts.insert("host.example".into(), Vec::new());
        assert!(!resolver.must_ask("host.example"));
        assert!(resolver.must_ask("a.example"));
        assert!(matches!(resolver.resolve("a.example", 1), Resolution::Waiting(1, true)));
        assert!(!resolver.must_ask("a.example"));
        resolver.end(1);
        assert!(!resolver.must_ask("a.example"));
        resolver.known.get_mut("a.example").unwrap().1 = Instant::now();
        assert!(resolver.must_ask("a.example"));
    }
}
