//! Requests of HTTP/1.1 (RFC 9112): the host and the end of each. Pure.
//!
//! Each request of a connection may name another host. What two programs could understand in two ways is refused
//! (request smuggling).

use super::rule::canonical;
use crate::sys::weaken;

pub(super) const LONGEST_HEAD: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Length(u64),
    Chunked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub method: String,
    /// Unchanged: a path or the whole URL.
    pub target: String,
    /// In canonical form, and the port if one is named.
    pub host: Option<(String, Option<u16>)>,
    pub content: Content,
    pub websocket: bool,
    /// HTTP/1.0.
    pub old: bool,
    pub fields: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// Bytes of the current request's content.
    Content(usize),
    /// With its length in bytes.
    Head(Box<Head>, usize),
    Invalid(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    ChunkSize,
    Chunk(u64),
    Trailer,
}

#[derive(Debug)]
pub(super) struct Requests {
    state: State,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests { state: State::Head }
    }

    /// `bytes`: those that were not passed on.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Step {
        if bytes.is_empty() {
            return Step::More;
        }
        match self.state {
            State::Head => match head(bytes) {
                Ok(Some((head, length))) => {
                    self.state = match head.content {
                        Content::Length(0) => State::Head,
                        Content::Length(length) => State::Length(length),
                        Content::Chunked => State::ChunkSize,
                    };
                    Step::Head(Box::new(head), length)
                }
                Ok(None) if bytes.len() > LONGEST_HEAD => Step::Invalid("the head is too long"),
                Ok(None) => Step::More,
                Err(cause) => Step::Invalid(cause),
            },
            State::Length(left) => {
                let count = left.min(bytes.len() as u64);
                self.state = if count == left { State::Head } else { State::Length(left - count) };
                Step::Content(count as usize)
            }
            // The chunk includes the line end after it.
            State::Chunk(left) => {
                let count = left.min(bytes.len() as u64);
                let part = &bytes[..count as usize];
                if !ends_well(part, left) {
                    return Step::Invalid("a chunk does not end where it should");
                }
                self.state = if count == left { State::ChunkSize } else { State::Chunk(left - count) };
                Step::Content(count as usize)
            }
            State::ChunkSize => match line(bytes, 1024) {
                Ok(None) => Step::More,
                Err(cause) => Step::Invalid(cause),
                Ok(Some(text)) => match chunk_size(text) {
                    None => Step::Invalid("the size of a chunk is not a number"),
                    Some(0) => {
                        self.state = State::Trailer;
                        Step::Content(text.len() + 2)
                    }
                    Some(size) => {
                        self.state = State::Chunk(size + 2);
                        Step::Content(text.len() + 2)
                    }
                },
            },
            State::Trailer => match line(bytes, LONGEST_HEAD) {
                Ok(None) => Step::More,
                Err(cause) => Step::Invalid(cause),
                Ok(Some("")) => {
                    self.state = State::Head;
                    Step::Content(2)
                }
                Ok(Some(_)) => Step::Invalid("a trailer"), // a careless server could take another host from it
            },
        }
    }
}

/// Before this part, `left` bytes of the chunk were to come.
fn ends_well(part: &[u8], left: u64) -> bool {
    let from_end = |distance: u64| left.checked_sub(distance).and_then(|at| part.get(usize::try_from(at).ok()?));
    from_end(2).is_none_or(|&byte| byte == b'\r') && from_end(1).is_none_or(|&byte| byte == b'\n')
}

pub(super) fn chunk_size(text: &str) -> Option<u64> {
    let digits = text.split(';').next()?.trim_end_matches([' ', '\t']);
    (!digits.is_empty() && digits.len() <= 15 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Without the line's end, which must be valid.
pub(super) fn plain_line(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, &'static str> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() > longest { Err("a line is too long") } else { Ok(None) };
    };
    let text = bytes[..end].strip_suffix(b"\r").ok_or("a line ends without CR")?;
    if text.iter().any(|&byte| byte == b'\r' || byte == 0) {
        return Err("a line has a control character");
    }
    Ok(Some(text))
}

pub(super) fn line(bytes: &[u8], longest: usize) -> Result<Option<&str>, &'static str> {
    let text = plain_line(bytes, longest)?;
    text.map(|text| std::str::from_utf8(text).map_err(|_| "a line is not UTF-8")).transpose()
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

pub(super) fn looks_like_one(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    (3..=16).contains(&method) && bytes.get(method).is_none_or(|&byte| byte == b' ')
}

fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, &'static str> {
    let mut at = 0;
    let mut lines = Vec::new();
    loop {
        match line(&bytes[at..], LONGEST_HEAD)? {
            None => return Ok(None),
            Some("") if lines.is_empty() => return Err("an empty line before the request"),
            Some("") => break,
            Some(text) => {
                lines.push(text);
                at += text.len() + 2;
            }
        }
    }
    let (first, rest) = lines.split_first().ok_or("nothing")?;
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("the first line is not three words");
    };
    if !is_token(method) || target.is_empty() || target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err("the first line is not as it must be");
    }
    let old = match version {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        _ => return Err("neither HTTP/1.1 nor HTTP/1.0"),
    };
    let fields: Vec<_> = rest.iter().map(|text| field(text)).collect::<Result<_, _>>()?;
    let content = content(&fields, old)?;
    let host = host(&fields, target, method)?;
    if host.is_none() && !old {
        return Err("the Host header is missing");
    }
    // Of several, the server could take another, and the bytes after that are not checked.
    let upgrades: Vec<_> = values(&fields, "upgrade").collect();
    let websocket = matches!(*upgrades, [one] if one.eq_ignore_ascii_case("websocket"))
        && values(&fields, "http2-settings").next().is_none()
        && content == Content::Length(0);
    Ok(Some((Head { method: method.into(), target: target.into(), host, content, websocket, old, fields }, at + 2)))
}

