//! The fence of a network that an engine made. No packet leaves it, except in answer to a connection that came in.
//!
//! Init opens the connections, and the parent uses them after the hooks, when the devices are there: no process must
//! enter the namespace. The table ends with the namespace. Changing it needs CAP_NET_ADMIN, and passing it CAP_NET_RAW:
//! packets of AF_PACKET sockets meet no hook of netfilter.

use super::device::{index, links};
use super::fence::neighbours;
use super::netlink::{ADDRESS, ADDRESS_BYTES, LOOPBACK, ROUTE, ROUTE_BYTES, Request, Route, attributes};
use super::tables::{self, Action, Chain, Condition, Hook};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::network::Prefix;
use crate::sys::weaken;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Docker's name server in a user-defined network. It asks every server of the host.
const DOCKERS_RESOLVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
/// The kernel makes them in each new namespace. None connects to the outside.
const DEVICES_OF_THE_KERNEL: [&str; 10] =
    ["lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];

#[derive(Debug)]
pub(crate) struct EngineNetwork {
    routes: Route,
    tables: OwnedFd,
}

#[derive(Debug, PartialEq, Eq)]
struct Device {
    number: u32,
    /// Each address with the range of the network behind it.
    networks: Vec<(IpAddr, Prefix)>,
}

impl EngineNetwork {
    pub(crate) fn open() -> Result<EngineNetwork> {
        let step = || "open connections to the container's network";
        let tables = tables::connect().failing(Kind::Network, step)?;
        Ok(EngineNetwork { routes: Route::open().failing(Kind::Network, step)?, tables })
    }

    /// From [`EngineNetwork::open`] in another process.
    pub(crate) fn received(routes: OwnedFd, tables: OwnedFd) -> EngineNetwork {
        EngineNetwork { routes: routes.into(), tables }
    }

    /// In the order of [`EngineNetwork::received`].
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.routes.as_fd(), self.tables.as_fd()]
    }

    /// Closes the network to all devices, including later ones. `served` are the ranges whose addresses the gateway has
    /// inside. With `peers`, containers of the same network and this one reach each other.
    ///
    /// # Errors
    /// A range of `served` has an address of the container, or the kernel lacks a part of nf_tables.
    pub(crate) fn close(&self, served: &[Prefix], peers: bool) -> Result<()> {
        let devices = self.devices()?;
        let networks = devices.iter().flat_map(|device| &device.networks);
        for (address, _) in networks {
            if let Some(range) = served.iter().find(|range| range.contains(*address)) {
                let words = format!("the rule for {range} covers {address}, the container's own address");
                return Err(Error::new(Kind::Spec, words)
                    .hint("leave that rule out; dev.brig.egress.peers=true opens the container's own network"));
            }
        }
        let chains = if devices.is_empty() { closed() } else { chains(&devices, &self.host()?, peers) };
        let step = || "close the container's network (nf_tables)".to_owned();
        tables::make_with(&self.tables, "brig", false, &chains)
            .map_err(|errno| tables::failed(errno, step(), "load the modules nf_tables, nft_ct and nft_reject_inet"))
    }

    /// Without those that the kernel made.
    fn devices(&self) -> Result<Vec<Device>> {
        let addresses = addresses(&self.routes)?;
        let others =
            links(&self.routes, None)?.into_iter().filter(|(_, name)| !DEVICES_OF_THE_KERNEL.contains(&name.as_str()));
        Ok(others
            .map(|(number, _)| Device {
                number: number as u32,
                networks: addresses
                    .iter()
                    .filter(|body| index(body) == Some(number))
                    .filter_map(|a| network(a))
                    .collect(),
            })
            .collect())
    }

    /// The engine's host is not a peer: the routers, and the addresses beside this process. A network without a route
    /// to the outside has no router, and rootless Podman calls brig beside another network.
    fn host(&self) -> Result<Vec<IpAddr>> {
        let routes = self.routes.dump(ROUTE, Request::new(&[0; ROUTE_BYTES]));
        let routes = routes.failing(Kind::Network, || "list the container's routes")?;
        let beside = Route::open().failing(Kind::Network, || "open a connection to the host's network")?;
        let beside = addresses(&beside)?;
        let beside = beside.iter().filter_map(|body| network(body)).map(|(address, _)| address);
        Ok(routes.iter().flat_map(|body| routers(body, ROUTE_BYTES)).chain(beside).collect())
    }
}

fn addresses(routes: &Route) -> Result<Vec<Vec<u8>>> {
    let addresses = routes.dump(ADDRESS, Request::new(&[0; ADDRESS_BYTES]));
    addresses.failing(Kind::Network, || "list the network addresses")
}

