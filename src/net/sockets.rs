//! Sockets inside a sandbox that a process outside serves: a socket stays in the namespace that made it.

use super::device::link;
use super::netlink::{LINK, LOOPBACK, ROUTE, Request, Route};
use crate::error::{Context, Kind, Result};
use crate::files::Channel;
use crate::spec::network::{DNS_PORT, GATEWAY, NAMES_V4, NAMES_V6, PROXY_PORTS, Prefix, Served, Socket};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

/// The kernel takes the minimum of this and net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// The loopback interface is up already.
pub(crate) fn serve(wish: &Served, gateway: &Channel) -> Result<()> {
    if wish.names {
        let has_v6 = add_routes(&wish.routes)?;
        let questions = datagram().failing(Kind::Network, || "make the socket of the sandbox's DNS")?;
        hand(gateway, Socket::Questions, &questions)?;
        for &port in &wish.ports {
            let made = listener(port, has_v6).failing(Kind::Network, || format!("listen at port {port} inside"))?;
            hand(gateway, Socket::Listener(port), &made)?;
        }
        for port in PROXY_PORTS.into_iter().chain([DNS_PORT]).filter(|port| !wish.ports.contains(port)) {
            let made = own_listener(port).failing(Kind::Network, || format!("listen at {GATEWAY}:{port} inside"))?;
            hand(gateway, Socket::Listener(port), &made)?;
        }
    }
    for _ in 0..wish.spares {
        let made = stream(AddressFamily::INET6).or_else(|_| stream(AddressFamily::INET));
        hand(gateway, Socket::Spare, &made.failing(Kind::Network, || "make a spare socket inside")?)?;
    }
    Ok(())
}

/// Whether the kernel has IPv6.
fn add_routes(further: &[Prefix]) -> Result<bool> {
    let step = |prefix: &Prefix| format!("make {prefix} local to the sandbox");
    let routes = Route::open().failing(Kind::Network, || "open the sandbox's routing tables")?;
    widen_packets(&routes);
    let add = |prefix: &Prefix| add_local_route(&routes, prefix);
    add(&NAMES_V4).failing(Kind::Network, || step(&NAMES_V4))?;
    let has_v6 = add(&NAMES_V6).is_ok(); // fails on a kernel without IPv6
    for prefix in further.iter().filter(|prefix| !prefix.address.is_loopback()) {
        match add(prefix) {
            Ok(()) => {}
            Err(_) if prefix.address.is_ipv6() && !has_v6 => {}
            Err(errno) => return Err(errno).failing(Kind::Network, || step(prefix)),
        }
    }
    Ok(has_v6)
}

/// Quadruples the largest packet of the loopback interface (IFLA_GSO_MAX_SIZE and others, Linux 6.3): fewer packets for
/// the same bytes. An older kernel refuses, and nothing changes.
fn widen_packets(routes: &Route) {
    /// Segmentation and reassembly; then both for IPv4.
    const SIZES: [u16; 4] = [41, 58, 63, 64];
    const BYTES: u32 = 256 << 10;
    let change = Request::new(&link(LOOPBACK as i32, 0));
    let request = SIZES.into_iter().fold(change, |request, size| request.attribute(size, &BYTES.to_ne_bytes()));
    let _ = routes.change(LINK, request);
}

/// `ip route add local ADDRESS/LENGTH dev lo` (rtnetlink(7)).
fn add_local_route(routes: &Route, prefix: &Prefix) -> Result<(), Errno> {
    const RTA_DST: u16 = 1;
    const RTA_OIF: u16 = 4;
    const RT_TABLE_LOCAL: u8 = 255;
    const RTPROT_STATIC: u8 = 4;
    const RT_SCOPE_HOST: u8 = 254;
    const RTN_LOCAL: u8 = 2;
    let (family, bytes) = match prefix.address {
        IpAddr::V4(v4) => (AddressFamily::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets().to_vec()),
    };
    let family = u8::try_from(family.as_raw()).map_err(|_| Errno::AFNOSUPPORT)?;
    // struct rtmsg
    let fixed = [family, prefix.length, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
    let request = Request::new(&fixed).attribute(RTA_DST, &bytes).attribute(RTA_OIF, &LOOPBACK.to_ne_bytes());
    routes.add(ROUTE, request)
}

fn hand(gateway: &Channel, socket: Socket, descriptor: &OwnedFd) -> Result<()> {
    gateway
        .send(&socket.to_bytes(), Some(descriptor.as_fd()))
        .failing(Kind::Network, || "hand a socket of the sandbox to the gateway")
}

fn datagram() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrV4::new(GATEWAY, DNS_PORT))?;
    Ok(socket)
}

/// On every address of both families, if the kernel has both.
fn listener(port: u16, has_v6: bool) -> Result<OwnedFd, Errno> {
    let socket = if has_v6 {
        let socket = stream(AddressFamily::INET6)?;
        bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        socket
    } else {
        let socket = stream(AddressFamily::INET)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
        socket
    };
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn own_listener(port: u16) -> Result<OwnedFd, Errno> {
    let socket = stream(AddressFamily::INET)?;
    bind(&socket, &SocketAddrV4::new(GATEWAY, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn stream(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    Ok(socket)
}
