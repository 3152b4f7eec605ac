//! Moves network devices of the host into a container (runtime-spec, `linux.netDevices`).
//!
//! A moved device loses its addresses, so its permanent global ones are added again.

use super::netlink::{
    ADDRESS, ADDRESS_BYTES, LINK, LINK_BYTES, LINK_INFO, LINK_KIND, LINK_NAME, LINK_NAMESPACE, Request, Route, UP,
    attributes,
};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::config::linux::NetDevice;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

const ADDRESS_FLAGS: u16 = 8;
const PERMANENT: u32 = 0x80;
/// `IFA_LOCAL`, `IFA_ADDRESS`, `IFA_BROADCAST`.
const KEPT: [u16; 3] = [1, 2, 4];
/// `IFNAMSIZ`, with the NUL.
const NAME_BYTES: usize = 16;

/// `host` and `inside` are netlink connections in each namespace.
pub(crate) fn move_devices(
    wish: &BTreeMap<String, NetDevice>,
    host: &Route,
    inside: &Route,
    target: BorrowedFd<'_>,
) -> Result<()> {
    for (name, device) in wish {
        let new = if device.name.is_empty() { name } else { &device.name };
        move_one(name, new, host, inside, target)
            .map_err(|error| error.doing(format!("move the network device `{name}` into the container")))?;
    }
    Ok(())
}

fn move_one(name: &str, new: &str, host: &Route, inside: &Route, target: BorrowedFd<'_>) -> Result<()> {
    check_name(name)?;
    check_name(new)?;
    let index = links(host, None)?.into_iter().find(|(_, each)| each == name).map(|(index, _)| index);
    let index = index
        .ok_or_else(|| Error::new(Kind::Network, "no such device").hint("list the devices of the host: ip link"))?;
    let addresses = addresses(host, index)?;
    let before = links(inside, None)?;
    let request = Request::new(&link(index, 0))
        .attribute(LINK_NAMESPACE, &(target.as_raw_fd() as u32).to_ne_bytes())
        .text(LINK_NAME, new);
    host.change(LINK, request).failing(Kind::Network, || "change its namespace")?;
    // The number and a name from a template may differ there.
    let moved = links(inside, None)?.into_iter().find(|each| !before.contains(each)).map(|(index, _)| index);
    let index = moved.ok_or_else(|| Error::new(Kind::Network, "it did not arrive"))?;
    for (fixed, kept) in addresses {
        let mut request = Request::new(&[&fixed[..4], &index.to_ne_bytes()].concat());
        for (kind, value) in kept {
            request = request.attribute(kind, &value);
        }
        inside.add(ADDRESS, request).failing(Kind::Network, || "give it its address again")?;
    }
    inside.change(LINK, Request::new(&link(index, UP))).failing(Kind::Network, || "bring it up")
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() >= NAME_BYTES || name.contains(['/', '\0']) || matches!(name, "." | "..") {
        return Err(Error::new(Kind::Spec, format!("`{}` is no name of a network device", name.escape_debug())));
    }
    Ok(())
}

/// `struct ifinfomsg`.
pub(super) fn link(index: i32, flags: u32) -> [u8; LINK_BYTES] {
    let mut bytes = [0; LINK_BYTES];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

/// `kind`: of these alone.
pub(super) fn links(route: &Route, kind: Option<&str>) -> Result<Vec<(i32, String)>> {
    let told = route.dump(LINK, Request::new(&link(0, 0))).failing(Kind::Network, || "list the network devices")?;
    let is_of = |body: &[u8], kind: &str| {
        let info = attributes(body, LINK_BYTES).find(|(name, _)| *name == LINK_INFO).map_or(&[][..], |(_, info)| info);
        attributes(info, 0)
            .any(|(name, value)| name == LINK_KIND && value.strip_suffix(&[0]).unwrap_or(value) == kind.as_bytes())
    };
    let named = |body: &Vec<u8>| {
        if kind.is_some_and(|kind| !is_of(body, kind)) {
            return None;
        }
        let (_, name) = attributes(body, LINK_BYTES).find(|(kind, _)| *kind == LINK_NAME)?;
        Some((index(body)?, String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()))
    };
    Ok(told.iter().filter_map(named).collect())
}

pub(super) fn index(body: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(*body.get(4..)?.first_chunk()?))
}

type Address = ([u8; ADDRESS_BYTES], Vec<(u16, Vec<u8>)>);

/// Permanent, with global scope.
fn addresses(route: &Route, index: i32) -> Result<Vec<Address>> {
    let told = route
        .dump(ADDRESS, Request::new(&[0; ADDRESS_BYTES]))
        .failing(Kind::Network, || "list the network addresses")?;
    Ok(told.iter().filter_map(|body| kept(body, index)).collect())
}

/// `body`: family, prefix, flags, scope, device.
fn kept(body: &[u8], index: i32) -> Option<Address> {
    let fixed: [u8; ADDRESS_BYTES] = *body.first_chunk()?;
    let wide = attributes(body, ADDRESS_BYTES).find(|(kind, _)| *kind == ADDRESS_FLAGS);
    let flags = wide.and_then(|(_, value)| Some(u32::from_ne_bytes(*value.first_chunk()?))).unwrap_or(fixed[2].into());
    let ours = i32::from_ne_bytes(*fixed.get(4..)?.first_chunk()?) == index;
    let universal = fixed[3] == 0;
    if !ours || !universal || flags & PERMANENT == 0 {
        return None;
    }
    let attributes = attributes(body, ADDRESS_BYTES).filter(|(kind, _)| KEPT.contains(kind));
    Some((fixed, attributes.map(|(kind, value)| (kind, value.to_vec())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permanent_addresses_of_the_device_that_count_beyond_the_machine_are_kept() {
        let dumped = |index: i32, scope: u8, flags: u8| [&[2, 24, flags, scope][..], &index.to_ne_bytes()].concat();
        assert!(kept(&dumped(7, 0, 0x80), 7).is_some());
        for (index, scope, flags) in [(8, 0, 0x80), (7, 253, 0x80), (7, 0, 0)] {
            assert!(kept(&dumped(index, scope, flags), 7).is_none(), "{index} {scope} {flags}");
        }
    }

    #[test]
    fn names_that_the_kernel_does_not_take_are_refused() {
        for wrong in ["", "a/b", "..", "sixteen-letters!", "a\0b"] {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
        assert!(check_name("eth%d").is_ok());
    }
}
