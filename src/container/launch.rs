//! From a spec to a running container: everything that can be refused is refused before the clone.

use super::check::{self, Checked, privileged};
use super::copied;
use super::entry::Entry;
use super::gateway::{self, Prepared, Wish};
use super::link;
use super::place::Place;
use super::running::{Group, Running};
use crate::cgroup::{Cgroup, CgroupPath, PendingCgroup, Purpose};
use crate::error::{Error, Kind, Result, Step};
use crate::mounts::{self, disk};
use crate::ns::{self, Helper, IdMap, Mapped, Maps, Range};
use crate::process::{self, Plan, Stdio, UserNamespace, Vectors};
use crate::spec::network::Network;
use crate::spec::root::{Backing, FileSystem, Ids, Root, Shown, Step as Make};
use crate::spec::{Confinement, Container};
use crate::sys::signal::restore_signal;
use crate::sys::weaken;
use std::os::fd::OwnedFd;
use std::path::Path;

/// User namespaces that a runtime may have in its cell: gVisor's makes one for each of its processes.
const NESTED: u32 = 16;

/// Starts the container; its command may still fail to start, which the first message tells. It keeps `handed` under the number that it has here.
pub(crate) fn launch(
    mut spec: Container,
    checked: &Checked,
    place: &Place,
    stdio: Stdio,
    handed: Option<OwnedFd>,
    gateway: Option<Wish>,
) -> Result<Running> {
    // A caller that ignores this one (a daemon that wants no zombies) would leave pid 1 waiting for an end that the kernel tells nobody.
    restore_signal(libc::SIGCHLD);
    // Also when one part fails, all parts made so far are undone by their drops, the last one first.
    let vectors = Vectors::new(&spec.command.arguments, &spec.command.environment)?;
    let is_free = spec.confinement == Confinement::Nothing;
    let range = if privileged() && !is_free { Some(Range::take(&place.id_ranges)?) } else { None };
    let user = (spec.command.uid, spec.command.gid);
    // Shown as another owner's, so not without ids of its own.
    let skeleton = range.as_ref().and_then(|_| mounts::sandbox::skeleton::of(&place.workshop, &spec.file_system));
    // If this machine cannot have such groups, that says more than the file that refused.
    let (limits, may_degrade) = (spec.resources.take(), std::mem::take(&mut spec.may_degrade));
    let explained = |error| check::limits(&mut limits.clone(), &may_degrade).err().unwrap_or(error);
    let path = CgroupPath::task(&place.id)?;
    let mut cgroup = match (&limits, &checked.hierarchy) {
        (Some(limits), Some(hierarchy)) => {
            Some(Cgroup::begin(hierarchy, &path, Purpose::Task, limits).map_err(explained)?)
        }
        _ => None,
    };
    if let Some(begun) = &mut cgroup {
        ns::ahead::meanwhile(|| begun.step()).map_err(explained)?;
    }
    let mut users = match range {
        Some(range) => Users::of_root(&spec, range)?,
        None if privileged() => Users::callers(&spec),
        None => Users::own(&spec),
    };
    if let (Some(tree), Some(range)) = (copy_of(&spec.file_system), &users.range) {
        copied::give(tree, range.base)?;
    }
    let (disk, maker) = match spec.file_system.scratch.backing {
        Backing::Image => {
            let scratch = &spec.file_system.scratch;
            let size = disk::Size {
                bytes: scratch.bytes,
                inodes: scratch.inodes,
                synchronous: scratch.rates.any()
                    && checked.hierarchy.as_ref().is_some_and(|hierarchy| hierarchy.counts_only_synchronous_writes()),
            };
            let (disk, maker) = disk::begin(&place.workshop, size, &place.disk)?;
            (Some(disk), Some(maker))
        }
        Backing::Memory => (None, None),
    };
    let rates = spec.file_system.scratch.rates;
    let entry = Entry {
        confinement: spec.confinement,
        user,
        groups: spec.command.groups.clone(),
        is_single: users.range.is_none(),
        rlimits: spec.command.rlimits.clone(),
        landlock: spec.landlock.clone(),
        environment: spec.command.environment,
        directory: spec.command.directory.clone(),
        affinity: limits.as_ref().and_then(|limits| super::processors::of(&limits.cpu)),
    };
    let command = process::Command {
        handed,
        errand: spec.command.holds.then_some(process::hold as process::Errand),
        ..entry.command(spec.command.directory, vectors)?
    };
    let mut way = match &spec.network {
        Network::Open(open) => {
            let base = users.range.as_ref().map(|range| range.base);
            Some(link::begin(open, &place.id_ranges, &mut users.network, &mut users.helpers, base)?)
        }
        _ => None,
    };
    let (gateway, inside) = match (gateway, spec.network.served()) {
        (Some(wish), Some(served)) => {
            let (prepared, channel) = Prepared::new(wish)?;
            (Some(prepared), Some(process::Inside { wish: served.clone(), gateway: channel }))
        }
        _ => (None, None),
    };
    let gateway_user = users.range.as_ref().map(|range| range.base + gateway::USER);
    let gateway_landlock_optional = spec.landlock.optional;
    let on_host = spec.network == Network::Host;
    let has_names = spec.network.served().is_some_and(|served| served.names);
    let waits = way.as_ref().is_some_and(|way| way.waits);
    let mut settings = sysctls(inside.as_ref());
    settings.extend(way.iter_mut().flat_map(|way| std::mem::take(&mut way.settings)));
    let plan = Plan {
        user_namespace: users.namespace,
        cgroup: cgroup
            .as_ref()
            .and_then(PendingCgroup::clone_into)
            .map(|directory| directory.try_clone_to_owned())
            .transpose()
            .map_err(|cause| Error::os(Kind::Cgroup, cause).doing("keep the container's cgroup open"))?,
        joins: if cgroup.is_some() { process::Joins::Told } else { process::Joins::AtOnce(Vec::new()) },
        namespaces: match is_free {
            true => ns::Namespaces::host(),
            false => ns::Namespaces::sandbox(on_host || users.network.is_some()),
        },
        network: users.network.filter(|_| !on_host),
        cgroup_namespace: None,
        waits,
        hostname: (!is_free).then_some(spec.hostname),
        domainname: None,
        new_keyring: true,
        oom_score: process::OomScore::Unprotected,
        sysctls: settings,
        inside,
        way_out: way.as_mut().and_then(|way| way.way_out.take()),
        hooks: process::BuildHooks::default(),
        first: process::First::Reaper,
        root: mounts::Root::Sandbox(mounts::sandbox::Plan {
            file_system: spec.file_system,
            skeleton,
            stage: place.stage.clone(),
            disk,
            administrator: users.administrator,
            user: users.user,
            mappings: users.mappings,
            gather: crate::image::gather,
            user_xattr: users.user_xattr,
        }),
        command,
        stdio,
    };
    let mut served_by = way.and_then(|way| way.link);
    let spawned = process::spawn_with(plan, |pid| {
        served_by = Some(link::complete(pid)?);
        Ok(())
    })?;
    // While init builds: it joins when its root is there.
    let cgroup = match cgroup.as_mut().map(|begun| admit(begun, &spawned)).transpose() {
        Ok(group) => group,
        Err(error) => {
            spawned.abandon(); // it is in one of the groups already
            return Err(explained(error));
        }
    };
    let mut running = Running::new(spawned, cgroup, maker, rates, users.range, entry);
    running.helpers = users.helpers;
    if let Some(link) = served_by {
        running.lead_out(link);
    }
    if let Some(gateway) = gateway {
        // While init builds: the sockets that it makes wait in the channel, and connections in the sockets.
        running.serve_by(gateway.start(gateway_user, gateway_landlock_optional, has_names)?)?;
    }
    Ok(running)
}

