//! A small nf_tables client: one table in one atomic batch. Numbers are from linux/netfilter/nf_tables.h and
//! nfnetlink.h.
//!
//! A table with an owner (Linux 5.12) ends with its socket: not even SIGKILL leaves a rule behind.

use super::netlink::{ACKNOWLEDGE, CREATE, REQUEST, Request, outcome, split};
use crate::error::{Error, Kind};
use crate::spec::network::Prefix;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const APPEND: u16 = 0x800;
const OWNER: u32 = 0x2;
/// `NFPROTO_INET`: both families in one table.
const BOTH: u8 = 1;
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Input = 1,
    Forward = 2,
    Output = 3,
    PostRouting = 4,
}

/// On a packet. Devices are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It enters by this device.
    From(u32),
    /// It leaves by this device.
    To(u32),
    /// It leaves by any other device.
    NotTo(u32),
    /// It belongs to a tracked connection, or is an error about one.
    Known,
    /// More than this number of tracked connections began at this rule.
    Over(u32),
    /// IPv6.
    Six,
    Source(Prefix),
    NotSource(Prefix),
    Destination(Prefix),
    Protocol(u8),
    /// Destination ports.
    Ports(u16, u16),
    /// ICMP types.
    Types(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Drop,
    /// Answers the sender with "administratively prohibited".
    Reject,
    /// Replaces the source by the host's address.
    Masquerade,
}

/// Name, hook, and rules in order. An undecided packet passes.
pub(super) type Chain = (&'static str, Hook, Vec<(Vec<Condition>, Action)>);

/// Drop removes an owned table.
#[derive(Debug)]
pub(super) struct Table(#[expect(dead_code, reason = "it is held, not used")] OwnedFd);

/// An owned table ends with its socket, any other with the namespace.
pub(super) fn make(name: &str, owned: bool, chains: &[Chain]) -> Result<Table, Errno> {
    let socket = connect()?;
    make_with(&socket, name, owned, chains).map(|()| Table(socket))
}

pub(super) fn connect() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))
}

pub(super) fn make_with(socket: &OwnedFd, name: &str, owned: bool, chains: &[Chain]) -> Result<(), Errno> {
    let (batch, last) = batch(name, owned, chains);
    match send(socket, &batch, SendFlags::empty()) {
        // Some 700 rules are longer than what a socket takes by default.
        Err(Errno::MSGSIZE) => {
            let grown = sockopt::set_socket_send_buffer_size_force(socket, batch.len());
            grown.or_else(|_| sockopt::set_socket_send_buffer_size(socket, batch.len()))?;
            send(socket, &batch, SendFlags::empty())
        }
        sent => sent,
    }?;
    let mut buffer = vec![0_u8; 32 << 10];
    loop {
        let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((_, body, after)) = split(rest) {
            outcome(body)?;
            let number = rest.get(8..).and_then(|bytes| Some(u32::from_ne_bytes(*bytes.first_chunk()?)));
            if number == Some(last) {
                return Ok(());
            }
            rest = after;
        }
    }
}

/// `missing` is the advice if the kernel lacks a part.
pub(super) fn failed(errno: Errno, step: String, missing: &str) -> Error {
    let many = "the rules are too many: use fewer, with ranges such as 10.0.0.0/8";
    Error::os(Kind::Network, errno).doing(step).hint(if errno == Errno::MSGSIZE { many } else { missing })
}

/// Also returns the number of the message whose acknowledgement confirms the batch.
fn batch(name: &str, owned: bool, chains: &[Chain]) -> (Vec<u8>, u32) {
    let mut bytes = message(BEGIN, 0, 0, 0, &[]);
    let mut number = 0;
    let mut put = |kind: u16, flags: u16, request: Request, last: bool| {
        number += 1;
        let flags = flags | CREATE | if last { ACKNOWLEDGE } else { 0 };
        bytes.extend(message(SUBSYSTEM << 8 | kind, flags, number, BOTH, &request.into_bytes()));
    };
    let flags: u32 = if owned { OWNER } else { 0 };
    put(NEW_TABLE, 0, Request::default().text(1, name).attribute(2, &flags.to_be_bytes()), false);
    for (chain, hook, _) in chains {
        let (kind, priority) = if *hook == Hook::PostRouting { ("nat", 100_i32) } else { ("filter", 0) };
        let at = Request::default().attribute(1, &(*hook as u32).to_be_bytes()).attribute(2, &priority.to_be_bytes());
        let request = Request::default().text(1, name).text(3, chain).nest(4, at);
        put(NEW_CHAIN, 0, request.text(7, kind), false);
    }
    let rules: Vec<_> =
        chains.iter().flat_map(|(chain, _, rules)| rules.iter().map(move |rule| (chain, rule))).collect();
    for (index, (chain, (conditions, then))) in rules.iter().enumerate() {
        let expressions = conditions.iter().flat_map(condition).chain([verdict(*then)]);
        let list = expressions.fold(Request::default(), |list, each| list.nest(1, each));
        let request = Request::default().text(1, name).text(2, chain).nest(4, list);
        put(NEW_RULE, APPEND, request, index + 1 == rules.len());
    }
    bytes.extend(message(END, 0, 0, 0, &[]));
    (bytes, number)
}