pub(super) fn field(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("a header without a colon")?;
    if !is_token(name) {
        return Err("a header's name is not as it must be"); // also continued lines and blanks before the colon
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

pub(super) fn values<'all>(fields: &'all [(String, String)], name: &'all str) -> impl Iterator<Item = &'all str> {
    fields.iter().filter(move |(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// `old`: HTTP/1.0.
pub(super) fn content(fields: &[(String, String)], old: bool) -> Result<Content, &'static str> {
    let codings: Vec<_> = values(fields, "transfer-encoding").collect();
    let lengths: Vec<_> = values(fields, "content-length").collect();
    match (codings.as_slice(), lengths.as_slice()) {
        ([], []) => Ok(Content::Length(0)),
        ([], [one]) if !one.is_empty() && one.len() <= 18 && one.bytes().all(|byte| byte.is_ascii_digit()) => {
            one.parse().map(Content::Length).map_err(|_| "Content-Length is not a number")
        }
        ([], _) => Err("Content-Length is not one number"),
        ([one], []) if one.eq_ignore_ascii_case("chunked") && !old => Ok(Content::Chunked),
        (_, []) => Err("Transfer-Encoding is not chunked"),
        (_, [one]) if weaken::is_off("http-framing") => Ok(Content::Length(one.parse().unwrap_or(0))),
        _ => Err("Transfer-Encoding and Content-Length together"),
    }
}

/// Parses a Host header's value. A server could take other text for another host (RFC 3986, 3.2).
fn authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, rest) = inner.split_once(']')?;
            (address.parse::<std::net::Ipv6Addr>().ok()?.to_string(), rest)
        }
        None => {
            let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            (canonical(host)?, rest)
        }
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        None => return None,
        Some("") => None,
        Some(digits) if digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        Some(_) => return None,
    };
    Some((host, port))
}

/// The Host header and the host of a whole URL must agree.
fn host(
    fields: &[(String, String)],
    target: &str,
    method: &str,
) -> Result<Option<(String, Option<u16>)>, &'static str> {
    let mut hosts = values(fields, "host");
    let named = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(one), None) => Some(authority(one).ok_or("Host is not a host name")?),
        _ => return Err("more than one Host"),
    };
    if method == "CONNECT" {
        return Ok(Some(authority(target).ok_or("CONNECT names no host")?));
    }
    let is_url = target.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    if !is_url {
        let plain = target.starts_with('/') || (target == "*" && method == "OPTIONS");
        return if plain { Ok(named) } else { Err("the target is neither a path nor a URL") };
    }
    let rest = &target[7..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let by_url = authority(&rest[..end]).ok_or("the URL names no host")?;
    let with_port = |(host, port): &(String, Option<u16>)| (host.clone(), port.unwrap_or(80));
    if named.as_ref().is_some_and(|named| with_port(named) != with_port(&by_url)) {
        return Err("the URL and Host differ");
    }
    Ok(Some(by_url))
}

