//! A request with the secret instead of the sandbox's own header of that name. Pure.

use super::super::http::{Content, Head};
use super::target::{self, could_rename};
use crate::sys::weaken;

/// `http` has checked the syntax.
pub(in crate::egress) fn check_head(head: &Head) -> Option<&'static str> {
    if head.old {
        return Some("the broker takes HTTP/1.1 only");
    }
    if !head.target.starts_with('/') && head.target != "*" {
        return Some("the broker takes a path, not a URL");
    }
    if let Some(why) = target::check_target(&head.target) {
        return Some(why);
    }
    // A partial answer could begin within the secret, where the search cannot find it.
    let is_range = |(name, _): &(String, String)| RANGES.iter().any(|known| is_same(known, name));
    if head.fields.iter().any(is_range) && !weaken::is_off("broker-range") {
        return Some("the broker asks for whole answers only: leave `Range` out");
    }
    // A server that takes `head` for HEAD ends its answer at an unexpected place.
    if head.method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("the broker takes methods in capitals only");
    }
    let of_header = |name: &str| ANOTHER_METHOD.iter().any(|known| is_same(known, name));
    let others = head.fields.iter().filter(|(name, _)| of_header(name)).map(|(_, value)| value.trim());
    let is_other = |method: &&str| others.clone().any(|other| other.eq_ignore_ascii_case(method));
    // TRACE returns the request (RFC 9110, 9.3.8).
    let is_bad = ["TRACE", "TRACK", "CONNECT"].iter().any(|method| head.method == *method || is_other(method));
    (is_bad || is_other(&"HEAD")).then_some("the broker passes no such method on")
}

/// Headers that ask for a part of the answer; some servers still accept the second.
const RANGES: [&str; 2] = ["range", "request-range"];
/// Headers by which some servers take another method.
const ANOTHER_METHOD: [&str; 3] = ["x-http-method", "x-http-method-override", "x-method-override"];

/// The header by which a request may have another method than its line. Removing it would change what the client asked
/// for, so the request is refused.
pub(super) fn another_request(head: &Head) -> Option<&'static str> {
    if weaken::is_off("broker-override") {
        return None;
    }
    ANOTHER_METHOD.into_iter().find(|known| head.fields.iter().any(|(name, _)| is_same(known, name)))
}

/// Whether two names are one for a server that hands headers to programs as variables (RFC 3875, 4.1.18).
fn is_same(one: &str, other: &str) -> bool {
    let letter = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(|(one, other)| letter(one) == letter(other))
}

pub(in crate::egress) fn written(head: &Head, fields: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = format!("{} {} HTTP/1.1\r\n", head.method, head.target).into_bytes();
    for (name, value) in fields {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Puts `added` in place of the sandbox's own headers. `is_limited` leaves out headers that could change the path.
pub(super) fn replaced(head: &Head, added: &[(&str, Vec<u8>)], is_limited: bool) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::with_capacity(head.fields.len() + added.len() + 1);
    let mut put = |name: &str, value: &[u8]| out.push((name.to_owned(), value.to_vec()));
    for (name, value) in &head.fields {
        let is_ours = added.iter().any(|(ours, _)| is_same(ours, name))
            || is_limited && could_rename(name)
            // Compressed text cannot be searched for the secret.
            || is_same(name, "accept-encoding")
            || is_same(name, "te")
            || is_same(name, "sec-websocket-extensions")
            // The gateway answers it. A proxy that refuses would take the content for the next request.
            || is_same(name, "expect")
            // Another protocol on the same connection escapes these rules.
            || !head.websocket && (is_same(name, "upgrade") || is_same(name, "http2-settings"));
        if is_same(name, "connection") {
            let kept = options(value, head.websocket);
            if !kept.is_empty() {
                put(name, kept.join(", ").as_bytes());
            }
        } else if !is_ours {
            put(name, value.as_bytes());
        }
    }
    put("Accept-Encoding", b"identity");
    for (name, value) in added {
        put(name, value);
    }
    out
}

/// A proxy removes each header that `Connection` names, also one that ends the request or contains the secret.
fn options(connection: &str, is_websocket: bool) -> Vec<&str> {
    let is_kept = |option: &&str| {
        let is = |known| option.eq_ignore_ascii_case(known);
        is("close") || is("keep-alive") || is_websocket && is("upgrade")
    };
    connection.split(',').map(str::trim).filter(is_kept).collect()
}

/// Whether the client waits for `100 Continue` before it sends content (RFC 9110, 10.1.1).
pub(in crate::egress) fn expects_continue(head: &Head) -> bool {
    let mut expected = head.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("expect"));
    head.content != Content::Length(0) && expected.any(|(_, value)| value.eq_ignore_ascii_case("100-continue"))
}

pub(in crate::egress) fn asks_to_change(head: &Head) -> bool {
    head.websocket && head.content == Content::Length(0)
}

