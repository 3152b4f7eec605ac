//! Enforces the protections of a container's annotations: `create` prepares them before the container and completes
//! them when init is ready.

use super::monitor::{self, Monitor};
use super::receipt;
use super::record::Place;
use crate::container::check::privileged;
use crate::container::gateway::Wish;
use crate::egress::{Policy, Rule, check_rules};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Channel};
use crate::mounts::bundle::options;
use crate::mounts::bundle::{Backing, Cap, Mount};
use crate::mounts::disk::maker::Maker;
use crate::mounts::disk::{self, Size, Workshop};
use crate::ns;
use crate::process::{Inside, Spawned};
use crate::spec::config::Config;
use crate::spec::config::check::has;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::network::GATEWAY;
use crate::spec::protections::{DISK, EGRESS, Protections};
use crate::sys::weaken;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

/// The directory for disks of containers: the default store of the machine's root.
const TEMPLATES: &str = "/var/lib/brig/templates";
const LIVE: &str = "/var/lib/brig/live";
/// The file below a container's directory with its DNS server.
const RESOLVER: &str = "resolv.conf";
/// Devices that the kernel makes in each new network namespace. None of them connects to the outside.
const DEVICES_OF_THE_KERNEL: [&str; 10] =
    ["lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];

/// The parts of the protections between a container's plan and its start. The default protects nothing.
#[derive(Default)]
pub(super) struct Guard {
    /// Sockets and routes that init makes for the gateway.
    pub inside: Option<Inside>,
    /// The cap of the root.
    pub cap: Option<Cap>,
    /// Mounts beside those of the configuration.
    pub mounts: Vec<Mount>,
    gateway: Option<(Wish, Channel)>,
    /// The helper that makes the disk; drop waits for it.
    _maker: Option<Maker>,
}

impl Guard {
    /// Makes the parts that can fail, before the container.
    pub(super) fn prepare(protections: &Protections, config: &Config, place: &Place) -> Result<Guard> {
        let mut guard = Guard::default();
        if let Some(directory) = &protections.receipt {
            receipt::check(directory)?;
        }
        if let Some(rules) = &protections.egress {
            guard.serve(rules, place)?;
        }
        if let Some(cap) = protections.disk.filter(|_| !weaken::is_off("disk-annotation")) {
            // A loop device needs the machine's root, and its disk belongs to the machine's ids.
            let has_own_users = has(config, NamespaceKind::User);
            let backing = if privileged() && !has_own_users {
                let workshop = Workshop { templates: TEMPLATES.into(), live: LIVE.into() };
                let size = Size { bytes: cap.bytes, inodes: cap.inodes, synchronous: false };
                let (pending, maker) = disk::begin(&workshop, size, &disk::DiskFile::Unnamed)
                    .doing(|| format!("make the disk of `{DISK}`"))?;
                guard._maker = Some(maker);
                Backing::Image(pending)
            } else {
                Backing::Memory { bytes: cap.bytes, inodes: cap.inodes }
            };
            guard.cap = Some(Cap { backing, user_xattr: has_own_users || !ns::is_initial() });
        }
        Ok(guard)
    }

    /// Prepares the gateway for these rules.
    fn serve(&mut self, rules: &[String], place: &Place) -> Result<()> {
        let step = || format!("read the annotation `{EGRESS}`");
        let allowed =
            rules.iter().map(|rule| Rule::parse_all(rule)).collect::<Result<Vec<_>>>().map(|all| all.concat());
        let allowed = allowed.and_then(|rules| check_rules(&rules).map(|()| rules));
        let allowed = allowed.map_err(|error| error.of_kind(Kind::Spec).doing(step()))?;
        let policy = Policy { allowed, ..Policy::default() };
        let (init, inside) = Channel::pair().failing(Kind::Egress, || "make a channel to the gateway")?;
        self.inside = Some(Inside { wish: policy.served(0), gateway: inside });
        self.gateway = Some((Wish { policy, ..Wish::default() }, init));
        let source = place.path.join(RESOLVER);
        let text = format!("# The gateway of `{EGRESS}`.\nnameserver {GATEWAY}\n");
        std::fs::write(&source, text).map_err(|cause| files::failed(cause, format!("write `{}`", source.display())))?;
        let at = "/etc/resolv.conf";
        let words = ["bind", "ro", "nosuid", "nodev", "noexec", "private"].map(str::to_owned);
        self.mounts.push(Mount {
            at: at.into(),
            kind: "bind".into(),
            source,
            options: options::parse(at, &words)?,
            userns: None,
            label: String::new(),
            tree: None,
            context: None,
        });
        Ok(())
    }

    /// Starts the monitor of a ready container, if it needs one. `scratch` is the root directory of its capped disk.
    pub(super) fn watch(
        self,
        protections: Protections,
        id: &str,
        spawned: &Spawned,
        cgroup: Option<crate::cgroup::Record>,
        scratch: Option<OwnedFd>,
    ) -> Result<Option<monitor::Process>> {
        if self.gateway.is_some() && !weaken::is_off("egress-devices") {
            check_devices(spawned.pid)?;
        }
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
            scratch,
        };
        monitor.start().doing(|| "start the container's monitor").map(Some)
    }
}

/// Refuses a network with a device by which packets could bypass the gateway.
fn check_devices(pid: i32) -> Result<()> {
    let path = format!("/proc/{pid}/net/dev");
    let text = std::fs::read_to_string(Path::new(&path))
        .map_err(|cause| Error::os(Kind::Network, cause).doing("list the container's network devices"))?;
    match other_device(&text) {
        Some(name) => {
            let name = name.escape_debug();
            let words =
                format!("`{EGRESS}` needs a network without devices, and this one has `{name}`: use --network none");
            Err(Error::new(Kind::Spec, words))
        }
        None => Ok(()),
    }
}

/// The first device in the text of `/proc/PID/net/dev` that the kernel did not make by itself.
fn other_device(text: &str) -> Option<&str> {
    let names = text.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    names.into_iter().find(|name| !DEVICES_OF_THE_KERNEL.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_beside_the_kernels_own_are_found() {
        let text = |names: &[&str]| {
            let lines = names.iter().map(|name| format!("{name}: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"));
            format!("Inter-| Receive | Transmit\n face |bytes |bytes\n{}", lines.collect::<String>())
        };
        assert_eq!(other_device(&text(&["    lo", " sit0"])), None);
        assert_eq!(other_device(&text(&["    lo", "  eth0"])), Some("eth0"));
        assert_eq!(other_device(""), None);
    }
}
