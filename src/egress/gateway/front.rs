//! The meaning of a client's first bytes, and whether they pass. Pure.

use crate::egress::hello::{self, Hello};
use crate::egress::http::{self, Head};
use crate::egress::policy::Ech;
use crate::egress::rule::{Host, LOOPBACK, canonical};
use crate::sys::weaken;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Servers at these ports choose by a name from the client, which the gateway must be able to read.
const NAMED_PORTS: [u16; 4] = [80, 443, 8080, 8443];
const LONGEST_LINE: usize = 16 * 1024;
const LONGEST_METHOD: usize = 32;
/// The beginning of SSH on both sides, and its longest first line in bytes (RFC 4253, 4.2).
pub(super) const SSH: &[u8] = b"SSH-";
const LONGEST_SSH: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    More,
    /// TLS for the right server, or a protocol without names: passes unchanged.
    Through,
    /// HTTP/1.1; each request is checked.
    Requests,
    /// At an HTTP port: the length of the first line; the rest waits for the server's.
    Ssh(usize),
    /// The reason.
    Refused(String),
}

pub(super) fn opening(bytes: &[u8], host: &Host, port: u16, ech: Ech) -> Opening {
    let Host::Name(name) = host else {
        return if bytes.is_empty() { Opening::More } else { Opening::Through }; // an address has one destination
    };
    match bytes {
        [] => Opening::More,
        [hello::HANDSHAKE, ..] if weaken::is_off("egress-sni") => Opening::Through,
        [hello::HANDSHAKE, ..] => match hello::read(bytes) {
            Hello::Incomplete => Opening::More,
            Hello::Encrypted(_) if ech == Ech::Refuse => {
                Opening::Refused("the TLS hello has an encrypted part, which may name another server (`ech`)".into())
            }
            Hello::Name(Some(asked)) | Hello::Encrypted(Some(asked)) if asked == *name => Opening::Through,
            Hello::Name(Some(asked)) | Hello::Encrypted(Some(asked)) => {
                Opening::Refused(format!("the TLS server name is `{asked}`, not `{name}`"))
            }
            Hello::Name(None) | Hello::Encrypted(None) => {
                Opening::Refused(format!("the TLS client names no server, `{name}` is expected"))
            }
            Hello::Invalid if NAMED_PORTS.contains(&port) => {
                Opening::Refused("the TLS hello is not as it must be".into())
            }
            Hello::Invalid => Opening::Through,
        },
        _ if is_beginning(SSH, bytes) => match bytes.len() {
            0..4 => Opening::More,
            _ if !NAMED_PORTS.contains(&port) || weaken::is_off("egress-ssh") => Opening::Through,
            _ => ssh_opening(bytes, port),
        },
        _ => text_opening(bytes, port),
    }
}

fn is_beginning(word: &[u8], bytes: &[u8]) -> bool {
    word.iter().zip(bytes).all(|(one, two)| one == two)
}

/// An HTTP server must not receive requests from a client that pretends to speak SSH.
fn ssh_opening(bytes: &[u8], port: u16) -> Opening {
    match bytes.iter().position(|&byte| byte == b'\n') {
        None if bytes.len() < LONGEST_SSH => Opening::More,
        Some(end) if end < LONGEST_SSH && !has_version(&bytes[..end]) => Opening::Ssh(end + 1),
        _ => Opening::Refused(format!("neither TLS, HTTP nor SSH at port {port}")),
    }
}

fn has_version(line: &[u8]) -> bool {
    line.windows(6).any(|six| six == b" HTTP/")
}

fn text_opening(bytes: &[u8], port: u16) -> Opening {
    let named = NAMED_PORTS.contains(&port);
    let first = bytes[0];
    let blank = matches!(first, b'\r' | b'\n' | b' ' | b'\t');
    if !blank && !first.is_ascii_graphic() {
        return match named {
            true => Opening::Refused(format!("neither TLS nor HTTP at port {port}")),
            false => Opening::Through,
        };
    }
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let line = bytes[start..].split(|&byte| byte == b'\n').next().unwrap_or_default();
    let whole = start + line.len() < bytes.len();
    let may_be_request = first.is_ascii_uppercase() || blank || begins_with_method(bytes);
    if !whole && bytes.len() <= LONGEST_LINE && (named || may_be_request) {
        return Opening::More;
    }
    if !whole && (blank || begins_with_method(bytes)) {
        return Opening::Refused("a request of HTTP whose first line is too long".into());
    }
    match (has_version(line), http::looks_like_one(bytes)) {
        (true, true) => Opening::Requests,
        (true, false) => Opening::Refused("a request of HTTP that is not as it must be".into()),
        (false, _) if named => Opening::Refused(format!("neither TLS nor HTTP at port {port}")),
        (false, _) => Opening::Through,
    }
}

