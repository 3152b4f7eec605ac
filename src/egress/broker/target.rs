//! Targets and headers that a server could take for another path than the rules compare. Pure.

use crate::sys::weaken;

/// Escapes that decode to a separator, a dot, a percent sign or a NUL.
const ESCAPED: [&str; 5] = ["%2f", "%5c", "%2e", "%25", "%00"];
/// `%u002f` (IIS), and lead bytes of overlong UTF-8, which careless decoders turn into ASCII. Valid UTF-8 never
/// contains C0 or C1 (RFC 3629, 3).
const MISREAD: [&str; 3] = ["%u", "%c0", "%c1"];
/// Words in header names by which servers or frameworks take another path, source or destination.
const RENAMING: [&str; 24] = [
    "base",
    "basepath",
    "copy",
    "destination",
    "mount",
    "orig",
    "original",
    "override",
    "path",
    "pathinfo",
    "paths",
    "prefix",
    "replaced",
    "requesturi",
    "requesturl",
    "rewrite",
    "rewritten",
    "rewriteurl",
    "root",
    "route",
    "script",
    "scriptname",
    "uri",
    "url",
];
/// These name the client or the scheme; other `X-Forwarded-*` name a path or a host.
const FORWARDED: [&str; 3] = ["x-forwarded-for", "x-forwarded-port", "x-forwarded-proto"];

/// Returns why no brokered host gets a target.
pub(super) fn check_target(target: &str) -> Option<&'static str> {
    if weaken::is_off("broker-target") {
        return None;
    }
    if target.contains('#') {
        return Some("the broker passes no fragment on: some servers take what follows `#` for a part of the path");
    }
    if !target.is_ascii() {
        return Some("the broker passes no target on that has bytes above 0x7f: write them as %XX");
    }
    let lower = target.to_ascii_lowercase();
    let path = lower.split('?').next().unwrap_or_default();
    let is_control = |byte: u8| byte < b' ' || byte == 0x7f;
    if MISREAD.iter().any(|each| lower.contains(each))
        || decoded(path).is_some_and(|all| all.into_iter().any(is_control))
    {
        return Some("the broker passes no target on that has escapes which servers read in two ways");
    }
    None
}

/// Returns why a server could read a path differently.
pub(super) fn unclear(path: &str) -> Option<&'static str> {
    if weaken::is_off("broker-unclear") {
        return None;
    }
    let lower = path.to_ascii_lowercase();
    if ESCAPED.iter().any(|each| lower.contains(each)) || path.contains(['\\', ';', '#']) {
        return Some("has letters that servers read in two ways");
    }
    let text = decoded(path).and_then(|bytes| String::from_utf8(bytes).ok());
    if text.is_none_or(|text| text.chars().any(is_compatible)) {
        return Some("has escapes that servers read in two ways");
    }
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if segment == "." || segment == ".." || segment.is_empty() && segments.peek().is_some() {
            return Some("has empty or dotted parts");
        }
    }
    None
}

/// Whether servers that normalise text (NFKC, Windows' best fit) read a separator or a dot.
fn is_compatible(letter: char) -> bool {
    matches!(letter, '\u{2024}'..='\u{2026}' | '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{29f5}' | '\u{29f8}' | '\u{29f9}'
        | '\u{fe52}' | '\u{fe68}' | '\u{ff01}'..='\u{ff5e}')
}

/// `None` if an escape is incomplete.
fn decoded(path: &str) -> Option<Vec<u8>> {
    let mut bytes = path.bytes();
    let mut out = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit()? << 4 | digit()?
            }
            byte => byte,
        });
    }
    Some(out)
}

/// Whether a header could change the path. It is left out where a secret has rules about paths or methods. Servers that
/// hand headers to programs as variables may take `SCRIPT_NAME` for their own (RFC 3875, 4.1.13).
pub(super) fn could_rename(name: &str) -> bool {
    if weaken::is_off("broker-rename") {
        return false;
    }
    let lower = name.to_ascii_lowercase();
    let is_forwarded = lower == "forwarded" || lower.starts_with("x-forwarded") && !FORWARDED.contains(&&*lower);
    is_forwarded || lower.contains('_') || lower.split('-').any(|word| RENAMING.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_servers_read_in_two_ways_is_refused() {
        for target in [
            "/v1/messages#/../../admin",
            "/v1/messages?x#y",
            "/v1/ä",
            "/v1/x?q=ä",
            "/v1/%u002e%u002e/admin",
            "/v1/%U002f",
            "/v1/%c0%ae%c0%ae/admin",
            "/v1/%C1%9cadmin",
            "/v1/x%0d%0aHost:%20b",
            "/v1/%7f",
        ] {
            assert!(check_target(target).is_some(), "{target}");
        }
        for target in ["/", "*", "/v1/models?x=%2F&y=%0A", "/v1/%C3%A4", "/v1/a%20b", "/v1/100%"] {
            assert_eq!(check_target(target), None, "{target}");
        }
    }

    #[test]
    fn a_path_that_servers_read_in_two_ways_is_unclear() {
        for path in [
            "/v1/../x",
            "/v1//x",
            "/v1/%2e%2e/x",
            "/v1/%2Fx",
            "/v1;x",
            "/v1\\x",
            "/v1%",
            "/v1/%zz",
            "/v1/%+1",
            "/v1/%e0%80%af",
            "/v1/%f0%80%80%af",
            "/v1/%ff",
            "/v1/%ef%bc%8f..",
            "/v1/%e2%80%a4%e2%80%a4/x",
        ] {
            assert!(unclear(path).is_some(), "{path}");
        }
        for path in ["/v1/x", "/v1/", "/v1/%C3%A4", "/v1/a%20b", "/v1/a:b@c", "/v1/%E2%82%AC"] {
            assert_eq!(unclear(path), None, "{path}");
        }
    }

    #[test]
    fn headers_that_could_rename_a_path_are_known() {
        for name in [
            "SCRIPT_NAME",
            "script-name",
            "PATH_INFO",
            "X-Script-Name",
            "X-Forwarded-Prefix",
            "x-forwarded-path",
            "X-Forwarded-Uri",
            "X-Forwarded-Host",
            "X-Forwarded",
            "Forwarded",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-Envoy-Original-Path",
            "X-Replaced-Path-Regex",
            "Destination",
            "x-amz-copy-source",
            "any_thing",
        ] {
            assert!(could_rename(name), "{name}");
        }
        for name in [
            ":authority",
            "Host",
            "Content-Type",
            "Accept",
            "Authorization",
            "X-Api-Key",
            "anthropic-version",
            "OpenAI-Organization",
            "X-Stainless-Lang",
            "X-GitHub-Api-Version",
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "Referer",
            "Git-Protocol",
            "Prefer",
        ] {
            assert!(!could_rename(name), "{name}");
        }
    }
}
