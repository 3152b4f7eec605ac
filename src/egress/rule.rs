//! The rules of an allow-list: syntax, coverage, and checks of a list. Pure.

use crate::error::{Error, Kind, Result};
use crate::spec::network::{NAMES_V4, NAMES_V6, Prefix};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// HTTP and HTTPS.
const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// Each port of all rules is a listening socket inside the sandbox.
const MOST_PORTS: usize = 256;
/// RFC 1035, 2.3.4.
const LONGEST_NAME: usize = 253;

pub(super) const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    /// Lower case, without a final dot.
    Name(String),
    Address(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => out.write_str(name),
            Host::Address(address) => write!(out, "{address}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Name(String),
    /// Every name below this one, without the name itself.
    Below(String),
    Range(Prefix),
    /// The host's loopback, of either family.
    Loopback,
}

/// A rule: `host`, `*.suffix` or a range of addresses, with `:ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pattern: Pattern,
    ports: Vec<u16>,
    has_ports: bool,
    text: String,
}

impl Rule {
    /// Reads a rule such as `api.example.com:443`, `github.com:22,443`, `*.debian.org`, `10.0.0.0/8:5432`, `[fd00::/8]:8000-8003`.
    pub fn parse(text: &str) -> Result<Rule> {
        parse(text).map_err(|cause| {
            Error::new(Kind::Egress, cause)
                .doing(format!("read the rule `{}`", text.escape_debug()))
                .hint("write it like `api.example.com:443`, `*.debian.org:80,443` or `10.0.0.0/8:5432`")
        })
    }

    /// Ignores the port.
    pub(crate) fn names(&self, host: &Host) -> bool {
        match (&self.pattern, host) {
            (Pattern::Name(name), Host::Name(asked)) => name == asked,
            (Pattern::Below(suffix), Host::Name(asked)) => is_below(asked, suffix),
            (Pattern::Range(range), Host::Address(address)) => range.contains(*address),
            (Pattern::Loopback, Host::Address(address)) => LOOPBACK.contains(address),
            _ => false,
        }
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.pattern == Pattern::Loopback
    }

    pub(crate) fn covers(&self, host: &Host, port: u16) -> bool {
        self.ports.contains(&port) && self.names(host)
    }

    /// A denial without ports covers each port.
    pub(crate) fn denies(&self, host: &Host, port: u16) -> bool {
        (!self.has_ports || self.ports.contains(&port)) && self.names(host)
    }

    /// Empty for each port.
    pub(crate) fn denied_ports(&self) -> &[u16] {
        if self.has_ports { &self.ports } else { &[] }
    }

    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// `None` if it covers several names.
    pub(crate) fn exact(&self) -> Option<Host> {
        match &self.pattern {
            Pattern::Name(name) => Some(Host::Name(name.clone())),
            _ => None,
        }
    }

    pub(crate) fn range(&self) -> Option<Prefix> {
        match self.pattern {
            Pattern::Range(range) => Some(range),
            Pattern::Loopback => Some(Prefix::of_one(LOOPBACK[0])), // `::1` needs no route
            _ => None,
        }
    }

    pub(crate) fn is_wild(&self) -> bool {
        matches!(self.pattern, Pattern::Below(_))
    }

