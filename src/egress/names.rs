//! Addresses that stand for names inside a sandbox. Pure.

use crate::spec::network::{NAMES_V4, NAMES_V6};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first addresses of the range belong to the gateway.
const FIRST: u32 = 256;
/// At once; a new name replaces the oldest.
const MOST: u32 = 4096;

/// A name has one IPv4 and one IPv6 address.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<String, u32>,
    by_number: Vec<String>,
    next: u32,
}

impl Names {
    /// An unknown name gets a new number.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let number = self.next % MOST;
        self.next = number + 1;
        match self.by_number.get_mut(number as usize) {
            Some(old) => {
                self.by_name.remove(old.as_str());
                name.clone_into(old);
            }
            None => self.by_number.push(name.to_owned()),
        }
        self.by_name.insert(name.to_owned(), number);
        number
    }

    pub(super) fn name(&self, address: IpAddr) -> Option<&str> {
        let address = address.to_canonical();
        let offset = match address {
            IpAddr::V4(v4) if NAMES_V4.contains(address) => v4.to_bits() & 0x1_ffff,
            IpAddr::V6(v6) if NAMES_V6.contains(address) => u32::try_from(v6.to_bits() & u128::from(u64::MAX)).ok()?,
            _ => return None,
        };
        self.by_number.get(offset.checked_sub(FIRST)? as usize).map(String::as_str)
    }
}

pub(super) fn address_v4(number: u32) -> Ipv4Addr {
    match NAMES_V4.address {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() + FIRST + number),
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

pub(super) fn address_v6(number: u32) -> Ipv6Addr {
    match NAMES_V6.address {
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() + u128::from(FIRST + number)),
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_address_of_each_family_and_back() {
        let mut names = Names::default();
        let one = names.number("a.example");
        assert_eq!(names.number("a.example"), one);
        let two = names.number("b.example");
        assert_ne!(one, two);
        assert_eq!(names.name(address_v4(one).into()), Some("a.example"));
        assert_eq!(names.name(address_v6(two).into()), Some("b.example"));
        assert_eq!(names.name(IpAddr::V6(address_v4(two).to_ipv6_mapped())), Some("b.example"));
        for address in
            ["198.18.0.1", "198.18.9.9", "198.20.1.0", "1.2.3.4", "fd62:7269:6700::1", "fd62:7269:6700:0:1::100"]
        {
            assert_eq!(names.name(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_oldest_name_makes_room() {
        let mut names = Names::default();
        let first = names.number("first");
        for number in 1..MOST {
            names.number(&number.to_string());
        }
        assert_eq!(names.number("one-more"), first);
        assert_eq!(names.name(address_v4(first).into()), Some("one-more"));
        assert_ne!(names.number("first"), first);
        assert_eq!(names.by_name.len(), MOST as usize);
    }
}