/// Whether a server could take the first word for a method; some servers accept small letters.
fn begins_with_method(bytes: &[u8]) -> bool {
    let word = bytes.iter().take_while(|&&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')).count();
    bytes[0].is_ascii_alphabetic() && word <= LONGEST_METHOD && matches!(bytes.get(word), None | Some(b' ' | b'\t'))
}

pub(super) fn check_request(head: &Head, host: &Host, port: u16) -> Option<String> {
    if weaken::is_off("egress-host") {
        return None;
    }
    if head.method == "CONNECT" {
        return Some("CONNECT through a server".into());
    }
    let (asked, at) = head.host.clone()?;
    let same_host = match host {
        Host::Name(name) => asked == *name,
        Host::Address(_) => true,
    };
    match same_host && at.is_none_or(|at| at == port) {
        true => None,
        false => {
            let at = at.map_or(String::new(), |at| format!(":{at}"));
            Some(format!("the request is for `{asked}{at}`, the connection for `{host}:{port}`"))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProxyRequest {
    /// More bytes must come.
    More,
    /// Drop so many bytes and send these.
    Answer(usize, Vec<u8>),
    /// The request took `used` bytes.
    Connect { host: Host, port: u16, used: usize, socks: bool },
    /// Send these bytes and close.
    Refused(Vec<u8>, String),
}

/// No authentication (RFC 1928).
const SOCKS_HELLO: [u8; 2] = [5, 0];

/// Without an address.
pub(super) fn socks_answer(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Synthetic addresses were resolved before.
pub(super) fn host(text: &str) -> Option<Host> {
    if canonical(text).is_some_and(|name| name == "localhost") {
        return Some(Host::Address(LOOPBACK[0]));
    }
    text.parse::<IpAddr>()
        .map(|address| Host::Address(address.to_canonical()))
        .ok()
        .or_else(|| canonical(text).map(Host::Name))
}

/// `greeted`: SOCKS5's hello is over.
pub(super) fn read_proxy_request(bytes: &[u8], greeted: bool) -> ProxyRequest {
    match bytes {
        [] => ProxyRequest::More,
        [5, ..] => socks(bytes, greeted),
        _ if http::looks_like_one(bytes) => connect(bytes),
        _ => ProxyRequest::Refused(Vec::new(), "neither SOCKS5 nor HTTP at the proxy's port".into()),
    }
}

fn socks(bytes: &[u8], greeted: bool) -> ProxyRequest {
    if !greeted {
        return match bytes {
            [5, count, methods @ ..] if methods.len() >= usize::from(*count) => {
                match methods[..usize::from(*count)].contains(&0) {
                    true => ProxyRequest::Answer(2 + usize::from(*count), SOCKS_HELLO.to_vec()),
                    false => ProxyRequest::Refused(vec![5, 0xff], "SOCKS5 with a password".into()),
                }
            }
            _ => ProxyRequest::More,
        };
    }
    let [5, command, 0, kind, rest @ ..] = bytes else {
        return if bytes.len() < 4 {
            ProxyRequest::More
        } else {
            ProxyRequest::Refused(socks_answer(1), "not SOCKS5".into())
        };
    };
    if *command != 1 {
        return ProxyRequest::Refused(socks_answer(7), "SOCKS5, but not to connect".into()); // also UDP
    }
    let length = match (kind, rest.first()) {
        (1, _) => 4,
        (4, _) => 16,
        (3, Some(length)) => 1 + usize::from(*length),
        (3, None) => return ProxyRequest::More,
        _ => return ProxyRequest::Refused(socks_answer(8), "SOCKS5 with an unknown kind of address".into()),
    };
    let (Some(address), Some(port)) = (rest.get(..length), rest.get(length..length + 2)) else {
        return ProxyRequest::More;
    };
    let found = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(v4), _) if *kind == 1 => Some(Host::Address(Ipv4Addr::from(v4).into())),
        (_, Ok(v6)) if *kind == 4 => Some(Host::Address(IpAddr::V6(Ipv6Addr::from(v6)).to_canonical())),
        _ => std::str::from_utf8(&address[1..]).ok().and_then(host),
    };
    match found {
        Some(host) => ProxyRequest::Connect {
            host,
            port: u16::from_be_bytes([port[0], port[1]]),
            used: 4 + length + 2,
            socks: true,
        },
        None => ProxyRequest::Refused(socks_answer(8), "SOCKS5 with no host name".into()),
    }
}

fn connect(bytes: &[u8]) -> ProxyRequest {
    let refused = |words: &str| ProxyRequest::Refused(http::answer(400, words), words.to_owned());
    match http::Requests::new().step(bytes) {
        http::Step::More => ProxyRequest::More,
        http::Step::Head(head, used) => {
            let Some((name, port)) = head.host.clone() else { return refused("the request names no host") };
            let Some(host) = host(&name) else { return refused("the request names no host") };
            match (head.method == "CONNECT", port) {
                (true, Some(port)) => ProxyRequest::Connect { host, port, used, socks: false },
                (true, None) => refused("CONNECT names no port"),
                // A request with its whole URL passes unchanged: every server must accept it (RFC 9112, 3.2.2).
                (false, port) if head.target.starts_with("http") => {
                    ProxyRequest::Connect { host, port: port.unwrap_or(80), used: 0, socks: false }
                }
                (false, _) => refused("this is a proxy: give it CONNECT, or a whole URL"),
            }
        }
        http::Step::Content(_) => refused("a request begins with its content"),
        http::Step::Invalid(cause) => refused(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: &[u8], port: u16) -> Opening {
        opening(bytes, &Host::Name("a.example".into()), port, Ech::Refuse)
    }

    #[test]
    fn what_servers_choose_by_is_checked_and_other_protocols_pass() {
        assert_eq!(at(b"", 443), Opening::More);
        assert_eq!(at(b"G", 80), Opening::More);
        assert_eq!(at(b"GET / HTTP/1.1\r\n", 80), Opening::Requests);
        assert_eq!(at(b"GET / HTTP/1.1\r\n", 9999), Opening::Requests);
        assert_eq!(at(b"SSH-2.0-x\r\n", 22), Opening::Through);
        assert_eq!(at(b"SSH-2.0-x\r\nmore", 443), Opening::Ssh(11));
        assert_eq!(at(b"SSH-2.0-x", 443), Opening::More);
        assert_eq!(at(b"SS", 443), Opening::More);
        assert!(matches!(at(b"SSH-2.0 / HTTP/1.1\r\n", 80), Opening::Refused(_)));
        assert!(matches!(at(&[b"SSH-2.0-".as_slice(), &[b'x'; 300]].concat(), 80), Opening::Refused(_)));
        assert_eq!(at(b"EHLO me\r\n", 25), Opening::Through);
        assert_eq!(at(&[0, 0, 0, 8, 4, 210, 22, 47], 5432), Opening::Through);
        let long = vec![b'x'; LONGEST_LINE];
        assert!(matches!(at(&[b"GET /", long.as_slice()].concat(), 9999), Opening::Refused(_)));
        assert!(matches!(at(&[b"get /", long.as_slice()].concat(), 9999), Opening::Refused(_)));
        assert!(matches!(at(&[b" GET /", long.as_slice()].concat(), 9999), Opening::Refused(_)));
        assert_eq!(at(&long, 9999), Opening::Through);
        assert_eq!(at(b"get /x", 9999), Opening::More);
        assert_eq!(at(b"{\"a\": 1", 9999), Opening::Through);
        assert_eq!(at(b"get key\r\n", 11211), Opening::Through);
        for (bytes, port) in [
            (&b"\r\nGET / HTTP/1.1\r\n"[..], 9999),
            (b"\nGET / HTTP/1.1\r\n", 80),
            (b"get / HTTP/1.1\r\n", 80),
            (b"get / HTTP/1.1\r\n", 9999),
            (b" GET / HTTP/1.1\r\n", 9999),
            (b"EHLO me\r\n", 80),
            (&[0, 1, 2], 443),
            (&[22, 3, 1, 0, 0], 443),
        ] {
            assert!(matches!(at(bytes, port), Opening::Refused(_)), "{bytes:?} {port}");
        }
    }

    #[test]
    fn the_proxy_is_asked_in_two_languages() {
        let connect = b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n\r\nrest";
        let connect_to = |host: Host, port, used, socks| ProxyRequest::Connect { host, port, used, socks };
        let named = || Host::Name("a.example".into());
        assert_eq!(read_proxy_request(connect, false), connect_to(named(), 443, connect.len() - 4, false));
        let whole = b"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(read_proxy_request(whole, false), connect_to(named(), 80, 0, false));
        assert_eq!(read_proxy_request(&[5, 1, 0], false), ProxyRequest::Answer(3, vec![5, 0]));
        assert_eq!(read_proxy_request(&[5, 2, 0], false), ProxyRequest::More);
        assert!(matches!(read_proxy_request(&[5, 1, 2], false), ProxyRequest::Refused(..)));
        let mut socks = vec![5, 1, 0, 3, 9];
        socks.extend(b"a.example");
        assert_eq!(read_proxy_request(&socks, true), ProxyRequest::More);
        socks.extend([1, 187]);
        assert_eq!(read_proxy_request(&socks, true), connect_to(named(), 443, 16, true));
        let v4 = [5, 1, 0, 1, 1, 2, 3, 4, 0, 80];
        assert_eq!(read_proxy_request(&v4, true), connect_to(Host::Address([1, 2, 3, 4].into()), 80, 10, true));
        assert!(matches!(read_proxy_request(&[5, 3, 0, 1], true), ProxyRequest::Refused(..)));
        assert!(matches!(read_proxy_request(b"hello", false), ProxyRequest::Refused(..)));
    }
}