    pub(crate) fn shadows(&self, other: &Rule) -> bool {
        let hosts = match (&self.pattern, &other.pattern) {
            (Pattern::Name(one), Pattern::Name(two)) => one == two,
            (Pattern::Below(suffix), Pattern::Name(name)) => is_below(name, suffix),
            (Pattern::Below(one), Pattern::Below(two)) => one == two || is_below(two, one),
            (Pattern::Range(one), Pattern::Range(two)) => one.covers(two),
            (Pattern::Loopback, Pattern::Loopback) => true,
            (Pattern::Loopback, Pattern::Range(range)) => LOOPBACK.map(Prefix::of_one).contains(range),
            _ => false,
        };
        hosts && (other.has_ports || !self.has_ports) && other.ports.iter().all(|port| self.ports.contains(port))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Rejects a rule that another rule makes redundant, and more ports than sockets.
pub fn check_rules(rules: &[Rule]) -> Result<()> {
    for (index, rule) in rules.iter().enumerate() {
        let other = rules.iter().enumerate().find(|(other, each)| *other != index && each.shadows(rule));
        if let Some((_, other)) = other {
            return Err(Error::new(Kind::Egress, format!("the rule `{rule}` is redundant: `{other}` covers it"))
                .hint("leave one of the two out"));
        }
    }
    match ports(rules).len() {
        count if count > MOST_PORTS => {
            Err(Error::new(Kind::Egress, format!("the rules have {count} ports, and {MOST_PORTS} can be served"))
                .hint("name fewer ports"))
        }
        _ => Ok(()),
    }
}

/// Each once.
pub(crate) fn ports(rules: &[Rule]) -> Vec<u16> {
    let mut all: Vec<u16> = rules.iter().flat_map(|rule| rule.ports.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn parse(text: &str) -> Result<Rule, String> {
    let (host, ports) = split(text)?;
    let (ports, has_ports) = match ports {
        Some(list) => (port_list(list)?, true),
        None => (DEFAULT_PORTS.to_vec(), false),
    };
    Ok(Rule { pattern: pattern(host)?, ports, has_ports, text: text.to_owned() })
}

fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    if text.contains("://") {
        return Err("a rule is a host with ports, not a URL".into());
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("`]` is missing")?;
        return match rest.strip_prefix(':') {
            Some(ports) => Ok((host, Some(ports))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(format!("`{}` after `]`", rest.escape_debug())),
        };
    }
    match text.matches(':').count() {
        0 => Ok((text, None)),
        1 => Ok(text.split_once(':').map_or((text, None), |(host, ports)| (host, Some(ports)))),
        _ => Ok((text, None)), // an IPv6 range without ports
    }
}

fn port_list(list: &str) -> Result<Vec<u16>, String> {
    let number = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{}` is not a port from 1 to 65535", text.escape_debug())),
    };
    let mut ports = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || usize::from(last - first) >= MOST_PORTS {
                    return Err(format!("`{part}` is not a range of at most {MOST_PORTS} ports"));
                }
                ports.extend(first..=last);
            }
            None => ports.push(number(part)?),
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

fn pattern(host: &str) -> Result<Pattern, String> {
    if let Some(range) = range(host)? {
        if range.covers(&NAMES_V4) || NAMES_V4.covers(&range) || range.covers(&NAMES_V6) || NAMES_V6.covers(&range) {
            let whole = range.length == 0;
            return Err(match whole {
                true => "a rule for every address is not an allow-list".into(),
                false => format!("{NAMES_V4} and {NAMES_V6} stand for names inside the sandbox"),
            });
        }
        return Ok(Pattern::Range(range));
    }
    if host == "*" {
        return Err("a rule for every host is not an allow-list".into());
    }
    let found = name(host.strip_prefix("*.").unwrap_or(host))?;
    match (host.starts_with("*."), found.as_str()) {
        (false, "localhost") => Ok(Pattern::Loopback),
        // RFC 6761, 6.3: these names never leave a machine, and programs inside resolve them to the sandbox itself.
        (_, name) if name == "localhost" || is_below(name, "localhost") => {
            Err(format!("`{host}` is the sandbox itself: write `localhost` for the host's loopback"))
        }
        (true, _) => Ok(Pattern::Below(found)),
        (false, _) => Ok(Pattern::Name(found)),
    }
}

fn range(host: &str) -> Result<Option<Prefix>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(Some(Prefix::of_one(address.to_canonical())));
    }
    let Some((address, length)) = host.split_once('/') else { return Ok(None) };
    let wrong = || format!("`{}` is not a range of addresses", host.escape_debug());
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let length: u8 = length.parse().map_err(|_| wrong())?;
    // Addresses are compared as IPv4 if they are that.
    let (address, length) = match (address, address.to_canonical()) {
        (IpAddr::V6(_), mapped @ IpAddr::V4(_)) => (mapped, length.checked_sub(96).ok_or_else(wrong)?),
        _ => (address, length),
    };
    let range = Prefix::new(address, length).ok_or_else(wrong)?;
    match range.address == address {
        true => Ok(Some(range)),
        false => Err(format!("`{host}` has bits below its length: {range} is the range")),
    }
}

/// In the form for comparisons; `None` if it is invalid.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    (text.len() <= LONGEST_NAME && text.split('.').all(label)).then(|| text.to_ascii_lowercase())
}

fn name(text: &str) -> Result<String, String> {
    if !text.is_ascii() {
        return Err(format!("`{text}` is not ASCII: write it in its `xn--` form"));
    }
    if text.contains('*') {
        return Err("`*` may only stand for the whole beginning of a name, as in `*.example.com`".into());
    }
    let name = canonical(text).ok_or_else(|| format!("`{}` is not a host name", text.escape_debug()))?;
    // Some programs take `127.1` and `0x7f.1` for addresses.
    match name.rsplit('.').next() {
        Some(last) if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") => {
            Err(format!("`{name}` is neither a name nor an address"))
        }
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        text.parse().map_or_else(|_| Host::Name(text.into()), Host::Address)
    }

    #[test]
    fn a_rule_covers_what_it_says() {
        let check = |rule: &str, asked: &str, port, expected| {
            assert_eq!(Rule::parse(rule).unwrap().covers(&host(asked), port), expected, "{rule} {asked}:{port}");
        };
        check("api.example.com:443", "api.example.com", 443, true);
        check("api.example.com:443", "api.example.com", 80, false);
        check("api.example.com:443", "x.api.example.com", 443, false);
        check("API.Example.com", "api.example.com", 80, true);
        check("github.com:22,443", "github.com", 22, true);
        check("*.debian.org", "deb.debian.org", 443, true);
        check("*.debian.org", "a.b.debian.org", 80, true);
        check("*.debian.org", "debian.org", 80, false);
        check("*.debian.org", "evildebian.org", 80, false);
        check("10.0.0.0/8:5432", "10.9.8.7", 5432, true);
        check("10.0.0.0/8:5432", "11.0.0.1", 5432, false);
        check("127.0.0.1:8000-8002", "127.0.0.1", 8001, true);
        check("[2001:db8::/32]:443", "2001:db8::7", 443, true);
        check("2001:db8::/32", "2001:db8::7", 443, true);
        check("10.0.0.0/8:5432", "10.0.0.1.nip.io", 5432, false);
        check("[::ffff:10.9.8.7]:5432", "10.9.8.7", 5432, true);
        check("[::ffff:10.0.0.0/104]:5432", "10.9.8.7", 5432, true);
        check("localhost:3000", "127.0.0.1", 3000, true);
        check("LocalHost.:3000", "::1", 3000, true);
        check("localhost:3000", "127.0.0.1", 80, false);
        check("localhost:3000", "127.0.0.2", 3000, false);
        check("localhost:3000", "localhost", 3000, false);
    }

    #[test]
    fn what_is_no_rule_says_why() {
        let check = |rule: &str, words: &str| {
            let error = Rule::parse(rule).unwrap_err().to_string();
            assert!(error.contains(words), "{rule}: {error}");
        };
        check("https://example.com", "not a URL");
        check("example.com:0", "is not a port");
        check("example.com:70000", "is not a port");
        check("example.com:", "is not a port");
        check("example.com:9-1", "is not a range of at most");
        check("*", "is not an allow-list");
        check("0.0.0.0/0:443", "is not an allow-list");
        check("[::ffff:0.0.0.0/96]:443", "is not an allow-list");
        check("[::ffff:0.0.0.0/95]:443", "is not a range");
        check("::/0", "is not an allow-list");
        check("198.18.4.0/24:443", "stand for names");
        check("198.0.0.0/8:443", "stand for names");
        check("10.0.0.1/8:1", "bits below its length");
        check("10.0.0.0/33:1", "is not a range of addresses");
        check("a.*.com", "whole beginning");
        check("bücher.example", "xn--");
        check("127.1:80", "neither a name nor an address");
        check("a..b:80", "is not a host name");
        check("*.localhost:80", "the sandbox itself");
        check("app.localhost:80", "the sandbox itself");
        check("", "is not a host name");
        check("[::1", "`]` is missing");
    }

    #[test]
    fn a_rule_that_another_makes_pointless_is_named() {
        let check = |list: &[&str], expected: bool| {
            let rules: Vec<_> = list.iter().map(|each| Rule::parse(each).unwrap()).collect();
            assert_eq!(check_rules(&rules).is_ok(), expected, "{list:?}");
        };
        check(&["a.debian.org:443", "*.debian.org:80,443"], false);
        check(&["a.debian.org:443", "*.debian.org:80"], true);
        check(&["10.0.0.0/8:1", "10.1.0.0/16:1"], false);
        check(&["x.org", "x.org"], false);
        check(&["x.org", "x.org:80,443"], false);
        check(&["10.0.0.0/8:80,443", "10.0.0.1"], true); // as denials, the second covers more ports
        check(&["localhost:80", "127.0.0.1:80"], false);
        check(&["localhost:80", "127.0.0.0/8:80"], true);
        check(&["x.org", "y.org"], true);
        check(&["x.org:1-200", "y.org:201-400"], false);
    }
}
