//! The gateway's decisions: DNS answers, destinations, verdicts.

use super::connection::{Back, Connection, Front, Need, ProxyReply, Target};
use super::flow::End;
use super::front::{self, ProxyRequest};
use super::host_address::is_own;
use super::resolver::{Answer, Found, Resolution};
use super::{ASK, BURST, Gateway, Source, USED_UP, cut};
use crate::egress::broker::Served;
use crate::egress::dns::{self, Code, Record};
use crate::egress::http;
use crate::egress::ledger::{Word, shortened};
use crate::egress::names::{address_v4, address_v6};
use crate::egress::policy::{Ech, Policy, Verdict};
use crate::egress::rule::{Host, Rule};
use crate::spec::network::{DNS_PORT, GATEWAY, NAMES_V4, NAMES_V6, PROXY_PORTS};
use crate::sys::weaken;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, bind, connect, getsockname, listen, recvfrom, sendto};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Addresses tried for one name.
const MOST_ADDRESSES: usize = 4;

/// New names below a `*.suffix` that are resolved outside: at once, and per second. More could carry data.
const WILD_BURST: f64 = 64.0;
const WILD_RATE: f64 = 4.0;

/// A token bucket.
pub(super) struct Bucket {
    level: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) fn new() -> Bucket {
        Bucket { level: WILD_BURST, filled: Instant::now() }
    }

    fn take(&mut self) -> bool {
        let now = Instant::now();
        self.level = (self.level + (now - self.filled).as_secs_f64() * WILD_RATE).min(WILD_BURST);
        self.filled = now;
        let some = self.level >= 1.0;
        if some {
            self.level -= 1.0;
        }
        some
    }
}

impl Gateway {
    /// `None` if the question deserves no answer.
    pub(super) fn reply(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let question = match dns::read_question(bytes) {
            Ok(question) => question,
            Err(answer) => return answer,
        };
        if let Some(address) = question.pointed() {
            let name = match address == IpAddr::V4(GATEWAY) {
                true => Some("gateway.internal"),
                false => self.names.name(address),
            };
            return Some(match name {
                Some(name) => question.answer(Code::Good, &[Record::Pointer(name.to_owned())]),
                None => question.answer(Code::NoSuchName, &[]),
            });
        }
        if self.policy.answers(&question.name) || weaken::is_off("egress-names") && !question.name.is_empty() {
            let number = self.names.number(&question.name);
            return Some(question.answer(Code::Good, &question.addresses(address_v4(number), address_v6(number))));
        }
        let host = if question.name.is_empty() { "(no host name)" } else { question.name.as_str() };
        self.ledger.note(host, None, false, "no rule names it");
        Some(question.answer(Code::NoSuchName, &[]))
    }