/// Of a route, or of one of its hops: the attributes follow `fixed` bytes.
fn routers(body: &[u8], fixed: usize) -> Vec<IpAddr> {
    const RTA_GATEWAY: u16 = 5;
    const RTA_MULTIPATH: u16 = 9;
    const RTA_VIA: u16 = 18;
    let one = |(kind, value): (u16, &[u8])| match kind {
        RTA_GATEWAY => address(value).into_iter().collect(),
        RTA_VIA => value.get(2..).and_then(address).into_iter().collect(), // after the family
        RTA_MULTIPATH => hops(value),
        _ => Vec::new(),
    };
    attributes(body, fixed).flat_map(one).collect()
}

/// `struct rtnexthop`: the length with its attributes, flags, weight, device.
fn hops(mut rest: &[u8]) -> Vec<IpAddr> {
    const HOP_BYTES: usize = 8;
    let mut all = Vec::new();
    while let Some(length) = rest.first_chunk().map(|bytes| usize::from(u16::from_ne_bytes(*bytes)))
        && let Some(hop) = rest.get(..length.max(HOP_BYTES))
    {
        all.extend(routers(hop, HOP_BYTES));
        rest = rest.get(hop.len().next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

fn network(body: &[u8]) -> Option<(IpAddr, Prefix)> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let get = |wanted| attributes(body, ADDRESS_BYTES).find(|(kind, _)| *kind == wanted).and_then(|(_, v)| address(v));
    let there = get(IFA_ADDRESS)?;
    Some((get(IFA_LOCAL).unwrap_or(there), Prefix::new(there, *body.get(1)?)?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// For a network without devices, if one is attached later. Tracked connections would cost every connection to the
/// gateway.
fn closed() -> Vec<Chain> {
    let mut output = own();
    output.push((Vec::new(), Action::Reject));
    vec![
        ("in", Hook::Input, vec![(vec![Condition::From(LOOPBACK)], Action::Accept), (Vec::new(), Action::Drop)]),
        ("out", Hook::Output, output),
    ]
}

/// Inside, all but Docker's resolver.
fn own() -> Vec<(Vec<Condition>, Action)> {
    let resolver = (vec![Condition::Destination(Prefix::of_one(DOCKERS_RESOLVER.into()))], Action::Reject);
    let resolver = Some(resolver).filter(|_| !weaken::is_off("egress-resolver"));
    resolver.into_iter().chain([(vec![Condition::To(LOOPBACK)], Action::Accept)]).collect()
}

fn chains(devices: &[Device], host: &[IpAddr], peers: bool) -> Vec<Chain> {
    let from = |device: &Device| Condition::From(device.number);
    let mut output = own();
    output.extend([(vec![Condition::Known], Action::Accept), (neighbours(), Action::Accept)]);
    let mut input = vec![
        (vec![Condition::From(LOOPBACK)], Action::Accept),
        (vec![Condition::Known], Action::Accept),
        (neighbours(), Action::Accept),
    ];
    let networks = devices.iter().flat_map(|device| device.networks.iter().map(move |(_, range)| (device, *range)));
    for (device, range) in networks {
        let of_host = host.iter().filter(|each| range.contains(**each)).map(|each| Prefix::of_one(*each));
        if !peers {
            if !weaken::is_off("egress-peers") {
                // A published port is reached from the host, or from far away. A neighbour could carry data out.
                input.extend(of_host.map(|each| (vec![from(device), Condition::Source(each)], Action::Accept)));
                input.push((vec![from(device), Condition::Source(range)], Action::Drop));
            }
        } else if !is_link_local(range) || weaken::is_off("egress-peers-host") {
            let closed = of_host.chain(shared(range)).filter(|_| !weaken::is_off("egress-peers-host"));
            output.extend(closed.map(|each| (vec![Condition::Destination(each)], Action::Reject)));
            output.push((vec![Condition::To(device.number), Condition::Destination(range)], Action::Accept));
        }
    }
    input.extend(devices.iter().map(|device| (vec![from(device)], Action::Accept)));
    input.push((Vec::new(), Action::Drop));
    output.push((Vec::new(), Action::Reject));
    vec![
        ("in", Hook::Input, input),
        ("forward", Hook::Forward, vec![(Vec::new(), Action::Drop)]),
        ("out", Hook::Output, output),
    ]
}

/// Each device of the host has such an address, which no message here contains.
fn is_link_local(range: Prefix) -> bool {
    match range.address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// These addresses of a range also reach the host. IPv6's anycast address of routers is the first (RFC 4291), and
/// IPv4's broadcast address the last. Old kernels also take the first for broadcast.
fn shared(range: Prefix) -> Vec<Prefix> {
    let rest = if range.address.is_ipv4() { 32 } else { 128 } - range.length;
    if rest < 2 {
        return Vec::new(); // a range of two addresses has neither (RFC 3021, RFC 6164)
    }
    let last = match range.address {
        IpAddr::V4(v4) => Some(IpAddr::V4((v4.to_bits() | u32::MAX >> range.length).into())),
        IpAddr::V6(_) => None,
    };
    [Some(range.address), last].into_iter().flatten().map(Prefix::of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        let address = IpAddr::from([172, 17, 0, 2]);
        Device { number: 7, networks: vec![(address, Prefix::new(address, 16).unwrap())] }
    }

    #[test]
    fn only_answers_leave_a_closed_network_and_neighbours_do_not_enter() {
        let router = IpAddr::from([172, 17, 0, 1]);
        let chains = chains(&[device()], &[router], false);
        let ((_, _, input), (_, _, output)) = (&chains[0], &chains[2]);
        assert_eq!(output.last().unwrap(), &(vec![], Action::Reject));
        assert!(!output.iter().any(|(when, then)| *then == Action::Accept && when.contains(&Condition::To(7))));
        let position = |rule: &(Vec<Condition>, Action)| input.iter().position(|each| each == rule).unwrap();
        let host = position(&(vec![Condition::From(7), Condition::Source(Prefix::of_one(router))], Action::Accept));
        let range = Prefix::new(router, 16).unwrap();
        let neighbour = position(&(vec![Condition::From(7), Condition::Source(range)], Action::Drop));
        let far = position(&(vec![Condition::From(7)], Action::Accept));
        assert!(host < neighbour && neighbour < far && far + 1 == position(&(vec![], Action::Drop)));
    }

    #[test]
    fn peers_are_reached_and_the_host_is_not() {
        let router = IpAddr::from([172, 17, 0, 1]);
        let chains = chains(&[device()], &[router, IpAddr::from([10, 0, 0, 1])], true);
        let output = &chains[2].2;
        let position = |rule: &(Vec<Condition>, Action)| output.iter().position(|each| each == rule).unwrap();
        let host = position(&(vec![Condition::Destination(Prefix::of_one(router))], Action::Reject));
        let range = Prefix::new(router, 16).unwrap();
        let peer = position(&(vec![Condition::To(7), Condition::Destination(range)], Action::Accept));
        assert!(host < peer && output.len() == 9, "{output:?}");
        // The broadcast address, and IPv6's address of routers, are the host's too.
        let broadcast = IpAddr::from([172, 17, 255, 255]);
        assert!(position(&(vec![Condition::Destination(Prefix::of_one(broadcast))], Action::Reject)) < peer);
        let six: Prefix = Prefix::new("fd00:28::".parse().unwrap(), 64).unwrap();
        assert_eq!(shared(six), [Prefix::of_one(six.address)]);
        assert_eq!(shared(Prefix::of_one(router)), []);
    }

    #[test]
    fn peers_have_no_link_local_range() {
        let networks = [("fe80::1", 64), ("169.254.7.1", 16), ("fd00:28::2", 64)].map(|(text, length)| {
            let address: IpAddr = text.parse().unwrap();
            (address, Prefix::new(address, length).unwrap())
        });
        let own = networks[2].1;
        let chains = chains(&[Device { number: 7, networks: networks.into() }], &[], true);
        let opened = chains[2].2.iter().filter(|(when, then)| *then == Action::Accept && when[0] == Condition::To(7));
        let opened: Vec<_> = opened.map(|(when, _)| when[1].clone()).collect();
        assert_eq!(opened, [Condition::Destination(own)]);
    }

    #[test]
    fn a_network_without_devices_does_not_reach_dockers_resolver() {
        for chains in [closed(), chains(&[device()], &[], false)] {
            let (_, hook, output) = chains.last().unwrap();
            let resolver = Condition::Destination(Prefix::of_one(DOCKERS_RESOLVER.into()));
            assert_eq!((*hook, &output[0]), (Hook::Output, &(vec![resolver], Action::Reject)));
        }
    }

    #[test]
    fn every_router_of_a_route_is_read() {
        let hop = |last: u8| {
            let attribute = Request::default().attribute(5, &[10, 0, 0, last]).into_bytes();
            [&((8 + attribute.len()) as u16).to_ne_bytes()[..], &[0; 6], &attribute].concat()
        };
        let route =
            Request::new(&[0; ROUTE_BYTES]).attribute(5, &[10, 0, 0, 1]).attribute(9, &[hop(2), hop(3)].concat());
        let via = [&10_u16.to_ne_bytes()[..], &std::net::Ipv6Addr::LOCALHOST.octets()].concat();
        let found = routers(&route.attribute(18, &via).into_bytes(), ROUTE_BYTES);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1"]);
        assert_eq!(hops(&[255, 255]), [] as [IpAddr; 0]);
    }

    #[test]
    fn addresses_of_messages_are_read_with_their_ranges() {
        let request =
            Request::new(&[2, 24, 0x80, 0, 7, 0, 0, 0]).attribute(1, &[10, 1, 2, 3]).attribute(2, &[10, 1, 2, 3]);
        let (address, range) = network(&request.into_bytes()).unwrap();
        assert_eq!((address.to_string(), range.to_string()), ("10.1.2.3".into(), "10.1.2.0/24".into()));
        assert_eq!(network(&[2, 24]), None);
    }
}
