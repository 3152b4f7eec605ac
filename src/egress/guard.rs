//! Addresses that an allowed name must not resolve to. Pure.
//!
//! The owner of a name may change its address at any time (DNS rebinding). So the address must be public and not this
//! host's, unless an address rule names that very range.

use super::rule::Rule;
use crate::spec::network::Prefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Prefix {
    Prefix { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
}

const fn v6(first: u16, second: u16, third: u16, length: u8) -> Prefix {
    Prefix { address: IpAddr::V6(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0)), length }
}

/// Outside the public internet (IANA special-purpose registries).
const SPECIAL: [(Prefix, &str); 26] = [
    (v4(0, 0, 0, 0, 8), "this host"),
    (v4(10, 0, 0, 0, 8), "a private network"),
    (v4(100, 64, 0, 0, 10), "a carrier's private network, with metadata of some clouds"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(169, 254, 0, 0, 16), "link-local, with the metadata of clouds"),
    (v4(172, 16, 0, 0, 12), "a private network"),
    (v4(192, 0, 0, 0, 24), "protocol assignments"),
    (v4(192, 0, 2, 0, 24), "documentation"),
    (v4(192, 88, 99, 0, 24), "6to4 relays"),
    (v4(192, 168, 0, 0, 16), "a private network"),
    (v4(198, 18, 0, 0, 15), "benchmarks"),
    (v4(198, 51, 100, 0, 24), "documentation"),
    (v4(203, 0, 113, 0, 24), "documentation"),
    (v4(168, 63, 129, 16, 32), "the metadata of a cloud"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(240, 0, 0, 0, 4), "reserved"),
    (v6(0, 0, 0, 8), "loopback and reserved"),
    (v6(0x64, 0xff9b, 0, 32), "translated IPv4"),
    (v6(0x100, 0, 0, 8), "discard"),
    (v6(0x2001, 0, 0, 23), "protocol assignments and tunnels"),
    (v6(0x2001, 0xdb8, 0, 32), "documentation"),
    (v6(0x2002, 0, 0, 16), "tunnelled IPv4"),
    (v6(0x3fff, 0, 0, 20), "documentation"),
    (v6(0xfc00, 0, 0, 7), "a private network"),
    (v6(0xfe80, 0, 0, 9), "link-local and site-local"),
    (v6(0xff00, 0, 0, 8), "multicast"),
];

pub(crate) fn special() -> impl Iterator<Item = Prefix> {
    SPECIAL.iter().map(|(range, _)| *range)
}

/// Only an address rule within the same special range opens an address. `is_own`: the address belongs to this host, so
/// a rule must name it.
pub(crate) fn check_address(
    address: IpAddr,
    port: u16,
    rules: &[Rule],
    is_own: impl FnOnce(IpAddr) -> bool,
) -> Option<&'static str> {
    let address = address.to_canonical();
    let opens = |within: Option<&Prefix>| {
        rules
            .iter()
            .filter(|rule| rule.ports().contains(&port))
            .filter_map(Rule::range)
            .any(|range| range.contains(address) && within.is_none_or(|special| special.covers(&range)))
    };
    match SPECIAL.iter().find(|(range, _)| range.contains(address)) {
        Some((special, what)) => (!opens(Some(special))).then_some(what),
        None => (!opens(None) && is_own(address)).then_some("an address of this host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, rules: &[&str], allowed: bool) {
        let rules: Vec<_> = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        assert_eq!(check_address(address.parse().unwrap(), 443, &rules, |_| false).is_none(), allowed, "{address}");
    }

    #[test]
    fn only_the_public_internet_is_reached_by_name() {
        for address in ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00:1450::1", "100.128.0.1", "172.32.0.1"] {
            check(address, &[], true);
        }
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
        ] {
            check(address, &[], false);
        }
    }

    #[test]
    fn a_rule_about_addresses_opens_its_own_range_and_port() {
        check("127.0.0.1", &["127.0.0.0/8:443"], true);
        check("127.0.0.1", &["127.0.0.1:443"], true);
        check("127.0.0.1", &["127.0.0.1:80"], false);
        check("127.0.0.1", &["127.0.0.2:443"], false);
        check("169.254.169.254", &["128.0.0.0/2:443"], false); // a range that includes it does not open it
        check("10.1.2.3", &["api.example.com:443"], false);
    }

    #[test]
    fn an_address_of_the_host_needs_a_rule_that_names_it() {
        for (rules, allowed) in [
            (&["api.example.com:443"][..], false),
            (&["8.8.8.123:443"], true),
            (&["8.8.8.0/24:443"], true),
            (&["8.8.8.123:80"], false),
            (&["8.8.4.0/24:443"], false),
        ] {
            let rules: Vec<_> = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
            for address in ["8.8.8.123", "::ffff:8.8.8.123"] {
                let is_own = |asked: IpAddr| asked == IpAddr::from([8, 8, 8, 123]);
                let found = check_address(address.parse().unwrap(), 443, &rules, is_own);
                assert_eq!(found, (!allowed).then_some("an address of this host"), "{rules:?}");
            }
        }
    }
}
