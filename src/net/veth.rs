//! A veth pair between the host and a root sandbox: `brigN` on the host, `eth0` inside, two addresses of a pool.
//!
//! All ends with its holders: the number is a lock, the table has an owner, the devices end with the namespace. The
//! next sandbox with the number, or the next command, removes leftovers.

use super::device::{index, link, links};
use super::fence::fence_outside;
use super::netlink::{
    ADDRESS, ADDRESS_BYTES, LINK, LINK_BYTES, LINK_INFO, LINK_KIND, LINK_NAME, LINK_NAMESPACE, ROUTE, ROUTE_BYTES,
    Request, Route, UP, attributes,
};
use super::tables::Table;
use crate::error::{Context, Error, Kind, Result};
use crate::files::Slot;
use crate::spec::network::{Fence, Prefix};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The second half of the benchmark range (RFC 2544), which is not routed. Two addresses for each sandbox (RFC 3021).
const POOL: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
const POOL_LENGTH: u8 = 16;
const SLOTS: u32 = 1 << 15;
const PAIR_LENGTH: u8 = 31;
const LOCKS: &str = "network-slots";
const PREFIX: &str = "brig";
const INSIDE: &str = "eth0";
const VETH: &str = "veth";

const LINK_STATISTICS: u16 = 23;
const IPV4: u8 = 2;

/// Drop removes the pair; [`Veth::remove`] also returns errors.
#[derive(Debug)]
pub(crate) struct Veth {
    name: String,
    index: i32,
    host: Route,
    table: Option<Table>,
    /// Keeps the device and its counters until they were read.
    _namespace: OwnedFd,
    _slot: Slot,
}

#[derive(Clone, Debug)]
pub(crate) struct Inside {
    host: Ipv4Addr,
    own: Ipv4Addr,
}

impl Veth {
    /// `directory` is the same for the whole machine.
    pub(crate) fn make(directory: &Path, namespace: BorrowedFd<'_>, fence: &Fence) -> Result<(Veth, Inside)> {
        forwarding()?;
        let step = || "make the sandbox's network device";
        let host = Route::open().failing(Kind::Network, step)?;
        let taken = routed(&host)?;
        let is_free = |slot: u32| !taken.iter().any(|range| addresses(slot).0.within(range));
        let slot = Slot::take(directory, LOCKS, SLOTS, is_free)?.ok_or_else(|| {
            Error::new(Kind::Network, format!("no pair of addresses of {POOL}/{POOL_LENGTH} is free on this host"))
                .doing(step())
                .hint("stop some sandboxes, or use --network egress")
        })?;
        let (outside, own) = addresses(slot.number);
        let name = format!("{PREFIX}{}", slot.number);
        let copy = namespace.try_clone_to_owned().failing(Kind::Network, step)?;
        if let Err(errno) = host.make(LINK, pair(&name, namespace)) {
            // A pair with this name is a leftover: the number was free. Another device, such as a bridge, is not ours.
            let is_left = errno == Errno::EXIST && links(&host, Some(VETH))?.iter().any(|(_, other)| *other == name);
            if !is_left {
                return Err(Error::os(Kind::Network, errno)
                    .doing(format!("make the device `{name}`"))
                    .hint("if it is another program's, rename it; or use --network egress"));
            }
            delete(&host, &name).failing(Kind::Network, || format!("remove the left device `{name}`"))?;
            host.make(LINK, pair(&name, namespace)).failing(Kind::Network, step)?;
        }
        let mut veth = Veth { name, index: 0, host, table: None, _namespace: copy, _slot: slot };
        veth.index = number(&veth.host, &veth.name)?;
        let no_v6 = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", veth.name);
        if Path::new(&no_v6).exists() {
            std::fs::write(&no_v6, "1").failing(Kind::Network, || format!("write `{no_v6}`"))?;
        }
        veth.table = Some(fence_outside(&veth.name, veth.index as u32, own, fence)?);
        add_address(&veth.host, veth.index, outside).failing(Kind::Network, || "give the device its address")?;
        veth.host.change(LINK, Request::new(&link(veth.index, UP))).failing(Kind::Network, || "bring it up")?;
        Ok((veth, Inside { host: outside, own }))
    }

    /// Sent and received by the sandbox.
    pub(crate) fn bytes(&self) -> Option<(u64, u64)> {
        counted(&self.host, &self.name)
    }

    /// Whether another process removed it.
    pub(crate) fn is_gone(&self) -> bool {
        let found = self.host.get(LINK, Request::new(&link(self.index, 0)));
        matches!(found, Ok(None) | Err(Errno::NODEV))
    }