/// Makes the rest of the groups and lets init into them.
fn admit(begun: &mut PendingCgroup<'_>, spawned: &process::Spawned) -> Result<Group> {
    let group = Group::new(begun.finish()?);
    let files = group.0.join_files().inspect_err(|_| spawned.abandon())?; // before the group is dropped, which it is in
    spawned.admit(&files);
    Ok(group)
}

/// A gateway without power must be able to listen at any port inside for rules that come later. Nobody else is there who could be robbed of one.
fn sysctls(inside: Option<&process::Inside>) -> Vec<(String, String)> {
    let spares = inside.is_some_and(|inside| inside.wish.spares > 0);
    if spares { vec![("net/ipv4/ip_unprivileged_port_start".into(), "0".into())] } else { Vec::new() }
}

/// Ids of the container as the process that builds its root sees them.
fn ids(range: Option<&Range>, uid: u32, gid: u32) -> Ids {
    let base = range.filter(|_| !weaken::is_off("user-namespace")).map_or(0, |range| range.base);
    Ids { uid: base + uid, gid: base + gid }
}

/// Whose ids the container uses, and the user namespaces that this takes.
struct Users {
    namespace: UserNamespace,
    administrator: Ids,
    user: Ids,
    mappings: Vec<(Shown, OwnedFd)>,
    user_xattr: bool,
    range: Option<Range>,
    /// A network namespace that was made ahead.
    network: Option<OwnedFd>,
    /// Children that are ending meanwhile.
    helpers: Vec<Helper>,
}

