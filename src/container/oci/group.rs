//! The maker of a container's cgroup: this process, systemd, or none.

use super::creation::Creation;
use super::id::ContainerId;
use super::record::Record;
use crate::cgroup::{Cgroup, CgroupPath, Hierarchy, Layout, Purpose};
use crate::error::{Error, Kind, Result};
use crate::ns;
use crate::spec::config::Config;
use crate::spec::resources::Resources;
use crate::systemd::{Manager, Property, Systemd, Unit, property};
use rustix::io::Errno;
use std::path::PathBuf;

/// Properties of the unit. Callers that pass on an image's labels must remove these (`features` lists them).
const PROPERTY: &str = "org.systemd.property.";

pub(super) struct Wanted {
    hierarchy: Hierarchy,
    path: CgroupPath,
    limits: Resources,
    maker: Maker,
}

enum Maker {
    Nobody,
    Ourselves,
    Systemd { systemd: Systemd, unit: Unit, properties: Vec<Property> },
}

impl Wanted {
    pub(super) fn new(config: &Config, id: &ContainerId, wish: &Creation, limits: Resources) -> Result<Wanted> {
        let hierarchy = match Hierarchy::probe() {
            Err(_) if wish.no_cgroup => Hierarchy::absent(),
            other => other?,
        };
        let asked = &config.linux.cgroups_path;
        if wish.no_cgroup {
            if !is_unlimited(&limits) {
                return Err(Error::new(Kind::LimitUnenforceable, "limits need a cgroup, and `disabled` makes none")
                    .doing("create the container's cgroup")
                    .hint("remove `linux.resources`, or pass --cgroup-manager=cgroupfs"));
            }
            return Ok(Wanted { hierarchy, path: CgroupPath::parse(id.as_str())?, limits, maker: Maker::Nobody });
        }
        if !wish.systemd_cgroup {
            let path = if asked.is_empty() { id.as_str() } else { asked };
            return Ok(Wanted { hierarchy, path: CgroupPath::parse(path)?, limits, maker: Maker::Ourselves });
        }
        let manager = manager();
        let unit = Unit::parse(asked, id.as_str(), manager)?;
        let properties = config
            .annotations
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(PROPERTY)?, value)))
            .map(|(name, value)| property(name, value))
            .collect::<Result<Vec<_>>>()?;
        let mut systemd = Systemd::connect(manager)?;
        let above = match manager {
            Manager::System => String::new(),
            Manager::User => systemd.group()?,
        };
        let path = CgroupPath::parse(&format!("/{above}/{}", unit.path()?))?;
        Ok(Wanted { hierarchy, path, limits, maker: Maker::Systemd { systemd, unit, properties } })
    }

    /// Before there is a process, unless systemd makes it.
    pub(super) fn make(&self) -> Result<Option<Cgroup>> {
        if !matches!(self.maker, Maker::Ourselves) {
            return Ok(None);
        }
        match Cgroup::create(&self.hierarchy, &self.path, Purpose::Container, &self.limits) {
            Ok(group) => Ok(Some(group)),
            // Without a delegated cgroup and limits, an ordinary user's container stays in the caller's.
            Err(error) if is_denied(&error) && !is_host_root() && is_unlimited(&self.limits) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn needs_process(&self) -> bool {
        matches!(self.maker, Maker::Systemd { .. })
    }

    /// systemd makes the cgroup with the process in it. Adds the limits that systemd does not set.
    pub(super) fn adopt(&mut self, pid: i32) -> Result<Option<Cgroup>> {
        let Maker::Systemd { systemd, unit, properties } = &mut self.maker else { return Ok(None) };
        let is_v2 = self.hierarchy.layout() == Layout::Unified;
        let member = (!unit.is_slice()).then_some(pid);
        systemd.start(unit, member, &self.limits, properties, is_v2)?;
        let adopted = Cgroup::adopt(&self.hierarchy, &self.path, pid, Purpose::Container, &self.limits);
        if adopted.is_err() {
            // Report the cgroup's error; the unit ends with its process anyway.
            let _ = systemd.stop(unit);
        }
        adopted.map(Some)
    }

    /// The cgroups that the container sees, and whether they are private.
    pub(super) fn places(&self, group: Option<&Cgroup>) -> (Vec<(String, PathBuf)>, bool) {
        match (group, &self.maker) {
            (Some(group), _) => {
                let record = group.record();
                (record.paths().map(|(name, path)| (name.to_owned(), path.to_path_buf())).collect(), true)
            }
            (None, Maker::Systemd { .. }) => (self.hierarchy.directories(Some(&self.path)), true),
            (None, _) => (self.hierarchy.directories(None), false),
        }
    }

    pub(super) fn path(&self) -> String {
        match &self.path {
            CgroupPath::Absolute(path) => format!("/{path}"),
            CgroupPath::Relative(path) | CgroupPath::Task(path) => path.clone(),
        }
    }
}

fn manager() -> Manager {
    if is_host_root() { Manager::System } else { Manager::User }
}

fn is_host_root() -> bool {
    rustix::process::geteuid().is_root() && ns::is_initial()
}

fn is_denied(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Ignores devices: an ordinary user's container has no more access to them anyway.
fn is_unlimited(limits: &Resources) -> bool {
    Resources { devices: Vec::new(), ..limits.clone() } == Resources::default()
}

/// As [`Wanted::places`].
pub(super) fn recorded_places(record: &Record) -> (Vec<(String, PathBuf)>, bool) {
    let places = |group: &crate::cgroup::Record| {
        group.paths().map(|(name, path)| (name.to_owned(), path.to_path_buf())).collect::<Vec<_>>()
    };
    match &record.cgroup {
        Some(group) => (places(group), true),
        None => (Hierarchy::probe().map(|hierarchy| hierarchy.directories(None)).unwrap_or_default(), false),
    }
}

/// Cgroups of a `create` that was killed before it recorded them. systemd's come after the record.
pub(super) fn unrecorded(config: &Config, id: &ContainerId) -> Vec<PathBuf> {
    let asked = if config.linux.cgroups_path.is_empty() { id.as_str() } else { &config.linux.cgroups_path };
    let (Ok(hierarchy), Ok(path)) = (Hierarchy::probe(), CgroupPath::parse(asked)) else { return Vec::new() };
    let mut found: Vec<_> = hierarchy.directories(Some(&path)).into_iter().map(|(_, place)| place).collect();
    found.retain(|place| place.exists());
    found.sort_unstable();
    found.dedup(); // hierarchies with several controllers
    found
}

pub(super) fn update(unit: &str, id: &str, limits: &Resources) -> Result<()> {
    let is_v2 = Hierarchy::probe()?.layout() == Layout::Unified;
    Systemd::connect(manager())?.set(&Unit::parse(unit, id, manager())?, limits, is_v2)
}

pub(super) fn stop(unit: &str, id: &str) -> Result<()> {
    Systemd::connect(manager())?.stop(&Unit::parse(unit, id, manager())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::skip;
    use std::process::Command;

    #[test]
    fn systemd_makes_the_group_and_brig_writes_the_other_limits() {
        let is_root = rustix::process::geteuid().is_root();
        let manager = if is_root { Manager::System } else { Manager::User };
        let Ok(mut systemd) = Systemd::connect(manager) else {
            return skip("the real systemd: it does not run here");
        };
        let hierarchy = Hierarchy::probe().unwrap();
        let is_v2 = hierarchy.layout() == Layout::Unified;
        let name = format!("test-{}", std::process::id());
        let unit = Unit::parse(&format!(":brig:{name}"), "x", manager).unwrap();
        let above = if is_root { String::new() } else { systemd.group().unwrap() };
        let path = CgroupPath::parse(&format!("/{above}/{}", unit.path().unwrap())).unwrap();
        let limits: Resources = serde_json::from_str(
            r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 0}, "cpu": {"quota": 33333, "period": 100000}}"#,
        )
        .unwrap();
        if !hierarchy.refusals(Purpose::Container, &limits).unwrap().is_empty() {
            return skip("the real systemd: its controllers are not here");
        }
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let extra = [property("CollectMode", "'inactive-or-failed'").unwrap()];
        systemd.start(&unit, Some(child.id() as i32), &limits, &extra, is_v2).unwrap();
        let group = Cgroup::adopt(&hierarchy, &path, child.id() as i32, Purpose::Container, &limits).unwrap();
        assert_eq!(group.processes().unwrap(), vec![child.id() as i32]);
        let record = group.record();
        let read = |controller: &str, file: &str| {
            let (_, path) = record.paths().find(|(name, _)| is_v2 || *name == controller).unwrap();
            std::fs::read_to_string(path.join(file)).unwrap().trim().to_owned()
        };
        // systemd rounds 33.333 % and refuses 0 tasks: the files have the exact values.
        assert_eq!(read("pids", "pids.max"), "0");
        if is_v2 {
            assert_eq!(read("memory", "memory.max"), "67108864");
            assert_eq!(read("memory", "memory.swap.max"), "0");
            assert_eq!(read("cpu", "cpu.max"), "33333 100000");
        }
        let limits = serde_json::from_str(r#"{"memory": {"limit": 33554432}, "pids": {"limit": 7}}"#).unwrap();
        systemd.set(&unit, &limits, is_v2).unwrap();
        group.update(&limits).unwrap();
        assert_eq!(read("pids", "pids.max"), "7");

        let mut second = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        systemd.attach(&unit, "", &[second.id()]).unwrap();
        assert_eq!(group.processes().unwrap().len(), 2);
        group.kill().unwrap();
        for child in [&mut child, &mut second] {
            assert!(!child.wait().unwrap().success());
        }
        systemd.stop(&unit).unwrap();
        group.remove().map_err(crate::error::Error::from).unwrap();
        assert!(Cgroup::open(&group.record()).unwrap().is_gone());
        systemd.stop(&unit).unwrap();
    }
}