    pub(crate) fn remove(mut self) -> Result<()> {
        self.undo().failing(Kind::Network, || format!("remove the device `{}`", self.name))
    }

    fn undo(&mut self) -> std::result::Result<(), Errno> {
        if self.name.is_empty() {
            return Ok(());
        }
        let done = match delete(&self.host, &self.name) {
            Err(Errno::NODEV) => Ok(()),
            other => other,
        };
        self.table = None; // after the device: no packet passes without the fence
        if done.is_ok() {
            self.name.clear();
        }
        done
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // The next command removes the rest.
        let _ = self.undo();
    }
}

/// Paths below /proc/sys.
pub(crate) fn settings() -> Vec<(String, String)> {
    let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
    // Without a route, IPv6 addresses would only delay programs.
    if has_v6 { vec![(format!("net/ipv6/conf/{INSIDE}/disable_ipv6"), "1".into())] } else { Vec::new() }
}

/// The first process runs it in the sandbox's namespace.
pub(crate) fn bring_up(inside: &Inside) -> Result<()> {
    let step = || "bring the sandbox's network device up";
    let routes = Route::open().failing(Kind::Network, step)?;
    let index = number(&routes, INSIDE)?;
    add_address(&routes, index, inside.own).failing(Kind::Network, step)?;
    routes.change(LINK, Request::new(&link(index, UP))).failing(Kind::Network, step)?;
    const TABLE_MAIN: u8 = 254;
    const STATIC: u8 = 4;
    const UNICAST: u8 = 1;
    let fixed = [IPV4, 0, 0, 0, TABLE_MAIN, STATIC, 0, UNICAST, 0, 0, 0, 0];
    let request = Request::new(&fixed).attribute(5, &inside.host.octets()).attribute(4, &(index as u32).to_ne_bytes());
    routes.add(ROUTE, request).failing(Kind::Network, || "add the sandbox's way out")
}

/// Pairs whose sandboxes have ended. Without the locks nothing is known about them: a container with the host's network
/// may have another folder of locks.
pub(crate) fn leaks(directory: &Path) -> Vec<String> {
    if !directory.join(LOCKS).exists() {
        return Vec::new();
    }
    // A user without this permission has left no devices.
    let Ok(host) = Route::open() else { return Vec::new() };
    let names = links(&host, Some(VETH)).unwrap_or_default().into_iter().map(|(_, name)| name);
    names.filter(|name| slot_of(name).is_some_and(|slot| Slot::is_free(directory, LOCKS, slot))).collect()
}

/// `false`: the device was gone.
pub(crate) fn reap(directory: &Path) -> Vec<(String, Result<bool>)> {
    let remove = |name: String| {
        let done = Route::open().and_then(|host| match delete(&host, &name) {
            Ok(()) => Ok(true),
            Err(Errno::NODEV) => Ok(false),
            Err(errno) => Err(errno),
        });
        let done = done.failing(Kind::Network, || format!("remove the device `{name}`"));
        (format!("network device {name}"), done)
    };
    leaks(directory).into_iter().map(remove).collect()
}

fn slot_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(PREFIX)?;
    let slot: u32 = digits.parse().ok().filter(|slot| *slot < SLOTS)?;
    (digits == slot.to_string()).then_some(slot)
}

/// The host's address and the sandbox's.
fn addresses(slot: u32) -> (Ipv4Addr, Ipv4Addr) {
    let first = POOL.to_bits() + slot * 2;
    (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(first + 1))
}

trait Within {
    fn within(self, range: &Prefix) -> bool;
}

impl Within for Ipv4Addr {
    fn within(self, range: &Prefix) -> bool {
        range.contains(IpAddr::V4(self))
            || Prefix::new(IpAddr::V4(self), PAIR_LENGTH).is_some_and(|pair| pair.covers(range))
    }
}

/// Without it, replies stop at the host. The operator must set it for the whole machine.
fn forwarding() -> Result<()> {
    const PATH: &str = "/proc/sys/net/ipv4/ip_forward";
    let set = std::fs::read_to_string(PATH).failing(Kind::Network, || format!("read `{PATH}`"))?;
    if set.trim() != "0" {
        return Ok(());
    }
    Err(Error::new(Kind::Network, "this host passes no packets on, and `veth` needs that (net.ipv4.ip_forward is 0)")
        .hint("sysctl -w net.ipv4.ip_forward=1, or use --network egress or pasta"))
}

