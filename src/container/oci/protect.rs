//! Enforces the protections of annotations: `create` prepares them, and completes them when init is ready.

use super::creation::Creation;
use super::monitor::{self, Monitor};
use super::receipt;
use super::record::Place;
use super::{broker, bundle, prepare};
use crate::container::check::privileged;
use crate::container::gateway::Wish;
use crate::egress::{Broker, Policy, Rule, check_rules};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Channel};
use crate::mounts::bundle::shown::{self, CappedRoot};
use crate::mounts::bundle::{Backing, Cap, Capped, Mount};
use crate::mounts::disk::maker::Maker;
use crate::mounts::disk::{self, Size, Workshop};
use crate::net::EngineNetwork;
use crate::ns;
use crate::process::{Inside, Spawned};
use crate::spec::config::Config;
use crate::spec::config::check::has;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::network::GATEWAY;
use crate::spec::protections::{DISK, EGRESS, Protections};
use crate::sys::weaken;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

/// The default store of the machine's root.
const TEMPLATES: &str = "/var/lib/brig/templates";
const LIVE: &str = "/var/lib/brig/live";
/// Below a container's directory.
const RESOLVER: &str = "resolv.conf";

/// The default protects nothing.
#[derive(Default)]
pub(super) struct Guard {
    pub inside: Option<Inside>,
    cap: Option<Cap>,
    /// The disk's root directory, if this process has made the root.
    scratch: Option<OwnedFd>,
    /// Beside those of the configuration.
    pub mounts: Vec<Mount>,
    gateway: Option<(Wish, Channel)>,
    /// Drop waits for it.
    _maker: Option<Maker>,
}

/// Removes the directories of disks whose helpers were killed; other disks are locked. `brig doctor --leaks` reports a
/// failure.
pub(super) fn reap_disks(annotations: &BTreeMap<String, String>) {
    let entries = annotations.contains_key(DISK).then(|| std::fs::read_dir(LIVE).ok()).flatten();
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = disk::volatile::reap(&entry.path());
        }
    }
}

impl Guard {
    /// Makes the parts that can fail, before the container.
    pub(super) fn prepare(
        protections: &Protections,
        config: &Config,
        wish: &Creation,
        (id, place): (&str, &Place),
    ) -> Result<Guard> {
        let mut guard = Guard::default();
        if let Some(directory) = &protections.receipt {
            receipt::check(directory)?;
        }
        if let Some(rules) = &protections.egress {
            let broker = broker::open(&protections.secrets, wish.secrets)?;
            if let Some(broker) = &broker {
                let root = prepare::root(config, &wish.bundle)?;
                guard.mounts.extend(broker::certificates(broker, &root, &place.path)?);
            }
            guard.serve(rules, broker, place)?;
        }
        if let Some(cap) = protections.disk.filter(|_| !weaken::is_off("disk-annotation")) {
            // A loop device needs the machine's root.
            let backing = if privileged() {
                let workshop = Workshop { templates: TEMPLATES.into(), live: LIVE.into() };
                let size = Size { bytes: cap.bytes, inodes: cap.inodes, synchronous: false };
                let (pending, maker) = disk::begin(&workshop, size, &disk::DiskFile::Unnamed)
                    .doing(|| format!("make the disk of `{DISK}`"))?;
                guard._maker = Some(maker);
                Backing::Image(pending)
            } else {
                Backing::Memory { bytes: cap.bytes, inodes: cap.inodes }
            };
            let user_xattr = !privileged() && (has(config, NamespaceKind::User) || !ns::is_initial());
            guard.cap = Some(Cap { backing, user_xattr, source: shown::source(id) });
        }
        Ok(guard)
    }

    /// Whether this process makes the capped root and shows it at its path. An ordinary user cannot, but root of a user
    /// namespace with its own mount namespace can: rootless engines call brig there.
    pub(super) fn shows_root(&self) -> bool {
        self.cap.is_some() && shown::may_mount()
    }

    /// If this process makes the root, it is then shown at `root`: the record must have that before.
    pub(super) fn take_root(&mut self, root: &Path, place: &Place) -> Result<Option<Capped>> {
        let is_shown = self.shows_root();
        let Some(cap) = self.cap.take() else { return Ok(None) };
        if !is_shown {
            return Ok(Some(Capped::ToMake(cap)));
        }
        let made = CappedRoot::make(root, cap)?;
        let lock = place.lock_roots()?;
        let (inside, scratch) = made.show(root).doing(|| format!("enforce `{DISK}`"))?;
        drop(lock);
        self.scratch = Some(scratch);
        Ok(Some(Capped::Made(inside)))
    }

    /// Allows the broker's hosts, too.
    fn serve(&mut self, rules: &[String], broker: Option<Broker>, place: &Place) -> Result<()> {
        let step = || format!("read the annotation `{EGRESS}`");
        let allowed =
            rules.iter().map(|rule| Rule::parse_all(rule)).collect::<Result<Vec<_>>>().map(|all| all.concat());
        let allowed = allowed.and_then(|rules| check_rules(&rules).map(|()| rules));
        let allowed = allowed.map_err(|error| error.of_kind(Kind::Spec).doing(step()))?;
        let mut policy = Policy { allowed, ..Policy::default() };
        broker.iter().flat_map(|broker| &broker.credentials).try_for_each(|credential| policy.admit(credential))?;
        let (init, inside) = Channel::pair().failing(Kind::Egress, || "make a channel to the gateway")?;
        self.inside = Some(Inside { wish: policy.served(0), gateway: inside });
        self.gateway = Some((Wish { policy, broker, ..Wish::default() }, init));
        let source = place.path.join(RESOLVER);
        let text = format!("# The gateway of `{EGRESS}`.\nnameserver {GATEWAY}\n");
        std::fs::write(&source, text).map_err(|cause| files::failed(cause, format!("write `{}`", source.display())))?;
        self.mounts.push(bundle::read_only("/etc/resolv.conf", source)?);
        Ok(())
    }

    /// After the engine made it. Init opened `connections` inside.
    pub(super) fn close_network(&self, connections: Vec<OwnedFd>, peers: bool) -> Result<()> {
        let Some((wish, _)) = self.gateway.as_ref().filter(|_| !weaken::is_off("egress-devices")) else {
            return Ok(());
        };
        let [routes, tables] = <[OwnedFd; 2]>::try_from(connections)
            .map_err(|_| Error::new(Kind::Lost, "init sent no connection to the container's network"))?;
        let served = wish.policy.served(0).routes;
        EngineNetwork::received(routes, tables).close(&served, peers).doing(|| format!("enforce `{EGRESS}`"))
    }

    /// `scratch` is the root directory of the capped disk.
    pub(super) fn watch(
        self,
        protections: Protections,
        id: &str,
        spawned: &Spawned,
        cgroup: Option<crate::cgroup::Record>,
        scratch: Option<OwnedFd>,
    ) -> Result<Option<monitor::Process>> {
        if !protections.needs_monitor() {
            return Ok(None);
        }
        let init = spawned.pidfd().try_clone_to_owned().failing(Kind::Lost, || "keep the container's first process")?;
        let monitor = Monitor {
            id: id.to_owned(),
            created: SystemTime::now(),
            protections,
            gateway: self.gateway,
            init,
            pid: spawned.pid,
            cgroup,
            scratch: scratch.or(self.scratch),
        };
        monitor.start().doing(|| "start the container's monitor").map(Some)
    }
}
