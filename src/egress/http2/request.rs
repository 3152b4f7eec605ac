//! The headers of a request, between HTTP/2 and the form in which rules look at them. Pure.
//!
//! A server may hand a request on as HTTP/1.1, so what would be two requests there, or another one, is refused (RFC 9113, 8.2 and 8.3).

use super::hpack::Field;
use crate::egress::http::{Content, Head, authority};
use crate::sys::weaken;

/// The request, and how long its content must be, where it says so.
pub(super) fn read(fields: Vec<Field>, ends: bool) -> Result<(Head, Option<u64>), &'static str> {
    let (mut method, mut scheme, mut path, mut host) = (None, None, None, None);
    let mut plain: Vec<(String, String)> = Vec::new();
    for (name, value) in fields {
        let name = String::from_utf8(name).map_err(|_| "a header's name is not as it must be")?;
        let value = String::from_utf8(value).map_err(|_| "a header is not UTF-8")?;
        let is_odd =
            value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) || value.trim_matches([' ', '\t']) != value;
        if is_odd && !weaken::is_off("http2-values") {
            return Err("a header has a control character, or blanks around it");
        }
        let place = match name.as_str() {
            ":method" => &mut method,
            ":scheme" => &mut scheme,
            ":path" => &mut path,
            ":authority" => &mut host,
            _ => {
                plain.push(check(name, value)?);
                continue;
            }
        };
        if !plain.is_empty() || place.replace(value).is_some() {
            return Err("the request's own headers are not first, or not once each");
        }
    }
    let missing = "the request's own headers are not all there";
    let (method, scheme, path) = (method.ok_or(missing)?, scheme.ok_or(missing)?, path.ok_or(missing)?);
    let named = host.ok_or(missing)?;
    if scheme != "https" {
        return Err("the request is not for https");
    }
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err("the method is not as it must be");
    }
    let is_path = path.starts_with('/') || path == "*" && method == "OPTIONS";
    if !is_path || path.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err("the path is not as it must be");
    }
    let host = authority(&named).ok_or("the authority is no host")?;
    if !weaken::is_off("http2-host") {
        if plain.iter().any(|(name, value)| name == "host" && authority(value).as_ref() != Some(&host)) {
            return Err("the authority and Host differ");
        }
        plain.retain(|(name, _)| name != "host");
    }
    let mut lengths = plain.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(digits), None)
            if !digits.is_empty() && digits.len() <= 18 && digits.bytes().all(|each| each.is_ascii_digit()) =>
        {
            digits.parse().ok()
        }
        _ => return Err("Content-Length is not one number"),
    };
    if ends && length.is_some_and(|length: u64| length > 0) {
        return Err("the request's content is not as long as was said");
    }
    plain.insert(0, (":authority".into(), named));
    let content = Content::Length(length.unwrap_or(0));
    Ok((Head { method, target: path, host: Some(host), content, websocket: false, old: false, fields: plain }, length))
}

/// A header that is none of the request's own.
fn check(name: String, value: String) -> Result<(String, String), &'static str> {
    const OF_CONNECTIONS: [&str; 6] =
        ["connection", "proxy-connection", "keep-alive", "upgrade", "transfer-encoding", "http2-settings"];
    let is_token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err("a header's name is not as it must be"); // unknown ones of the request's own among them
    }
    let is_of_one = OF_CONNECTIONS.contains(&name.as_str()) || name == "te" && value != "trailers";
    if is_of_one && !weaken::is_off("http2-connections") {
        return Err("a header of HTTP/1.1's connections");
    }
    Ok((name, value))
}

/// The headers of the request as the server gets them, its own first.
pub(super) fn write(fields: Vec<(String, Vec<u8>)>, head: &Head) -> Vec<(String, Vec<u8>)> {
    let own = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    let named = head.fields.first().map_or("", |(_, value)| value.as_str());
    let mut all = vec![
        own(":method", &head.method),
        own(":scheme", "https"),
        own(":authority", named),
        own(":path", &head.target),
    ];
    // What is packed cannot be looked through for the secret.
    let is_plain = |name: &str| !name.starts_with(':') && name != "grpc-accept-encoding";
    all.extend(
        fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).filter(|(name, _)| is_plain(name)),
    );
    if head.fields.iter().any(|(name, _)| name == "te") {
        all.push(own("te", "trailers")); // gRPC needs it
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(extra: &[(&str, &str)]) -> Vec<Field> {
        let own = [(":method", "GET"), (":scheme", "https"), (":path", "/x"), (":authority", "a.test:8443")];
        own.iter().chain(extra).map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn what_would_be_another_request_as_http_1_is_refused() {
        for (extra, why) in [
            (("transfer-encoding", "chunked"), "connections"),
            (("connection", "x"), "connections"),
            (("te", "gzip"), "connections"),
            (("X-Upper", "1"), "name"),
            (("a:b", "1"), "name"),
            (("a b", "1"), "name"),
            (("", "1"), "name"),
            ((":unknown", "1"), "name"),
            ((":path", "/y"), "once each"),
            (("x", "1\r\nhost: b"), "control"),
            (("x", "1\nhost: b"), "control"),
            (("x", " 1"), "blanks"),
            (("host", "b.test"), "differ"),
            (("content-length", "+1"), "not one number"),
        ] {
            let refused = read(fields(&[extra]), false).unwrap_err();
            assert!(refused.contains(why), "{extra:?}: {refused}");
        }
        assert!(read(fields(&[("x", "1"), (":method", "GET")]), false).is_err());
        assert!(read(fields(&[("content-length", "1"), ("content-length", "1")]), false).is_err());
        assert!(read(fields(&[("content-length", "5")]), true).is_err());
        for (place, value) in [
            (0, "GET /y HTTP/1.1\r\nx"),
            (1, "http"),
            (2, "x"),
            (2, "/ x"),
            (2, "/x\r\n"),
            (3, "a b"),
            (3, "user@a.test"),
            (3, "[a.test].tenant.test"),
        ] {
            let mut all = fields(&[]);
            all[place].1 = value.as_bytes().to_vec();
            assert!(read(all, false).is_err(), "{value}");
        }
        for missing in 0..4 {
            let mut all = fields(&[]);
            all.remove(missing);
            assert!(read(all, false).is_err(), "{missing}");
        }
    }

    #[test]
    fn a_request_is_what_it_was() {
        let (head, left) =
            read(fields(&[("te", "trailers"), ("content-length", "3"), ("host", "a.test:8443")]), false).unwrap();
        assert_eq!((head.method.as_str(), head.target.as_str(), left), ("GET", "/x", Some(3)));
        assert_eq!(head.host, Some(("a.test".into(), Some(8443))));
        let written = write(vec![("Content-Length".into(), b"3".to_vec())], &head);
        let names: Vec<_> = written.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [":method", ":scheme", ":authority", ":path", "content-length", "te"]);
    }
}