/// Without the default route and veth pairs of sandboxes.
fn routed(host: &Route) -> Result<Vec<Prefix>> {
    let step = || "list the host's routes";
    let told =
        host.dump(ROUTE, Request::new(&[&[IPV4][..], &[0; ROUTE_BYTES - 1]].concat())).failing(Kind::Network, step)?;
    let range = |body: &[u8]| {
        let length = *body.get(1)?;
        let (_, bytes) = attributes(body, ROUTE_BYTES).find(|(kind, _)| *kind == 1)?;
        Prefix::new(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(), length)
    };
    let is_ours = |range: &Prefix| {
        range.length >= PAIR_LENGTH && Prefix { address: POOL.into(), length: POOL_LENGTH }.covers(range)
    };
    Ok(told.iter().filter_map(|body| range(body)).filter(|range| !is_ours(range)).collect())
}

/// `ip link add NAME type veth peer name eth0 netns NAMESPACE`.
fn pair(name: &str, namespace: BorrowedFd<'_>) -> Request {
    const DATA: u16 = 2;
    const PEER: u16 = 1;
    let peer = Request::new(&link(0, 0))
        .text(LINK_NAME, INSIDE)
        .attribute(LINK_NAMESPACE, &(namespace.as_raw_fd() as u32).to_ne_bytes());
    let info = Request::default().attribute(LINK_KIND, VETH.as_bytes()).nest(DATA, Request::default().nest(PEER, peer));
    Request::new(&link(0, 0)).text(LINK_NAME, name).nest(LINK_INFO, info)
}

fn add_address(route: &Route, index: i32, address: Ipv4Addr) -> std::result::Result<(), Errno> {
    let fixed = [&[IPV4, PAIR_LENGTH, 0, 0][..], &index.to_ne_bytes()].concat();
    let request = Request::new(&fixed).attribute(2, &address.octets()).attribute(1, &address.octets());
    route.add(ADDRESS, request)
}

fn delete(route: &Route, name: &str) -> std::result::Result<(), Errno> {
    route.remove(LINK, Request::new(&link(0, 0)).text(LINK_NAME, name))
}

fn find_device(route: &Route, name: &str) -> std::result::Result<Option<Vec<u8>>, Errno> {
    route.get(LINK, Request::new(&link(0, 0)).text(LINK_NAME, name))
}

fn number(route: &Route, name: &str) -> Result<i32> {
    let found = find_device(route, name).failing(Kind::Network, || format!("find the device `{name}`"))?;
    found.and_then(|body| index(&body)).ok_or_else(|| Error::new(Kind::Network, format!("no device `{name}`")))
}

/// Received and sent (`struct rtnl_link_stats64`).
pub(crate) fn counted(route: &Route, name: &str) -> Option<(u64, u64)> {
    let body = find_device(route, name).ok()??;
    let (_, numbers) = attributes(&body, LINK_BYTES).find(|(kind, _)| *kind == LINK_STATISTICS)?;
    let at = |place: usize| Some(u64::from_ne_bytes(*numbers.get(place * 8..)?.first_chunk()?));
    Some((at(2)?, at(3)?))
}

/// A fence must cover them on every route.
pub(crate) fn own_addresses() -> Result<Vec<IpAddr>> {
    let step = || "list the addresses of the host";
    let host = Route::open().failing(Kind::Network, step)?;
    let told = host.dump(ADDRESS, Request::new(&[0; ADDRESS_BYTES])).failing(Kind::Network, step)?;
    let address = |body: &[u8]| {
        let found = |wanted| attributes(body, ADDRESS_BYTES).find(|(kind, _)| *kind == wanted);
        let (_, bytes) = found(2).or_else(|| found(1))?;
        match bytes.len() {
            4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
            16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
            _ => None,
        }
    };
    Ok(told.iter().filter_map(|body| address(body)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_two_addresses_of_the_pool_that_no_other_has() {
        let all: Vec<_> = [0, 1, 2, SLOTS - 1].into_iter().map(addresses).collect();
        assert_eq!(all[0], (Ipv4Addr::new(198, 19, 0, 0), Ipv4Addr::new(198, 19, 0, 1)));
        assert_eq!(all[1].0, Ipv4Addr::new(198, 19, 0, 2));
        assert_eq!(all[3].1, Ipv4Addr::new(198, 19, 255, 255));
        let range = Prefix::new("198.19.0.0".parse().unwrap(), 24).unwrap();
        assert!(addresses(5).0.within(&range) && !addresses(200).0.within(&range));
    }

    #[test]
    fn only_names_that_we_give_are_ours() {
        for (name, slot) in [
            ("brig0", Some(0)),
            ("brig31", Some(31)),
            ("brig01", None),
            ("brig", None),
            ("brig99999", None),
            ("eth0", None),
        ] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
    }
}
