//! The rules of a fence: what an open network does not lead to. Pure, but for their making.
//!
//! Outside, at the host's end of a pair of devices, they hold whatever the sandbox could do to its own namespace. Where there is no such end, they are
//! made inside, in a namespace over which nothing of the sandbox has a right.

use super::netlink::LOOPBACK;
use super::tables::{self, Chain, Hook, Table, Then, When};
use crate::error::{Context, Kind, Result, Step};
use crate::spec::network::{Fence, Prefix, Reach};
use std::net::Ipv4Addr;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Questions for routers and neighbours, and their answers (RFC 4861): they go to link-local and multicast addresses, and without them nothing goes
/// anywhere. The kernel's own; nobody inside may send such.
const NEIGHBOURS: (u8, u8) = (133, 136);

/// Connections of a sandbox that the host tracks at once, those that have ended for some minutes too. All sandboxes share the host's table
/// (`net.netfilter.nf_conntrack_max`, 65,536 and more), and when it is full nothing of the host's own begins.
const MOST_CONNECTIONS: u32 = 4096;

type Rules = Vec<(Vec<When>, Then)>;

/// Makes the fence in the namespace that we are in; it stays as long as that.
pub(crate) fn fence_inside(fence: &Fence) -> Result<()> {
    let table = tables::make("brig", false, &inside(fence));
    table.failing(Kind::Network, || "make the fence of the sandbox's network (nf_tables)").map(drop)
}

/// Makes the fence of a device in the host's namespace, and the translation of the sandbox's address.
pub(super) fn fence_outside(name: &str, device: u32, address: Ipv4Addr, fence: &Fence) -> Result<Table> {
    tables::make(name, true, &outside(device, address, fence))
        .failing(Kind::Network, || format!("make the table `{name}` of nf_tables"))
        .hint(|| "load the modules nf_tables, nft_masq, nft_ct, nft_connlimit and nft_reject_inet, or use --network egress")
}

fn inside(fence: &Fence) -> Vec<Chain> {
    let neighbours = vec![When::Six, When::Protocol(ICMPV6), When::Types(NEIGHBOURS.0, NEIGHBOURS.1)];
    let mut rules =
        vec![(vec![When::To(LOOPBACK)], Then::Accept), (vec![When::Known], Then::Accept), (neighbours, Then::Accept)];
    rules.extend(bounded(&[]));
    rules.extend(decided(&[], fence));
    rules.extend(closed(&[], fence));
    vec![("out", Hook::Output, rules)]
}

fn outside(device: u32, address: Ipv4Addr, fence: &Fence) -> Vec<Chain> {
    let own = Prefix::of_one(address.into());
    let begin = || -> Rules {
        vec![
            (vec![When::From(device), When::Six], Then::Drop),
            (vec![When::From(device), When::NotSource(own)], Then::Drop),
            (vec![When::From(device), When::Known], Then::Accept),
        ]
    };
    // Whom the host and its neighbours answer may come in, nobody else: that is what published ports are for.
    let back =
        || -> Rules { vec![(vec![When::To(device), When::Known], Then::Accept), (vec![When::To(device)], Then::Drop)] };
    let here = [When::From(device)];
    let mut input = begin();
    input.extend(bounded(&here));
    input.extend(decided(&here, fence));
    input.push((here.to_vec(), Then::Reject)); // every address of the host's own, whatever it is
    let mut forward = begin();
    forward.extend(bounded(&here));
    forward.extend(decided(&here, fence));
    forward.extend(closed(&here, fence));
    forward.extend(back());
    let translate = vec![(vec![When::Source(own), When::NotTo(device)], Then::Masquerade)];
    vec![
        ("in", Hook::Input, input),
        ("forward", Hook::Forward, forward),
        ("out", Hook::Output, back()),
        ("nat", Hook::PostRouting, translate),
    ]
}

/// Refuses further connections where there are many. What belongs to one that is there does not come to this rule.
fn bounded(first: &[When]) -> Rules {
    if crate::sys::weaken::is_off("network-connections") {
        return Vec::new();
    }
    vec![([first, &[When::Over(MOST_CONNECTIONS)]].concat(), Then::Reject)]
}

/// What is denied and allowed by rules.
fn decided(first: &[When], fence: &Fence) -> Rules {
    let denied = fence.denied.iter().flat_map(|reach| reached(first, reach, Then::Reject));
    denied.chain(fence.allowed.iter().flat_map(|reach| reached(first, reach, Then::Accept))).collect()
}

fn closed(first: &[When], fence: &Fence) -> Rules {
    if crate::sys::weaken::is_off("network-fence") {
        return Vec::new();
    }
    let rule = |range: &Prefix| ([first, &[When::Destination(*range)]].concat(), Then::Reject);
    fence.closed.iter().map(rule).collect()
}

fn reached(first: &[When], reach: &Reach, then: Then) -> Rules {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &port in &reach.ports {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => runs.push((port, port)),
        }
    }
    let rule = |protocol, (from, to)| {
        let conditions = [When::Destination(reach.range), When::Protocol(protocol), When::Ports(from, to)];
        ([first, &conditions].concat(), then)
    };
    runs.into_iter().flat_map(|run| [rule(TCP, run), rule(UDP, run)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str, length: u8) -> Prefix {
        Prefix::new(text.parse().unwrap(), length).unwrap()
    }

    #[test]
    fn what_is_denied_counts_before_what_is_allowed_and_that_before_what_is_closed() {
        let reach = |text, ports: &[u16]| Reach { range: prefix(text, 32), ports: ports.to_vec() };
        let fence = Fence {
            denied: vec![reach("10.0.0.1", &[80])],
            allowed: vec![reach("10.0.0.2", &[80, 81, 90])],
            closed: vec![prefix("10.0.0.0", 8)],
        };
        let chains = inside(&fence);
        let verdicts: Vec<_> = chains[0].2.iter().map(|(_, then)| *then).collect();
        use Then::{Accept, Reject};
        // Two protocols for each run of ports.
        assert_eq!(verdicts, [Accept, Accept, Accept, Reject, Reject, Reject, Accept, Accept, Accept, Accept, Reject]);
        assert_eq!(chains[0].2[3].0, [When::Over(MOST_CONNECTIONS)]);
        assert_eq!(chains[0].2[6].0[2], When::Ports(80, 81));
    }

    #[test]
    fn nothing_of_the_hosts_own_is_reached_from_a_device_unless_it_is_allowed() {
        let chains = outside(7, Ipv4Addr::new(198, 19, 0, 1), &Fence::default());
        let (_, hook, input) = &chains[0];
        assert_eq!((*hook, input.last().unwrap()), (Hook::Input, &(vec![When::From(7)], Then::Reject)));
        assert!(chains[1].2.contains(&(vec![When::To(7)], Then::Drop)));
        assert_eq!(chains[3].1, Hook::PostRouting);
    }
}