impl Users {
    /// The machine's root: a range of host ids of the container's own, and trees of files shown through idmapped mounts.
    fn of_root(spec: &Container, range: Range) -> Result<Users> {
        let (base, size) = (range.base, Range::SIZE);
        let line = vec![IdMap { inside: 0, outside: base, size }];
        let maps = Maps { uid: line.clone(), gid: line };
        let step = || "map the sandbox's ids";
        let is_cell = matches!(spec.confinement, Confinement::Cell { .. });
        let Mapped { userns: inside, helper } =
            ns::mapped_above(&maps, if is_cell { NESTED } else { 0 }).doing(step)?;
        let copy = || {
            inside
                .try_clone()
                .map_err(|cause| Error::os(Kind::UserNamespace, cause).doing("keep a user namespace open"))
        };
        let mut mappings = Vec::new();
        let mut helpers = vec![helper];
        for shown in shown(spec) {
            let userns = match shown {
                Shown::Stored => continue,
                Shown::Inside => copy()?,
                Shown::Users { uid, gid } if (uid, gid) == (spec.command.uid, spec.command.gid) => copy()?,
                Shown::Users { uid, gid } => {
                    let maps = Maps {
                        uid: ns::swapped(base, size, uid, spec.command.uid),
                        gid: ns::swapped(base, size, gid, spec.command.gid),
                    };
                    let Mapped { userns, helper } = ns::mapped(&maps).doing(|| "map the owner of the workspace")?;
                    helpers.push(helper);
                    userns
                }
            };
            mappings.push((shown, userns));
        }
        Ok(Users {
            namespace: UserNamespace::Entered(inside),
            administrator: Ids { uid: base, gid: base },
            user: ids(Some(&range), spec.command.uid, spec.command.gid),
            mappings,
            user_xattr: false,
            range: Some(range),
            // Only now: what was ordered is ready, or nearly so, and beside its making the user namespace took longer.
            network: ns::ahead::network().filter(|_| !is_cell),
            helpers,
        })
    }

    /// The machine's root, who stays that.
    fn callers(spec: &Container) -> Users {
        let ids = Ids { uid: spec.command.uid, gid: spec.command.gid };
        Users {
            namespace: UserNamespace::Callers,
            administrator: ids,
            user: ids,
            mappings: Vec::new(),
            user_xattr: false,
            range: None,
            network: None,
            helpers: Vec::new(),
        }
    }

    /// An ordinary user: the one id that we have is the sandbox user's.
    fn own(spec: &Container) -> Users {
        let map = |inside, outside| vec![IdMap { inside, outside, size: 1 }];
        let ids = Ids { uid: spec.command.uid, gid: spec.command.gid };
        Users {
            namespace: UserNamespace::Born(Maps {
                uid: map(ids.uid, rustix::process::geteuid().as_raw()),
                gid: map(ids.gid, rustix::process::getegid().as_raw()),
            }),
            administrator: ids,
            user: ids,
            mappings: Vec::new(),
            user_xattr: true,
            range: None,
            network: None,
            helpers: Vec::new(),
        }
    }
}

/// The tree that was made for this container, as its root or as that of another runtime's container in it.
fn copy_of(file_system: &FileSystem) -> Option<&Path> {
    let nested = file_system.steps.iter().filter_map(|step| match step {
        Make::Nest { root, .. } => Some(root),
        _ => None,
    });
    std::iter::once(&file_system.root).chain(nested).find_map(|root| match root {
        Root::Copy(tree) => Some(tree.as_path()),
        _ => None,
    })
}

/// Every way in which some tree of the spec is shown, once.
fn shown(spec: &Container) -> Vec<Shown> {
    let of_root = |root: &Root| match root {
        Root::Overlay { shown, .. } => Some(*shown),
        Root::Layers(layers) => Some(layers.shown),
        Root::Empty | Root::Kept | Root::Copy(_) | Root::Gathered(_) | Root::Host => None,
    };
    let steps = spec.file_system.steps.iter().filter_map(|step| match step {
        Make::Bind { shown, .. } | Make::Overlay { shown, .. } => Some(*shown),
        Make::Nest { root, .. } => of_root(root),
        _ => None,
    });
    of_root(&spec.file_system.root).into_iter().chain(steps).fold(Vec::new(), |mut all, each| {
        if !all.contains(&each) {
            all.push(each);
        }
        all
    })
}
