//! The uplink of a sandbox with an open network.

use super::pasta;
use crate::container::gateway::USER;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::net::{self, Veth};
use crate::ns::{Helper, IdMap, Maps, ahead};
use crate::process::{Companion, Uplink};
use crate::spec::network::{Open, Prefix, Way};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The user without a range.
const NOBODY: u32 = 65_534;

#[derive(Debug)]
pub(super) enum Link {
    Veth(Veth),
    Pasta(Companion),
}

pub(super) struct PendingLink {
    pub uplink: Option<Uplink>,
    /// Kernel parameters of the namespace.
    pub settings: Vec<(String, String)>,
    /// `None` if the container must exist first.
    pub link: Option<Link>,
    /// The container must exist first, and waits for the rest.
    pub waits: bool,
}

/// `network` is the container's network namespace, if it exists; a veth pair then exists too. `base` is the container's
/// first host id.
pub(super) fn begin(
    open: &Open,
    directory: &Path,
    network: &mut Option<OwnedFd>,
    helpers: &mut Vec<Helper>,
    base: Option<u32>,
) -> Result<PendingLink> {
    if network.is_none()
        && open.way == Way::Veth
        && let Some((made, helper)) = ahead::begin_network().and_then(ahead::Ahead::finish_network)
    {
        *network = Some(made);
        helpers.push(helper);
    }
    match (open.way, &*network) {
        (Way::Veth, Some(network)) => {
            let (veth, inside) = Veth::make(directory, network.as_fd(), &open.fence)?;
            let uplink = Some(Uplink::Veth(inside));
            Ok(PendingLink { uplink, settings: net::settings(), link: Some(Link::Veth(veth)), waits: false })
        }
        (Way::Veth, None) => {
            Err(Error::new(Kind::Network, "a network of `veth` needs root").hint("use --network egress"))
        }
        (Way::Pasta, _) => {
            pasta::check()?;
            let mut fence = open.fence.clone();
            // Pasta connects from this host, so it can reach these.
            fence.closed.extend(net::own_addresses()?.into_iter().map(Prefix::of_one));
            // As root, take no namespace made ahead: a process that may enter that has power over the machine.
            let link = if rustix::process::geteuid().is_root() {
                let outside = base.map_or(NOBODY, |base| base + USER);
                let line = vec![IdMap { inside: USER, outside, size: 1 }];
                let step = || "make a network for `pasta`";
                let maps = Maps { uid: line.clone(), gid: line };
                let made = ahead::begin_owned_network().map(|begun| begun.finish(&maps)).transpose().doing(step)?;
                let made = made
                    .flatten()
                    .ok_or_else(|| Error::new(Kind::Namespace, "the kernel refuses a namespace").doing(step()))?;
                helpers.push(made.users.helper);
                let copy = made.network.try_clone().failing(Kind::Network, || "keep the network namespace open")?;
                *network = Some(copy);
                Some(Link::Pasta(pasta::start(made.network, made.users.userns, Some(USER))?))
            } else {
                None
            };
            let waits = link.is_none();
            Ok(PendingLink { uplink: Some(Uplink::Fenced(fence)), settings: Vec::new(), link, waits })
        }
    }
}

/// The container waits; its namespaces are new.
pub(super) fn complete(pid: i32) -> Result<Link> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = |kind: &str| {
        rustix::fs::open(format!("/proc/{pid}/ns/{kind}"), flags, Mode::empty())
            .failing(Kind::Namespace, || format!("open the sandbox's {kind} namespace"))
    };
    pasta::start(open("net")?, open("user")?, None).map(Link::Pasta)
}

impl Link {
    /// Bytes that the sandbox sent and received.
    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        match self {
            Link::Veth(veth) => veth.bytes(),
            Link::Pasta(companion) => {
                net::counted(&companion.inside, pasta::DEVICE).map(|(received, sent)| (sent, received))
            }
        }
    }

    /// Readable after its end.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Link::Veth(_) => None,
            Link::Pasta(companion) => Some(companion.process()),
        }
    }

    /// Another process has removed its device on the host.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Link::Veth(veth) if veth.is_gone())
    }

    /// Returns its name too.
    pub(super) fn remove(self) -> (&'static str, Result<()>) {
        match self {
            Link::Veth(veth) => ("network device and its rules", veth.remove()),
            Link::Pasta(companion) => {
                drop(companion);
                ("pasta", Ok(()))
            }
        }
    }
}