#[cfg(test)]
mod tests {
    use super::super::super::http::{Requests, Step};
    use super::*;

    fn head(text: &str) -> Head {
        match Requests::new().step(text.as_bytes()) {
            Step::Head(head, _) => *head,
            other => panic!("{other:?}"),
        }
    }

    fn rewritten(text: &str) -> String {
        rewritten_with(text, ("Authorization", b"Bearer v"))
    }

    fn rewritten_with(text: &str, (name, value): (&str, &[u8])) -> String {
        let head = head(text);
        String::from_utf8(written(&head, &replaced(&head, &[(name, value.to_vec())], false))).unwrap()
    }

    #[test]
    fn what_the_sandbox_says_in_the_secrets_place_is_left_out() {
        assert_eq!(
            rewritten(
                "POST /x?y HTTP/1.1\r\nhost: a.test\r\nauthorization: Basic x\r\nAUTHORIZATION: y\r\nX-Other: 1\r\n\
                 Accept-Encoding: br\r\nConnection: close, Authorization\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
            ),
            "POST /x?y HTTP/1.1\r\nhost: a.test\r\nX-Other: 1\r\nConnection: close\r\nContent-Length: 3\r\nAccept-Encoding: identity\r\nAuthorization: Bearer v\r\n\r\n"
        );
        let key = "GET / HTTP/1.1\r\nHost: a\r\nx_api_key: mine\r\n\r\n";
        assert!(!rewritten_with(key, ("X-Api-Key", b"v")).contains("mine"));
    }

    #[test]
    fn no_header_lets_a_proxy_read_another_end_of_the_request() {
        let post = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 3\r\n\r\n");
        let plain = rewritten(&post(""));
        for fields in [
            "Connection: Content-Length\r\n",
            "Connection: Transfer-Encoding , content-length\r\n",
            "connection: Upgrade, HTTP2-Settings\r\n",
            "Expect: 100-continue\r\n",
            "EXPECT: something\r\n",
        ] {
            assert_eq!(rewritten(&post(fields)), plain, "{fields}");
        }
        let kept = rewritten(&post("Connection: Content-Length, keep-alive,Close\r\n"));
        assert!(kept.contains("\r\nConnection: keep-alive, Close\r\n"), "{kept}");
    }

    #[test]
    fn a_client_that_waits_before_its_content_is_recognised() {
        let head = |fields: &str| head(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert!(expects_continue(&head("expect: 100-Continue\r\nContent-Length: 3\r\n")));
        assert!(!expects_continue(&head("Expect: 100-continue\r\n")));
        assert!(!expects_continue(&head("Content-Length: 3\r\n")));
    }

    #[test]
    fn headers_that_could_rename_the_path_are_left_out_where_paths_count() {
        let head = head(
            "GET /v1/x HTTP/1.1\r\nHost: a\r\nSCRIPT_NAME: /v1/x\r\nX-Forwarded-Prefix: /y\r\nX-Original-URL: /admin\r\n\
                  X-ORIGINAL-URI: /admin\r\nX-Rewrite_Url: /admin\r\nX-Plain: 1\r\n\r\n",
        );
        let names = |is_limited| -> Vec<String> {
            replaced(&head, &[], is_limited).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(true), ["Host", "X-Plain", "Accept-Encoding"]);
        assert_eq!(names(false).len(), 8);
    }

    #[test]
    fn a_websocket_stays_one() {
        let text = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert!(asks_to_change(&head(text)));
        assert!(rewritten(text).contains("Connection: Upgrade\r\nUpgrade: websocket\r\n"));
        let packed = text.replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n");
        assert_eq!(rewritten(&packed), rewritten(text));
        let two = text.replace("Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk");
        assert!(!asks_to_change(&head(&two)));
        let rewritten = rewritten(&two);
        assert!(!["Upgrade: ", "HTTP2"].iter().any(|word| rewritten.contains(word)), "{rewritten}");
    }

    #[test]
    fn a_header_that_makes_another_request_is_seen_however_it_is_written() {
        for (field, found) in [
            ("X-HTTP-Method: DELETE", Some("x-http-method")),
            ("x_http_method_override: DELETE", Some("x-http-method-override")),
            ("X-Method-Override: DELETE", Some("x-method-override")),
            ("X-Original-URL: /admin", None),
            ("X-Method: DELETE", None),
        ] {
            let text = format!("GET /v1/x HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            assert_eq!(another_request(&head(&text)), found, "{field}");
        }
    }

    #[test]
    fn requests_that_could_give_the_secret_back_are_refused() {
        for (text, refused) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", true),
            ("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("trace / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("head / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: head\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method: TRACE\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: PATCH\r\n\r\n", false),
            ("GET /x#/../y HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\nRANGE: bytes=3-\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\nRequest_Range: bytes=3-\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\nAccept-Ranges: bytes\r\n\r\n", false),
        ] {
            assert_eq!(check_head(&head(text)).is_some(), refused, "{text}");
        }
    }
}