/// `struct nlmsghdr`, then `struct nfgenmsg`, then attributes.
fn message(kind: u16, flags: u16, number: u32, family: u8, attributes: &[u8]) -> Vec<u8> {
    const HEADERS: usize = 20;
    let mut bytes = Vec::with_capacity(HEADERS + attributes.len());
    bytes.extend(((HEADERS + attributes.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(if matches!(kind, BEGIN | END) { SUBSYSTEM.to_be_bytes() } else { [0; 2] });
    bytes.extend(attributes);
    bytes
}

fn expression(name: &str, data: Request) -> Request {
    Request::default().text(1, name).nest(2, data)
}

fn number(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

fn meta(key: u32) -> Request {
    expression("meta", Request::default().attribute(1, &number(REGISTER)).attribute(2, &number(key)))
}

/// 0 means equal, 1 unequal, 3 at most, 5 at least.
fn compare(how: u32, value: &[u8]) -> Request {
    let data = Request::default().attribute(1, value);
    expression("cmp", Request::default().attribute(1, &number(REGISTER)).attribute(2, &number(how)).nest(3, data))
}

/// Base 1 is the IP header, 2 the transport header.
fn load(base: u32, offset: u32, length: usize) -> Request {
    let data = [(1, REGISTER), (2, base), (3, offset), (4, length as u32)];
    expression(
        "payload",
        data.iter().fold(Request::default(), |all, (kind, value)| all.attribute(*kind, &number(*value))),
    )
}

fn mask(mask: &[u8]) -> Request {
    let data = |bytes: &[u8]| Request::default().attribute(1, bytes);
    let head = [(1, REGISTER), (2, REGISTER), (3, mask.len() as u32)];
    let head = head.iter().fold(Request::default(), |all, (kind, value)| all.attribute(*kind, &number(*value)));
    expression("bitwise", head.nest(4, data(mask)).nest(5, data(&vec![0; mask.len()])))
}

fn condition(when: &Condition) -> Vec<Request> {
    const FAMILY: u32 = 15;
    const IPV6: u8 = 10;
    const NEXT_PROTOCOL: u32 = 16;
    /// `NF_CT_STATE_BIT` of established and related.
    const KNOWN: u32 = 2 | 4;
    match when {
        Condition::From(device) => vec![meta(4), compare(0, &device.to_ne_bytes())],
        Condition::To(device) => vec![meta(5), compare(0, &device.to_ne_bytes())],
        Condition::NotTo(device) => vec![meta(5), compare(1, &device.to_ne_bytes())],
        Condition::Known => {
            let state = Request::default().attribute(1, &number(REGISTER)).attribute(2, &number(0));
            vec![expression("ct", state), mask(&KNOWN.to_ne_bytes()), compare(1, &[0; 4])]
        }
        Condition::Over(count) => {
            /// `NFT_CONNLIMIT_F_INV`
            const OVER: u32 = 1;
            let limit = Request::default().attribute(1, &number(*count)).attribute(2, &number(OVER));
            vec![expression("connlimit", limit)]
        }
        Condition::Six => vec![meta(FAMILY), compare(0, &[IPV6])],
        Condition::Source(prefix) => address(prefix, (12, 8), 0),
        Condition::NotSource(prefix) => address(prefix, (12, 8), 1),
        Condition::Destination(prefix) => address(prefix, (16, 24), 0),
        Condition::Protocol(protocol) => vec![meta(NEXT_PROTOCOL), compare(0, &[*protocol])],
        Condition::Ports(first, last) => {
            vec![load(2, 2, 2), compare(5, &first.to_be_bytes()), compare(3, &last.to_be_bytes())]
        }
        Condition::Types(first, last) => vec![load(2, 0, 1), compare(5, &[*first]), compare(3, &[*last])],
    }
}

/// `offsets` in IPv4 and IPv6.
fn address(prefix: &Prefix, offsets: (u32, u32), how: u32) -> Vec<Request> {
    const FAMILY: u32 = 15;
    let (family, offset, bytes) = match prefix.address {
        IpAddr::V4(v4) => (2_u8, offsets.0, v4.octets().to_vec()),
        IpAddr::V6(v6) => (10, offsets.1, v6.octets().to_vec()),
    };
    let bits = |index: usize| usize::from(prefix.length).saturating_sub(index * 8).min(8);
    let kept: Vec<u8> = (0..bytes.len()).map(|index| (0xff00_u16 >> bits(index)) as u8).collect();
    vec![meta(FAMILY), compare(0, &[family]), load(1, offset, bytes.len()), mask(&kept), compare(how, &bytes)]
}

fn verdict(then: Action) -> Request {
    /// `NFT_REJECT_ICMPX_UNREACH` with `NFT_REJECT_ICMPX_ADMIN_PROHIBITED`, for either family.
    const ICMPX: u32 = 2;
    const FORBIDDEN: u8 = 3;
    let decide = |code: u32| {
        let verdict = Request::default().attribute(1, &number(code));
        let data = Request::default().nest(2, verdict);
        expression("immediate", Request::default().attribute(1, &number(VERDICT)).nest(2, data))
    };
    match then {
        Action::Drop => decide(0),
        Action::Accept => decide(1),
        Action::Reject => {
            expression("reject", Request::default().attribute(1, &number(ICMPX)).attribute(2, &[FORBIDDEN]))
        }
        Action::Masquerade => expression("masq", Request::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_rules_are_one_batch() {
        // The namespace is this thread's alone.
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
            return crate::sys::skip("needs a network namespace of its own");
        }
        let rule = |number: u32| {
            let address = IpAddr::from(number.to_be_bytes());
            (vec![Condition::Destination(Prefix::of_one(address)), Condition::Protocol(6)], Action::Reject)
        };
        let chains = [("out", Hook::Output, (0..4000).map(rule).collect())];
        assert!(batch("brig", false, &chains).0.len() > 1 << 20);
        make("brig", false, &chains).unwrap();
    }
}