    pub(super) fn answer_datagrams(&mut self) {
        let mut buffer = [0_u8; 4096];
        for _ in 0..BURST {
            let Some(socket) = &self.questions else { return };
            let (length, from) = match recvfrom(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length, Some(from))) => (length.min(buffer.len()), from),
                _ => return,
            };
            if let (Some(answer), Some(socket)) = (self.reply(&buffer[..length]), &self.questions) {
                // A UDP client asks again if no answer comes.
                let _ = sendto(socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &from);
            }
        }
    }

    pub(super) fn welcome(&mut self, client: OwnedFd) {
        let local = getsockname(&client).ok().and_then(|address| SocketAddr::try_from(address).ok());
        let Some(local) = local else { return };
        let (address, port) = (local.ip().to_canonical(), local.port());
        if address == IpAddr::V4(GATEWAY) && (port == DNS_PORT || PROXY_PORTS.contains(&port)) {
            let front = if port == DNS_PORT { Front::Questions } else { Front::Proxy { greeted: false } };
            let mut connection = Connection::new(client, front);
            connection.deadline = Some(Instant::now() + ASK);
            return self.open(connection);
        }
        let Some(host) = self.host_of(address) else {
            self.ledger.note(&address.to_string(), Some(port), false, "the address stands for no name");
            return cut(&client);
        };
        match self.verdict(&host, port) {
            Ok(row) => {
                let mut connection = Connection::new(client, Front::Opening);
                connection.broker = self.broker_of(&host, port);
                connection.ech = self.policy.ech.unwrap_or(Ech::Refuse);
                connection.target = Some(Target { host, port, row });
                self.open(connection);
                self.look_up(self.next);
                self.drive(self.next);
            }
            // A client of HTTP receives the reason.
            Err(why) if port == 80 => {
                let mut connection = Connection::new(client, Front::Opening);
                let _ = connection.farewell(http::answer(403, &why));
                self.open(connection);
            }
            Err(_) => cut(&client),
        }
    }

    /// A name, or the address itself.
    fn host_of(&self, address: IpAddr) -> Option<Host> {
        if NAMES_V4.contains(address) || NAMES_V6.contains(address) {
            return self.names.name(address).map(|name| Host::Name(name.to_owned()));
        }
        Some(Host::Address(address))
    }

    fn broker_of(&self, host: &Host, port: u16) -> Option<Rc<Served>> {
        match host {
            Host::Name(name) => self.brokers.of(name, port),
            Host::Address(_) => None,
        }
    }

    /// Records the decision. Returns the row of the ledger, or the reason of a refusal.
    fn verdict(&mut self, host: &Host, port: u16) -> Result<usize, String> {
        let verdict = match self.policy.verdict(host, port) {
            Verdict::Denied(_) if weaken::is_off("egress-rules") => Verdict::Allowed("(weakened)".into()),
            Verdict::Allowed(_) if self.budget.is_used_up() => Verdict::Denied(USED_UP.into()),
            verdict => verdict,
        };
        match verdict {
            Verdict::Allowed(mut rule) => {
                if let Some(served) = self.broker_of(host, port) {
                    rule += &format!(" with {}", served.names());
                }
                Ok(self.ledger.note(&host.to_string(), Some(port), true, &rule))
            }
            Verdict::Denied(why) => {
                self.ledger.note(&host.to_string(), Some(port), false, &why);
                Err(why)
            }
        }
    }

    pub(super) fn look_up(&mut self, number: u32) {
        let Some(target) = self.connections.get(&number).and_then(|connection| connection.target.clone()) else {
            return;
        };
        let name = match &target.host {
            Host::Address(address) => {
                return self.dial(number, &Ok(self.policy.dialled(*address, target.port)), false);
            }
            Host::Name(name) => name,
        };
        let exact = self.policy.allowed.iter().any(|rule| !rule.is_wild() && rule.names(&target.host));
        // Only a question that leaves can carry data.
        if !exact && self.resolver.must_ask(name) && !self.wild.take() && !weaken::is_off("egress-wild") {
            let why = format!("too many names in a short time: `{name}`");
            self.ledger.note(name, Some(target.port), false, "too many names below a `*` in a short time");
            return self.dial(number, &Err(why), true);
        }
        match self.resolver.resolve(name, number) {
            Resolution::Known(found) => self.dial(number, &found, true),
            Resolution::Waiting(lookup, new) => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.back = Back::Resolving;
                }
                if let (true, Some(socket)) = (new, self.resolver.socket(lookup)) {
                    // An unwatched socket ends at its deadline.
                    let _ = self.watch_level(socket, Source::Lookup(lookup));
                }
            }
        }
    }

    pub(super) fn resolved(&mut self, answer: Answer) {
        for number in answer.waiting {
            self.dial(number, &answer.found, true);
            self.drive(number);
        }
    }

    fn dial(&mut self, number: u32, found: &Found, by_name: bool) {
        let Some(target) = self.connections.get(&number).and_then(|connection| connection.target.clone()) else {
            return;
        };
        let (addresses, objection) =
            choose_addresses(&self.policy, &target, found.as_deref().unwrap_or_default(), by_name);
        let opened = |each: &SocketAddr| self.policy.check_address(each.ip(), each.port(), |_| true).is_none();
        let stays_out = by_name && !addresses.iter().any(opened);
        let why = match (addresses.is_empty(), objection, found) {
            (false, ..) => None,
            (true, Some(objection), _) => {
                self.ledger.note(&target.host.to_string(), Some(target.port), false, &objection);
                Some(objection)
            }
            (true, None, Err(why)) => {
                self.ledger.note(&target.host.to_string(), Some(target.port), false, why);
                Some(why.clone())
            }
            (true, None, Ok(_)) => Some("the name has no address".to_owned()),
        };
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.stays_out = stays_out;
        let need = match why {
            Some(why) => connection.failed(why),
            None => connection.dial(addresses),
        };
        if need == Need::Watch
            && let Some(server) = self.connections.get(&number).and_then(|each| each.server.as_ref())
        {
            let _ = self.watch_edges(rustix::fd::AsFd::as_fd(&server.socket), Source::Server(number));
        }
    }

    pub(super) fn grant(&mut self, number: u32) -> Need {
        let Some(connection) = self.connections.get_mut(&number) else { return Need::Nothing };
        let Front::Proxy { greeted } = connection.front else { return Need::Nothing };
        match front::read_proxy_request(&connection.held, greeted) {
            ProxyRequest::More if connection.held.len() > http::LONGEST_HEAD => Need::End(true),
            ProxyRequest::More => Need::Nothing,
            ProxyRequest::Answer(used, answer) => {
                connection.held.drain(..used);
                connection.down.push(&answer);
                connection.front = Front::Proxy { greeted: true };
                Need::Again
            }
            ProxyRequest::Refused(answer, why) => {
                self.ledger.note("(proxy)", None, false, &why);
                connection.farewell(answer)
            }
            ProxyRequest::Connect { host, port, used, socks } => {
                connection.held.drain(..used);
                connection.deadline = None;
                self.connect(number, host, port, (used, socks))
            }
        }
    }

    fn connect(&mut self, number: u32, host: Host, port: u16, (used, socks): (usize, bool)) -> Need {
        let host = match host {
            // An address that stands for a name means that name.
            Host::Address(address) => self.host_of(address).unwrap_or(Host::Address(address)),
            name => name,
        };
        let verdict = self.verdict(&host, port);
        let (broker, ech) = (self.broker_of(&host, port), self.policy.ech.unwrap_or(Ech::Refuse));
        let Some(connection) = self.connections.get_mut(&number) else { return Need::Nothing };
        match verdict {
            Ok(row) => {
                (connection.broker, connection.ech) = (broker, ech);
                connection.target = Some(Target { host, port, row });
                connection.front = Front::Opening;
                connection.proxy_reply = match (socks, used) {
                    (true, _) => ProxyReply::Socks,
                    (false, 0) => ProxyReply::None,
                    (false, _) => ProxyReply::Connect,
                };
                self.look_up(number);
                Need::Again
            }
            Err(_) if socks => connection.farewell(front::socks_answer(2)), // connection not allowed by ruleset (RFC 1928)
            Err(why) => connection.farewell(http::answer(403, &why)),
        }
    }

    /// Answers a request of HTTP, cuts every other client.
    pub(super) fn refuse(&mut self, number: u32, why: &str) -> Need {
        let Some(connection) = self.connections.get_mut(&number) else { return Need::Nothing };
        if let Some(target) = &connection.target {
            self.ledger.note(&target.host.to_string(), Some(target.port), false, why);
        }
        match connection.front {
            Front::Requests { .. } => connection.farewell(http::answer(403, why)),
            Front::Brokered(_) => connection.answer_brokered(403, why),
            Front::Opening if http::looks_like_one(&connection.held) => connection.farewell(http::answer(403, why)),
            _ => Need::End(true),
        }
    }

    pub(super) fn unanswered(&mut self, number: u32, why: &str) -> Need {
        let Some(connection) = self.connections.get_mut(&number) else { return Need::Nothing };
        if let Some(target) = &connection.target {
            self.ledger.note(&target.host.to_string(), Some(target.port), false, why);
        }
        connection.answer_brokered(502, why)
    }

    /// Also listens at the rule's new ports.
    pub(super) fn allow(&mut self, text: &str) {
        let Ok(rule) = Rule::parse(text) else { return };
        for &port in rule.ports() {
            let own = port == DNS_PORT || PROXY_PORTS.contains(&port);
            if own || !self.listeners.iter().any(|(_, each)| *each == port) {
                let made = match self.spares.pop() {
                    Some(spare) => listen_at(&spare, port).and_then(|()| self.add_listener(spare, port)),
                    None => Err(Errno::MFILE),
                };
                if let Err(errno) = made {
                    let why = std::io::Error::from(errno);
                    // The order stands even if the supervisor does not read the fault.
                    let _ = self.send_word(&Word::Fault(
                        shortened(&format!("listen at port {port} for `{rule}`: {why}")).into_owned(),
                    ));
                    return;
                }
            }
        }
        self.policy.allow(rule);
    }

    /// Also cuts open connections.
    pub(super) fn deny(&mut self, text: &str) {
        let Ok(rule) = Rule::parse(text) else { return };
        let open: Vec<u32> =
            self.connections.iter().filter(|(_, each)| each.is_denied(&rule)).map(|(number, _)| *number).collect();
        open.into_iter().for_each(|number| self.end(number, true));
        self.policy.deny(rule);
    }
}

