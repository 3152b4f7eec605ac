//! Starts a container from a spec: every refusal comes before the clone.

use super::entry::Entry;
use super::running::{Group, Running};
use super::users::{self, Users};
use super::{HostPaths, archive, link};
use crate::cgroup::{Cgroup, CgroupPath, PendingCgroup, Purpose};
use crate::container::check::{self, Checked, privileged};
use crate::container::gateway::{self, Prepared, Wish};
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::sandbox::VolumeFiles;
use crate::mounts::{self, disk};
use crate::ns::{self, Range};
use crate::process::{self, Plan, Stdio, Vectors};
use crate::spec::network::Network;
use crate::spec::resources::Cpu;
use crate::spec::root::Backing;
use crate::spec::{Confinement, Container};
use crate::sys::signal::restore_signal;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Its first message may report that the command could not be started. The command keeps `handed` under its number.
/// `volumes` are by the numbers of the spec's steps.
pub(crate) fn launch(
    mut spec: Container,
    checked: &Checked,
    paths: &HostPaths,
    stdio: Stdio,
    handed: Option<OwnedFd>,
    gateway: Option<Wish>,
    volumes: Vec<VolumeFiles>,
) -> Result<Running> {
    // If the caller ignores SIGCHLD (a daemon), pid 1 would inherit that and never learn of an end.
    restore_signal(libc::SIGCHLD);
    // After an error drops undo all parts, the last one first.
    let vectors = Vectors::new(&spec.command.arguments, &spec.command.environment)?;
    let is_free = spec.confinement == Confinement::Nothing;
    let is_root_inside = spec.confinement == Confinement::Root;
    let range = if privileged() && !is_free { Some(Range::take(&paths.id_ranges)?) } else { None };
    let user = (spec.command.uid, spec.command.gid);
    // Its owners are mapped, so it needs a range of ids.
    let skeleton = range.as_ref().and_then(|_| mounts::sandbox::skeleton::of(&paths.workshop, &spec.file_system));
    // Without such cgroups on this machine, that is a better reason than the file that refused.
    let (limits, may_degrade) = (spec.resources.take(), std::mem::take(&mut spec.may_degrade));
    let explained = |error| check::limits(&mut limits.clone(), &may_degrade).err().unwrap_or(error);
    let path = CgroupPath::task(&paths.id)?;
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
        None if is_root_inside => Users::subordinate(&spec)?,
        None => Users::own(&spec),
    };
    if let (Some(tree), Some(range)) = (users::copy_of(&spec.file_system), &users.range) {
        users::shift_owners(tree, range.base)?;
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
            let (disk, maker) = disk::begin(&paths.workshop, size, &paths.disk)?;
            (Some(disk), Some(maker))
        }
        Backing::Memory => (None, None),
    };
    let earlier = paths.disk.earlier().filter(|_| disk.is_none());
    let restore =
        earlier.map(open_archive).transpose()?.map(|open| (open, archive::restore_kept as mounts::sandbox::Restore));
    let rates = spec.file_system.scratch.rates;
    let volume_devices = volumes.iter().filter_map(device_of).collect::<Result<Vec<_>>>()?;
    let entry = Entry {
        confinement: spec.confinement,
        user,
        groups: spec.command.groups,
        is_single: users.is_single,
        rlimits: spec.command.rlimits,
        landlock: spec.landlock,
        environment: spec.command.environment,
        directory: spec.command.directory.clone(),
        affinity: limits.as_ref().and_then(|limits| processors(&limits.cpu)),
    };
    let command = process::Command {
        handed,
        errand: spec.command.holds.then_some(process::hold as process::Errand),
        ..entry.command(spec.command.directory, vectors)?
    };
    let mut way = match &spec.network {
        Network::Open(open) => {
            let base = users.range.as_ref().map(|range| range.base);
            Some(link::begin(open, &paths.id_ranges, &mut users.network, &mut users.helpers, base)?)
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
    let gateway_landlock_optional = entry.landlock.optional;
    let on_host = spec.network == Network::Host;
    let has_names = spec.network.served().is_some_and(|served| served.names);
    let waits = way.as_ref().is_some_and(|way| way.waits);
    let mut settings = sysctls(inside.as_ref(), is_root_inside && !on_host);
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
        uplink: way.as_mut().and_then(|way| way.uplink.take()),
        hooks: process::BuildHooks::default(),
        first: process::First::Reaper,
        root: mounts::Root::Sandbox(mounts::sandbox::Plan {
            file_system: spec.file_system,
            skeleton,
            stage: paths.stage.clone(),
            disk,
            volumes,
            restore,
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
    // While init builds: it joins when its root is ready.
    let cgroup = match cgroup.as_mut().map(|begun| admit(begun, &spawned)).transpose() {
        Ok(group) => group,
        Err(error) => {
            spawned.abandon(); // it is in one of the cgroups
            return Err(explained(error));
        }
    };
    let mut running = Running::new(spawned, cgroup, maker, rates, users.range, entry);
    running.helpers = users.helpers;
    running.volume_devices = volume_devices;
    if let Some(link) = served_by {
        running.lead_out(link);
    }
    if let Some(gateway) = gateway {
        // While init builds: its sockets wait in the channel, and connections in the sockets.
        running.serve_by(|tasks| gateway.start(gateway_user, tasks, gateway_landlock_optional, has_names))?;
    }
    Ok(running)
}

/// `None` for a volume in memory.
fn device_of(volume: &VolumeFiles) -> Option<Result<(u32, u32)>> {
    let VolumeFiles::Mounted(mounted) = volume else { return None };
    let status = rustix::fs::fstat(mounted).failing(Kind::Disk, || "look at a volume");
    Some(status.map(|status| (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev))))
}

fn open_archive(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).failing(Kind::Disk, || format!("open the kept files `{}`", path.display()))
}

fn admit(begun: &mut PendingCgroup<'_>, spawned: &process::Spawned) -> Result<Group> {
    let group = Group::new(begun.finish()?);
    // before the cgroup is dropped, which it is in
    let files = group.0.join_files().inspect_err(|_| spawned.abandon())?;
    spawned.admit(&files);
    Ok(group)
}

/// An unprivileged gateway must be able to listen at any port inside, for later rules; no other user's process is
/// there. Root inside expects this too, without power over the namespace, which is the machine's.
fn sysctls(inside: Option<&process::Inside>, is_root_inside: bool) -> Vec<(String, String)> {
    let spares = inside.is_some_and(|inside| inside.wish.spares > 0);
    if spares || is_root_inside { vec![("net/ipv4/ip_unprivileged_port_start".into(), "0".into())] } else { Vec::new() }
}

/// As many processors as the quota is worth: programs that count them start no more threads than can run. A program may
/// ask for others; the quota is the limit. `None` allows all that we may use.
fn processors(cpu: &Cpu) -> Option<Vec<u64>> {
    let quota = u64::try_from(cpu.quota?).ok()?;
    let wanted = usize::try_from(quota.div_ceil(cpu.period.filter(|&period| period > 0)?)).ok()?;
    let allowed = sched_getaffinity(None).ok()?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number)).collect();
    // By our pid: consecutive sandboxes start on different processors.
    processor_mask(&allowed, wanted, std::process::id() as usize)
}

