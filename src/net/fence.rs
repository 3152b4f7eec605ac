//! The rules of a fence: the destinations that an open network excludes.
//!
//! At the host's end of a veth pair they hold whatever the sandbox does in its namespace. Otherwise they are inside, in
//! a namespace over which the sandbox has no right.

use super::netlink::LOOPBACK;
use super::tables::{self, Action, Chain, Condition, Hook, Table};
use crate::error::Result;
use crate::spec::network::{Fence, Prefix, Reach};
use std::net::Ipv4Addr;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Neighbour and router discovery (RFC 4861), which IPv6 needs. It uses link-local and multicast addresses, and only
/// the kernel sends it.
const NEIGHBOURS: (u8, u8) = (133, 136);

/// Of a sandbox, including connections that ended some minutes ago. All sandboxes share the host's table
/// (`net.netfilter.nf_conntrack_max`, 65,536 and more). When it is full, the host opens no connections either.
const MOST_CONNECTIONS: u32 = 4096;

type Rules = Vec<(Vec<Condition>, Action)>;

/// For the life of the current namespace.
pub(crate) fn fence_inside(fence: &Fence) -> Result<()> {
    let step = || "make the fence of the sandbox's network (nf_tables)".to_owned();
    let table = tables::make("brig", false, &inside(fence));
    table
        .map(drop)
        .map_err(|errno| tables::failed(errno, step(), "load the modules nf_tables, nft_ct and nft_reject_inet"))
}

/// With the translation of the sandbox's address.
pub(super) fn fence_outside(name: &str, device: u32, address: Ipv4Addr, fence: &Fence) -> Result<Table> {
    let missing =
        "load the modules nf_tables, nft_masq, nft_ct, nft_connlimit and nft_reject_inet, or use --network egress";
    tables::make(name, true, &outside(device, address, fence))
        .map_err(|errno| tables::failed(errno, format!("make the table `{name}` of nf_tables"), missing))
}

pub(super) fn neighbours() -> Vec<Condition> {
    vec![Condition::Six, Condition::Protocol(ICMPV6), Condition::Types(NEIGHBOURS.0, NEIGHBOURS.1)]
}

fn inside(fence: &Fence) -> Vec<Chain> {
    let mut rules = vec![
        (vec![Condition::To(LOOPBACK)], Action::Accept),
        (vec![Condition::Known], Action::Accept),
        (neighbours(), Action::Accept),
    ];
    rules.extend(bounded(&[]));
    rules.extend(decided(&[], fence));
    vec![("out", Hook::Output, rules)]
}

fn outside(device: u32, address: Ipv4Addr, fence: &Fence) -> Vec<Chain> {
    let own = Prefix::of_one(address.into());
    let begin = || -> Rules {
        vec![
            (vec![Condition::From(device), Condition::Six], Action::Drop),
            (vec![Condition::From(device), Condition::NotSource(own)], Action::Drop),
            (vec![Condition::From(device), Condition::Known], Action::Accept),
        ]
    };
    // Only answers may enter: new connections come through published ports.
    let back = || -> Rules {
        vec![
            (vec![Condition::To(device), Condition::Known], Action::Accept),
            (vec![Condition::To(device)], Action::Drop),
        ]
    };
    let here = [Condition::From(device)];
    let mut input = begin();
    input.extend(bounded(&here));
    input.extend(decided(&here, fence));
    input.push((here.to_vec(), Action::Reject)); // every address of the host
    let mut forward = begin();
    forward.extend(bounded(&here));
    forward.extend(decided(&here, fence));
    forward.extend(back());
    let translate = vec![(vec![Condition::Source(own), Condition::NotTo(device)], Action::Masquerade)];
    vec![
        ("in", Hook::Input, input),
        ("forward", Hook::Forward, forward),
        ("out", Hook::Output, back()),
        ("nat", Hook::PostRouting, translate),
    ]
}

/// Packets of tracked connections never reach this rule.
fn bounded(first: &[Condition]) -> Rules {
    if crate::sys::weaken::is_off("network-connections") {
        return Vec::new();
    }
    vec![([first, &[Condition::Over(MOST_CONNECTIONS)]].concat(), Action::Reject)]
}

