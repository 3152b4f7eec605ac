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
        let chains = if devices.is_empty() { closed() } else { chains(&devices, &self.gateways()?, peers) };
        let step = || "close the container's network (nf_tables)".to_owned();
        tables::make_with(&self.tables, "brig", false, &chains)
            .map_err(|errno| tables::failed(errno, step(), "load the modules nf_tables, nft_ct and nft_reject_inet"))
    }

    /// Without those that the kernel made.
    fn devices(&self) -> Result<Vec<Device>> {
        let addresses = self.routes.dump(ADDRESS, Request::new(&[0; ADDRESS_BYTES]));
        let addresses = addresses.failing(Kind::Network, || "list the container's addresses")?;
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

    /// The addresses of routers: the engine's host, which is not a peer.
    fn gateways(&self) -> Result<Vec<IpAddr>> {
        const RTA_GATEWAY: u16 = 5;
        let routes = self.routes.dump(ROUTE, Request::new(&[0; ROUTE_BYTES]));
        let routes = routes.failing(Kind::Network, || "list the container's routes")?;
        let router = |body: &Vec<u8>| {
            attributes(body, ROUTE_BYTES).find(|(kind, _)| *kind == RTA_GATEWAY).and_then(|(_, value)| address(value))
        };
        Ok(routes.iter().filter_map(router).collect())
    }
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
    vec![
        ("in", Hook::Input, vec![(vec![Condition::From(LOOPBACK)], Action::Accept), (Vec::new(), Action::Drop)]),
        ("out", Hook::Output, vec![(vec![Condition::To(LOOPBACK)], Action::Accept), (Vec::new(), Action::Reject)]),
    ]
}

fn chains(devices: &[Device], gateways: &[IpAddr], peers: bool) -> Vec<Chain> {
    let from = |device: &Device| Condition::From(device.number);
    let mut output = vec![
        (vec![Condition::Destination(Prefix::of_one(DOCKERS_RESOLVER.into()))], Action::Reject),
        (vec![Condition::To(LOOPBACK)], Action::Accept),
        (vec![Condition::Known], Action::Accept),
        (neighbours(), Action::Accept),
    ];
    if weaken::is_off("egress-resolver") {
        output.remove(0);
    }
    let mut input = vec![
        (vec![Condition::From(LOOPBACK)], Action::Accept),
        (vec![Condition::Known], Action::Accept),
        (neighbours(), Action::Accept),
    ];
    let networks = devices.iter().flat_map(|device| device.networks.iter().map(move |(_, range)| (device, *range)));
    for (device, range) in networks {
        let routers = gateways.iter().filter(|router| range.contains(**router)).map(|router| Prefix::of_one(*router));
        if peers {
            output.extend(routers.map(|router| (vec![Condition::Destination(router)], Action::Reject)));
            output.push((vec![Condition::To(device.number), Condition::Destination(range)], Action::Accept));
        } else if !weaken::is_off("egress-peers") {
            // A published port is reached from the host, or from far away. A neighbour could carry data out.
            input.extend(routers.map(|router| (vec![from(device), Condition::Source(router)], Action::Accept)));
            input.push((vec![from(device), Condition::Source(range)], Action::Drop));
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
        assert!(host < peer && output.len() == 7, "{output:?}");
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
