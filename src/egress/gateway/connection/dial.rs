//! Dials the server: one address after the other, none of this host unless a rule allows it.

use super::{Back, Connection, DIAL, FAREWELL, Need, ProxyReply};
use crate::egress::gateway::flow::End;
use crate::egress::gateway::front;
use crate::egress::gateway::host_address::leads_home;
use crate::egress::http;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

impl Connection {
    /// The rest are tried if the first fails.
    pub(in crate::egress::gateway) fn dial(&mut self, mut addresses: VecDeque<SocketAddr>) -> Need {
        let mut last = Errno::HOSTUNREACH;
        while let Some(address) = addresses.pop_front() {
            match begin_dial(&address, self.stays_out) {
                Ok(socket) => {
                    self.server = Some(End::new(socket));
                    self.dialled = Some(address);
                    self.back = Back::Dialling(addresses);
                    self.deadline = Some(Instant::now() + DIAL);
                    return Need::Watch;
                }
                Err(errno) => last = errno,
            }
        }
        self.failed(format!("the server cannot be reached: {}", std::io::Error::from(last)))
    }

    pub(in crate::egress::gateway) fn failed(&mut self, why: String) -> Need {
        self.deadline = Some(Instant::now() + FAREWELL);
        match self.proxy_reply {
            ProxyReply::Connect => self.farewell(http::answer(502, &why)),
            ProxyReply::Socks => self.farewell(front::socks_answer(4)),
            ProxyReply::None => {
                self.back = Back::Failed(why);
                Need::Again
            }
        }
    }

    /// Tries the next address if the dialled server refused.
    pub(in crate::egress::gateway) fn check_dial(&mut self) -> Result<Option<Need>, Errno> {
        let (Back::Dialling(rest), Some(server)) = (&mut self.back, &self.server) else { return Ok(None) };
        if !server.writable {
            return Ok(None);
        }
        match sockopt::socket_error(&server.socket)? {
            Ok(()) => {
                self.back = Back::Open;
                self.deadline = None;
                match std::mem::replace(&mut self.proxy_reply, ProxyReply::None) {
                    ProxyReply::Connect => self.down.push(b"HTTP/1.1 200 Connection established\r\n\r\n"),
                    ProxyReply::Socks => self.down.push(&front::socks_answer(0)),
                    ProxyReply::None => {}
                }
                Ok(None)
            }
            Err(errno) => {
                let rest = std::mem::take(rest);
                if rest.is_empty() {
                    let why = format!("the server cannot be reached: {}", std::io::Error::from(errno));
                    return Ok(Some(self.failed(why)));
                }
                Ok(Some(self.dial(rest)))
            }
        }
    }
}

/// `stays_out` rejects an address of this host.
fn begin_dial(address: &SocketAddr, stays_out: bool) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?; // detects a dead server
    match connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) if stays_out && leads_home(&socket, address.ip()) => Err(Errno::HOSTUNREACH),
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_stays_out_does_not_come_home() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(begin_dial(&address, false).is_ok());
        assert_eq!(begin_dial(&address, true).unwrap_err(), Errno::HOSTUNREACH);
    }
}