fn decided(first: &[Condition], fence: &Fence) -> Rules {
    let within = |reach: &&Reach| fence.closed.iter().any(|closed| closed.covers(&reach.range));
    let (narrow, wide): (Vec<_>, Vec<_>) = fence.allowed.iter().partition(within);
    let accepted = |reach: &Reach| reached(first, reach, Action::Accept);
    let denied = fence.denied.iter().flat_map(|reach| reached(first, reach, Action::Reject));
    let opened = denied.chain(narrow.into_iter().flat_map(accepted));
    opened.chain(closed(first, fence)).chain(wide.into_iter().flat_map(accepted)).collect()
}

fn closed(first: &[Condition], fence: &Fence) -> Rules {
    if crate::sys::weaken::is_off("network-fence") {
        return Vec::new();
    }
    let rule = |range: &Prefix| ([first, &[Condition::Destination(*range)]].concat(), Action::Reject);
    fence.closed.iter().map(rule).collect()
}

fn reached(first: &[Condition], reach: &Reach, then: Action) -> Rules {
    if reach.ports.is_empty() {
        return vec![([first, &[Condition::Destination(reach.range)]].concat(), then)];
    }
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &port in &reach.ports {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => runs.push((port, port)),
        }
    }
    let rule = |protocol, (from, to)| {
        let conditions =
            [Condition::Destination(reach.range), Condition::Protocol(protocol), Condition::Ports(from, to)];
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
            denied: vec![reach("10.0.0.1", &[80]), reach("10.0.0.3", &[])],
            allowed: vec![reach("10.0.0.2", &[80, 81, 90])],
            closed: vec![prefix("10.0.0.0", 8)],
        };
        let chains = inside(&fence);
        let verdicts: Vec<_> = chains[0].2.iter().map(|(_, then)| *then).collect();
        use Action::{Accept, Reject};
        // Two protocols for each run of ports.
        let (denied, allowed) = ([Reject; 3], [Accept; 4]);
        let expected = [&[Accept, Accept, Accept, Reject], &denied[..], &allowed, &[Reject]].concat();
        assert_eq!(verdicts, expected);
        assert_eq!(chains[0].2[3].0, [Condition::Over(MOST_CONNECTIONS)]);
        assert_eq!(chains[0].2[6].0, [Condition::Destination(prefix("10.0.0.3", 32))]); // every protocol
        assert_eq!(chains[0].2[7].0[2], Condition::Ports(80, 81));
    }

    #[test]
    fn only_a_range_within_a_closed_one_opens_it() {
        let reach = |text, length| Reach { range: prefix(text, length), ports: vec![80] };
        let fence = Fence {
            denied: Vec::new(),
            allowed: vec![reach("64.0.0.0", 2), reach("127.0.0.0", 8)],
            closed: vec![prefix("100.64.0.0", 10), prefix("127.0.0.0", 8)],
        };
        let ranges = |rules: &Rules| -> Vec<_> {
            let decided = rules.iter().filter_map(|(conditions, then)| match conditions.as_slice() {
                [.., Condition::Destination(range)] | [.., Condition::Destination(range), _, _] => {
                    Some((*range, *then))
                }
                _ => None,
            });
            decided.collect()
        };
        use Action::{Accept, Reject};
        let (narrow, wide) = ((prefix("127.0.0.0", 8), Accept), (prefix("64.0.0.0", 2), Accept));
        let closed = fence.closed.iter().map(|range| (*range, Reject)).collect::<Vec<_>>();
        let expected = [&[narrow; 2][..], &closed, &[wide; 2]].concat();
        let chains = outside(7, Ipv4Addr::new(198, 19, 0, 1), &fence);
        assert_eq!(ranges(&inside(&fence)[0].2), expected);
        assert_eq!(ranges(&chains[0].2), expected); // addresses of the host
        assert_eq!(ranges(&chains[1].2), expected);
    }

    #[test]
    fn nothing_of_the_hosts_own_is_reached_from_a_device_unless_it_is_allowed() {
        let chains = outside(7, Ipv4Addr::new(198, 19, 0, 1), &Fence::default());
        let (_, hook, input) = &chains[0];
        assert_eq!((*hook, input.last().unwrap()), (Hook::Input, &(vec![Condition::From(7)], Action::Reject)));
        assert!(chains[1].2.contains(&(vec![Condition::To(7)], Action::Drop)));
        assert_eq!(chains[3].1, Hook::PostRouting);
    }
}