pub(super) fn answer(status: u16, words: &str) -> Vec<u8> {
    let reason = match status {
        403 => "Forbidden",
        400 => "Bad Request",
        _ => "Bad Gateway",
    };
    let body = format!("brig: {words}\n");
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(text: &str, size: usize) -> Result<Vec<Head>, &'static str> {
        let (mut requests, mut held, mut heads) = (Requests::new(), Vec::new(), Vec::new());
        for part in text.as_bytes().chunks(size) {
            held.extend_from_slice(part);
            loop {
                match requests.step(&held) {
                    Step::More => break,
                    Step::Content(count) => drop(held.drain(..count)),
                    Step::Head(head, count) => {
                        held.drain(..count);
                        heads.push(*head);
                    }
                    Step::Invalid(cause) => return Err(cause),
                }
            }
        }
        assert!(held.is_empty(), "{held:?} of {text:?} is left");
        Ok(heads)
    }

    #[test]
    fn every_request_of_a_connection_is_seen() {
        let text = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n\
                    POST /x HTTP/1.1\r\nhost: A.example:80\r\nContent-Length: 5\r\n\r\nGET /\
                    PUT /y HTTP/1.1\r\nHost: b.example\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\n\r\n\
                    GET http://c.example:81/z HTTP/1.1\r\nHost: c.example:81\r\n\r\n";
        for size in [1, 2, 3, 10, 1000] {
            let hosts: Vec<_> = pass(text, size).unwrap().into_iter().map(|head| head.host.unwrap()).collect();
            let expected = [("a.example", None), ("a.example", Some(80)), ("b.example", None), ("c.example", Some(81))];
            assert_eq!(hosts, expected.map(|(host, port)| (host.to_owned(), port)), "{size}");
        }
    }

    #[test]
    fn what_could_be_understood_in_two_ways_is_refused() {
        let get = |rest: &str| format!("GET / HTTP/1.1\r\n{rest}\r\n\r\n");
        for (text, words) in [
            (get("Host: a.example\r\nHost: b.example"), "more than one Host"),
            (get("X: 1"), "the Host header is missing"),
            (get("Host : a.example"), "header's name"),
            (get("Host: a.example\r\n X: b.example"), "header's name"),
            (get("Host: a.example\nHost: b.example"), "without CR"),
            (get("Host: a.example\r\nX: 1\rHost: b.example"), "control character"),
            (get("Host: a.example, b.example"), "is not a host name"),
            (get("Host: a.example@b.example"), "is not a host name"),
            (get("Host: [a.example].b.example"), "is not a host name"),
            (get("Host: a.example").replace("GET / ", "GET http://[a.example].b.example/ "), "names no host"),
            (get("Host: a.example\r\nContent-Length: 1\r\nContent-Length: 1"), "not one number"),
            (get("Host: a.example\r\nContent-Length: +1"), "not one number"),
            (get("Host: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked"), "together"),
            (get("Host: a.example\r\nTransfer-Encoding: xchunked"), "not chunked"),
            (get("Host: a.example\r\nTransfer-Encoding: identity, chunked"), "not chunked"),
            (get("Host: a.example").replace("GET / ", "GET http://b.example/ "), "differ"),
            (get("Host: a.example").replace("GET / ", "GET b.example "), "neither a path"),
            (get("Host: a.example").replace("GET / ", "GET  / "), "three words"),
            (get("Host: a.example").replace("HTTP/1.1", "HTTP/2.0"), "neither HTTP"),
            ("\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n".into(), "empty line"),
            (get("Host: a.example\r\nTransfer-Encoding: chunked") + "0x1\r\na\r\n", "is not a number"),
            (get("Host: a.example\r\nTransfer-Encoding: chunked") + "1\r\nab\r\n", "does not end"),
            (get("Host: a.example\r\nTransfer-Encoding: chunked") + "0\r\nHost: b.example\r\n\r\n", "trailer"),
        ] {
            let refused = pass(&text, 1000).unwrap_err();
            assert!(refused.contains(words), "{text:?}: {refused}");
        }
    }

    #[test]
    fn a_websocket_and_the_hosts_of_proxy_requests_are_seen() {
        let websocket = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
        assert!(pass(websocket, 1000).unwrap()[0].websocket);
        for other in ["Upgrade: h2c", "Upgrade: websocket", "HTTP2-Settings: AAMAAABk", "Content-Length: 1"] {
            let text = websocket.replace("Upgrade: WebSocket", &format!("Upgrade: websocket\r\n{other}"));
            let (head, _) = head(text.as_bytes()).unwrap().unwrap();
            assert!(!head.websocket, "{other}");
        }
        let connect = "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n";
        assert_eq!(pass(connect, 1000).unwrap()[0].host, Some(("a.example".into(), Some(443))));
    }

    #[test]
    fn a_host_is_a_name_or_an_address_with_a_port_and_nothing_else() {
        for (text, host, port) in [
            ("a.test", "a.test", None),
            ("A.Test.:8080", "a.test", Some(8080)),
            ("a.test:", "a.test", None),
            ("127.0.0.1:80", "127.0.0.1", Some(80)),
            ("[::1]", "::1", None),
            ("[0:0::1]:80", "::1", Some(80)),
            ("[::1]:", "::1", None),
        ] {
            assert_eq!(authority(text), Some((host.to_owned(), port)), "{text}");
        }
        for text in [
            "[a.test]",
            "[a.test].tenant.test",
            "[a.test]x",
            "[a.test]:80",
            "[127.0.0.1]",
            "[::1",
            "[::1]x",
            "[::1]80",
            "[::1]:80:80",
            "[::1] :80",
            "[fe80::1%eth0]",
            "[]",
            "::1",
            "a.test]",
            "a.test[",
            "a:b",
            "a.test:+80",
            "a.test:80x",
            "a.test:80:80",
            "a.test:99999",
            "a.test:000080",
            "user@a.test",
            "user:80@a.test",
            "a.test:80@b.test",
            "a.test b.test",
            " a.test",
            "a.test,b.test",
            "a.test/x",
            "a.test?",
            "a.test#",
            "",
            ":80",
            "a..test",
            "ä.test",
            "a%2etest",
            "a.test\\",
        ] {
            assert_eq!(authority(text), None, "{text}");
        }
    }
}