/// Returns the addresses to dial in turn, and the last objection to one.
fn choose_addresses(
    policy: &Policy,
    target: &Target,
    found: &[IpAddr],
    by_name: bool,
) -> (VecDeque<SocketAddr>, Option<String>) {
    let (mut addresses, mut objection) = (VecDeque::new(), None);
    // The families take turns, because this host may lack one.
    let (one, other): (Vec<IpAddr>, Vec<IpAddr>) = found.iter().partition(|each| each.is_ipv4() == found[0].is_ipv4());
    let turns = (0..found.len()).flat_map(|index| [one.get(index), other.get(index)]).flatten();
    for &address in turns {
        if addresses.len() >= MOST_ADDRESSES {
            break;
        }
        let leads = || format!("`{}` leads to {address}", target.host);
        let canonical = address.to_canonical();
        if let Some(rule) = policy.denial(&Host::Address(canonical), target.port) {
            objection = Some(format!("{}, denied by `{rule}`", leads()));
        } else if by_name && let Some(what) = policy.check_address(address, target.port, is_own) {
            let rule = SocketAddr::new(canonical, target.port);
            objection = Some(format!("{}: {what}; the rule `{rule}` would allow it", leads()));
        } else {
            addresses.push_back(SocketAddr::new(address, target.port));
        }
    }
    (addresses, objection)
}