fn processor_mask(allowed: &[usize], wanted: usize, turn: usize) -> Option<Vec<u64>> {
    if wanted == 0 || wanted >= allowed.len() {
        return None;
    }
    let mut bits = vec![0; CpuSet::MAX_CPU / 64];
    let first = turn.wrapping_mul(wanted) % allowed.len();
    allowed.iter().cycle().skip(first).take(wanted).for_each(|number| bits[number / 64] |= 1 << (number % 64));
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_as_many_processors_as_its_quota_and_the_next_one_others() {
        let numbers = |allowed: &[usize], wanted, turn| {
            let bits = processor_mask(allowed, wanted, turn)?;
            Some((0..CpuSet::MAX_CPU).filter(|at| bits[at / 64] >> (at % 64) & 1 == 1).collect::<Vec<_>>())
        };
        let check = |allowed: &[usize], wanted, turn, expected: Option<&[usize]>| {
            assert_eq!(numbers(allowed, wanted, turn).as_deref(), expected);
        };
        check(&[0, 1], 2, 7, None);
        check(&[0, 1], 3, 7, None);
        check(&[0, 1], 1, 7, Some(&[1]));
        check(&[0, 1], 1, 8, Some(&[0]));
        check(&[0, 2, 4, 70], 2, 0, Some(&[0, 2]));
        check(&[0, 2, 4, 70], 2, 1, Some(&[4, 70]));
        check(&[0, 2, 4, 70], 3, 1, Some(&[0, 2, 70]));
    }
}
