//! Whether an address belongs to this host: the gateway dials from it, so its firewall would not protect its services.
//!
//! Asks the kernel each time: addresses change, and the gateway may make only internet sockets. No packet is sent, and
//! a start does not wait.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Documentation addresses, which no host has (RFC 5737, RFC 3849).
const NOBODYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 213)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x5bd1, 0, 0, 0, 0, 0xe995))];
/// Any port: no datagram is sent.
const PORT: u16 = 9;

pub(super) fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    // A local route can give the host a whole range; a socket can be bound to each address of it.
    let nobodys = NOBODYS[usize::from(address.is_ipv6())];
    can_bind(address) && !can_bind(nobodys) || is_its_own_source(address)
}

/// With `net.ipv4.ip_nonlocal_bind`, a socket can also have a foreign address.
fn can_bind(address: IpAddr) -> bool {
    datagrams(address).and_then(|socket| bind(&socket, &SocketAddr::new(address, 0))).is_ok()
}

fn is_its_own_source(address: IpAddr) -> bool {
    let connected = datagrams(address).and_then(|socket| {
        connect(&socket, &SocketAddr::new(address, PORT))?;
        Ok(socket)
    });
    connected.is_ok_and(|socket| leads_home(&socket, address))
}

/// Whether both ends of a connection have the address.
pub(super) fn leads_home(socket: &OwnedFd, address: IpAddr) -> bool {
    let local = getsockname(socket).ok().and_then(|local| SocketAddr::try_from(local).ok());
    local.is_some_and(|local| local.ip().to_canonical() == address.to_canonical())
}

fn datagrams(address: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_of_the_host_is_its_own() {
        for address in ["127.0.0.1", "127.7.7.7", "::ffff:127.0.0.1"] {
            assert!(is_own(address.parse().unwrap()), "{address}");
        }
        for address in ["192.0.2.1", "93.184.216.34", "::ffff:93.184.216.34", "2606:4700::1111"] {
            assert!(!is_own(address.parse().unwrap()), "{address}");
        }
    }
}
