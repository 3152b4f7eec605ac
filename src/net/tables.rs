//! As much of nf_tables as a fence takes: one table, its chains and rules in one batch that holds as a whole or not at all. Numbers are those of
//! linux/netfilter/nf_tables.h and nfnetlink.h.
//!
//! A table with an owner (kernel 5.12) goes with the socket that made it: nothing that ends us, not even SIGKILL, leaves a rule behind.

use super::netlink::{ACKNOWLEDGE, CREATE, REQUEST, Request, outcome, split};
use crate::spec::network::Prefix;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
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

/// Where a chain is asked (netfilter's hooks of both families).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Input = 1,
    Forward = 2,
    Output = 3,
    PostRouting = 4,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// It came in by the device of this number.
    From(u32),
    /// It goes out by the device of this number.
    To(u32),
    /// It goes out by any other.
    NotTo(u32),
    /// It belongs to a connection that is there already, or says something about one.
    Known,
    /// More connections than these, begun by what comes to this rule, are tracked.
    Over(u32),
    /// It is IPv6.
    Six,
    /// It comes from these addresses.
    Source(Prefix),
    /// It comes from any others.
    NotSource(Prefix),
    /// It is for these addresses.
    Destination(Prefix),
    /// It is of this protocol of IP.
    Protocol(u8),
    /// It is for one of these ports.
    Ports(u16, u16),
    /// Its type of ICMP is one of these.
    Types(u8, u8),
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Accept,
    Drop,
    /// The sender is told that it is forbidden.
    Reject,
    /// It goes out with the host's own address.
    Masquerade,
}

/// A chain: its name, where it is asked, and its rules in order. What no rule decides goes on.
pub(super) type Chain = (&'static str, Hook, Vec<(Vec<When>, Then)>);

/// A table that is there; it goes when this is dropped, if it is owned.
#[derive(Debug)]
pub(super) struct Table(#[expect(dead_code, reason = "it is held, not used")] OwnedFd);

/// Makes a table in the network namespace that we are in. An owned one ends with the socket, another one with its namespace.
pub(super) fn make(name: &str, owned: bool, chains: &[Chain]) -> Result<Table, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
    let (batch, last) = batch(name, owned, chains);
    send(&socket, &batch, SendFlags::empty())?;
    let mut buffer = vec![0_u8; 32 << 10];
    loop {
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((_, body, after)) = split(rest) {
            outcome(body)?;
            let number = rest.get(8..).and_then(|bytes| Some(u32::from_ne_bytes(*bytes.first_chunk()?)));
            if number == Some(last) {
                return Ok(Table(socket));
            }
            rest = after;
        }
    }
}

/// The whole batch, and the number of the message whose acknowledgement says that all of it holds.
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

/// Compares the register: 0 is equal, 1 other, 3 at most, 5 at least.
fn compare(how: u32, value: &[u8]) -> Request {
    let data = Request::default().attribute(1, value);
    expression("cmp", Request::default().attribute(1, &number(REGISTER)).attribute(2, &number(how)).nest(3, data))
}

/// Loads bytes of the packet: 1 is the header of IP, 2 what follows it.
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

fn condition(when: &When) -> Vec<Request> {
    const FAMILY: u32 = 15;
    const IPV6: u8 = 10;
    const NEXT_PROTOCOL: u32 = 16;
    /// `NF_CT_STATE_BIT` of established and related.
    const KNOWN: u32 = 2 | 4;
    match when {
        When::From(device) => vec![meta(4), compare(0, &device.to_ne_bytes())],
        When::To(device) => vec![meta(5), compare(0, &device.to_ne_bytes())],
        When::NotTo(device) => vec![meta(5), compare(1, &device.to_ne_bytes())],
        When::Known => {
            let state = Request::default().attribute(1, &number(REGISTER)).attribute(2, &number(0));
            vec![expression("ct", state), mask(&KNOWN.to_ne_bytes()), compare(1, &[0; 4])]
        }
        When::Over(count) => {
            /// `NFT_CONNLIMIT_F_INV`
            const OVER: u32 = 1;
            let limit = Request::default().attribute(1, &number(*count)).attribute(2, &number(OVER));
            vec![expression("connlimit", limit)]
        }
        When::Six => vec![meta(FAMILY), compare(0, &[IPV6])],
        When::Source(prefix) => address(prefix, (12, 8), 0),
        When::NotSource(prefix) => address(prefix, (12, 8), 1),
        When::Destination(prefix) => address(prefix, (16, 24), 0),
        When::Protocol(protocol) => vec![meta(NEXT_PROTOCOL), compare(0, &[*protocol])],
        When::Ports(first, last) => {
            vec![load(2, 2, 2), compare(5, &first.to_be_bytes()), compare(3, &last.to_be_bytes())]
        }
        When::Types(first, last) => vec![load(2, 0, 1), compare(5, &[*first]), compare(3, &[*last])],
    }
}

/// An address of the header, of the prefix's family: its place there in IPv4 and IPv6, and how it is compared.
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

fn verdict(then: Then) -> Request {
    /// `NFT_REJECT_ICMPX_UNREACH` with `NFT_REJECT_ICMPX_ADMIN_PROHIBITED`: in words of either family.
    const ICMPX: u32 = 2;
    const FORBIDDEN: u8 = 3;
    let decide = |code: u32| {
        let verdict = Request::default().attribute(1, &number(code));
        let data = Request::default().nest(2, verdict);
        expression("immediate", Request::default().attribute(1, &number(VERDICT)).nest(2, data))
    };
    match then {
        Then::Drop => decide(0),
        Then::Accept => decide(1),
        Then::Reject => {
            expression("reject", Request::default().attribute(1, &number(ICMPX)).attribute(2, &[FORBIDDEN]))
        }
        Then::Masquerade => expression("masq", Request::default()),
    }
}