/// Any port is free for all in the sandbox's namespace (ip_unprivileged_port_start).
fn listen_at(socket: &OwnedFd, port: u16) -> Result<(), Errno> {
    let v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    match bind(socket, &v6) {
        Err(Errno::INVAL | Errno::AFNOSUPPORT) => bind(socket, &SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))?,
        other => other?,
    }
    listen(socket, 4096)
}

impl Connection {
    /// Dials with a socket of the sandbox's namespace; returns it if the dial cannot begin.
    pub(super) fn dial_inward(&mut self, spare: OwnedFd, port: u16) -> Result<(), OwnedFd> {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), port);
        match connect(&spare, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(_) => return Err(spare),
        }
        self.server = Some(End::new(spare));
        self.back = Back::Dialling(VecDeque::new());
        self.deadline = Some(Instant::now() + Duration::from_secs(10));
        self.inward = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(allowed: &[&str], denied: &[&str], found: &[&str]) -> (String, String) {
        let rules = |list: &[&str]| list.iter().map(|each| Rule::parse(each).unwrap()).collect();
        let policy = Policy { allowed: rules(allowed), denied: rules(denied), ..Policy::default() };
        let target = Target { host: Host::Name("x.example".into()), port: 443, row: 0 };
        let found: Vec<IpAddr> = found.iter().map(|each| each.parse().unwrap()).collect();
        let (addresses, objection) = choose_addresses(&policy, &target, &found, true);
        let addresses: Vec<_> = addresses.iter().map(|each| each.ip().to_string()).collect();
        (addresses.join(" "), objection.unwrap_or_default())
    }

    #[test]
    fn denial_of_an_address_covers_names_that_lead_there() {
        let allowed = ["x.example:443", "10.0.0.0/8:443"];
        let check = |denied: &str, found: &[&str], addresses: &str, words: &str| {
            let expected = (addresses.to_owned(), words.to_owned());
            assert_eq!(choose(&allowed, &[denied], found), expected, "{denied}");
        };
        check("10.0.0.1:80", &["10.0.0.1"], "10.0.0.1", "");
        let one = "`x.example` leads to 10.0.0.1, denied by `10.0.0.1:443`";
        check("10.0.0.1:443", &["10.0.0.1", "10.0.0.2"], "10.0.0.2", one);
        let mapped = "`x.example` leads to ::ffff:10.0.0.1, denied by `10.0.0.0/24`";
        check("10.0.0.0/24", &["::ffff:10.0.0.1"], "", mapped);
        let public = "`x.example` leads to 93.184.216.34, denied by `93.184.216.0/24:443`";
        check("93.184.216.0/24:443", &["93.184.216.34"], "", public);
    }

    #[test]
    fn both_families_are_dialled_in_turn() {
        let v4 = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5"];
        let v6 = ["2606:4700::1", "2606:4700::2"];
        let check = |found: Vec<&str>, expected: &str| assert_eq!(choose(&[], &[], &found).0, expected);
        check([&v4[..], &v6[..]].concat(), "1.1.1.1 2606:4700::1 1.1.1.2 2606:4700::2");
        check([&v6[..], &v4[..1]].concat(), "2606:4700::1 1.1.1.1 2606:4700::2");
        check(v4.to_vec(), "1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4");
        check(Vec::new(), "");
    }
}
