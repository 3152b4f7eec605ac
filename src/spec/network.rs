//! The network of a sandbox as plain data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// For names inside a sandbox: the range for benchmarks (RFC 2544), which is not routed.
pub(crate) const NAMES_V4: Prefix = Prefix { address: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), length: 15 };
/// For names inside a sandbox: unique local addresses (RFC 4193).
pub(crate) const NAMES_V6: Prefix =
    Prefix { address: IpAddr::V6(Ipv6Addr::new(0xfd62, 0x7269, 0x6700, 0, 0, 0, 0, 0)), length: 64 };
/// Inside a sandbox.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const DNS_PORT: u16 = 53;
/// [`GATEWAY`] is a proxy there, for HTTP CONNECT and SOCKS5 alike.
pub(crate) const PROXY_PORTS: [u16; 2] = [3128, 1080];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub address: IpAddr,
    /// Leading bits that all addresses share.
    pub length: u8,
}

impl Prefix {
    pub(crate) fn of_one(address: IpAddr) -> Prefix {
        Prefix { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// The range that has `address`; `None` if the length is too large.
    pub(crate) fn new(address: IpAddr, length: u8) -> Option<Prefix> {
        let address = match address {
            IpAddr::V4(v4) if length <= 32 => IpAddr::V4(Ipv4Addr::from_bits(
                v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0),
            )),
            IpAddr::V6(v6) if length <= 128 => IpAddr::V6(Ipv6Addr::from_bits(
                v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0),
            )),
            _ => return None,
        };
        Some(Prefix { address, length })
    }

    /// A mapped IPv4 address is that IPv4 address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        Prefix::new(address.to_canonical(), self.length)
            .is_some_and(|other| other.address == self.address && other.address.is_ipv4() == self.address.is_ipv4())
    }

    pub(crate) fn covers(&self, other: &Prefix) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.length)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Network {
    /// Separate, with a loopback interface and no connection outside.
    #[default]
    Closed,
    /// Separate, with sockets that the gateway serves from outside.
    Served(Served),
    /// Separate, connected to every address that a fence leaves open.
    Open(Open),
    Host,
}

impl Network {
    pub(crate) fn served(&self) -> Option<&Served> {
        match self {
            Network::Served(served) => Some(served),
            Network::Open(open) => open.served.as_ref(),
            Network::Closed | Network::Host => None,
        }
    }
}

/// Open but for a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub way: Way,
    pub fence: Fence,
    /// If a port is published.
    pub served: Option<Served>,
}

/// The path of packets out of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A pair of devices with one end on the host, forwarding and NAT: needs the machine's root.
    Veth,
    /// A program beside the sandbox opens every connection again by its own sockets.
    Pasta,
}

/// Addresses that an open network does not reach. Order: `denied`, `allowed` within a closed range, `closed`, `allowed`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fence {
    /// Refused by name.
    pub denied: Vec<Reach>,
    /// Allowed although it is closed.
    pub allowed: Vec<Reach>,
    /// Refused at every port.
    pub closed: Vec<Prefix>,
}

/// Ports of TCP and UDP alike. None stands for every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub range: Prefix,
    pub ports: Vec<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Names are resolved and connections proxied, with routes and the sockets of the gateway and of `ports`.
    pub names: bool,
    /// TCP ports that listen, at any address.
    pub ports: Vec<u16>,
    /// Further ranges whose every address is local.
    pub routes: Vec<Prefix>,
    /// Spare TCP sockets: for a port that is allowed later, or a connection into the sandbox.
    pub spares: usize,
}

/// The purpose of a socket from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// Listens for TCP; the destination address of a connection decides the rest.
    Listener(u16),
    /// UDP questions to the gateway's DNS.
    Questions,
    /// Not bound yet.
    Spare,
}

impl Socket {
    pub(crate) fn to_bytes(self) -> [u8; 3] {
        match self {
            Socket::Listener(port) => [b'L', port.to_be_bytes()[0], port.to_be_bytes()[1]],
            Socket::Questions => [b'Q', 0, 0],
            Socket::Spare => [b'S', 0, 0],
        }
    }

    /// `None` for another message.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Socket> {
        match bytes {
            [b'L', high, low] => Some(Socket::Listener(u16::from_be_bytes([*high, *low]))),
            [b'Q', ..] => Some(Socket::Questions),
            [b'S', ..] => Some(Socket::Spare),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_what_its_bits_say() {
        let check = |address: &str, length, inside: &str, expected| {
            let prefix = Prefix::new(address.parse().unwrap(), length).unwrap();
            assert_eq!(prefix.contains(inside.parse().unwrap()), expected, "{prefix} {inside}");
        };
        check("10.1.2.3", 8, "10.255.0.1", true);
        check("10.1.2.3", 8, "11.0.0.1", false);
        check("10.0.0.0", 8, "::ffff:10.0.0.1", true);
        check("0.0.0.0", 0, "1.2.3.4", true);
        check("0.0.0.0", 0, "2001:db8::1", false);
        check("::", 0, "1.2.3.4", false);
        check("127.0.0.1", 32, "127.0.0.1", true);
        check("127.0.0.1", 32, "127.0.0.2", false);
        assert!(Prefix::new("10.0.0.0".parse().unwrap(), 33).is_none());
        assert!(NAMES_V4.contains(IpAddr::V4(GATEWAY)));
        assert!(NAMES_V4.covers(&Prefix::new("198.19.1.0".parse().unwrap(), 24).unwrap()));
    }

    #[test]
    fn a_socket_keeps_its_purpose_on_the_way() {
        for socket in [Socket::Listener(443), Socket::Listener(65535), Socket::Questions, Socket::Spare] {
            assert_eq!(Socket::from_bytes(&socket.to_bytes()), Some(socket));
        }
        assert_eq!(Socket::from_bytes(b""), None);
    }
}
