//! Putting the rules in force for a group, and changing them while it runs.

use super::list::{DeviceList, orders};
use super::program::build;
use super::rules::Rule;
use crate::cgroup::create::Group;
use crate::error::{Context, Error, Kind, Result};
use crate::spec::resources::DeviceRule;
use crate::sys::{bpf, weaken};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;

/// The name of our programs, by which they are told from others' (systemd attaches its own to the same group).
const NAME: &str = "brig_devices";

/// How far the device rules went.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DeviceControl {
    /// There were no rules.
    #[default]
    NotAsked,
    /// The kernel checks every use of a device.
    InForce,
    /// We may not: this takes CAP_BPF or CAP_SYS_ADMIN over the host. In a user namespace no device node can be made, so
    /// that what can be used are the nodes that were mounted into the container.
    NotPermitted,
}

/// Puts `rules` in force for the group, in the place of those before. `group` is v1's `devices` group or the v2 group.
pub(in crate::cgroup) fn control(group: &Group, rules: &[DeviceRule], is_new: bool) -> Result<DeviceControl> {
    if rules.is_empty() {
        return Ok(DeviceControl::NotAsked);
    }
    let rules = Rule::parse_all(rules)?;
    if weaken::is_off("cgroup-devices") {
        return Ok(DeviceControl::InForce);
    }
    let done = if group.is_v2 { filter(group, &rules) } else { list(group, &rules, is_new) };
    match done {
        Ok(()) => Ok(DeviceControl::InForce),
        Err(error) if is_not_permitted(&error) && !crate::cgroup::is_host_root() => Ok(DeviceControl::NotPermitted),
        Err(error) => Err(error),
    }
}

fn is_not_permitted(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::PERM | Errno::ACCESS))
}

fn list(group: &Group, rules: &[Rule], is_new: bool) -> Result<()> {
    let target = DeviceList::of(rules)?;
    let current = if is_new { None } else { DeviceList::parse(&group.directory.get("devices.list")?) };
    for rule in orders(current.as_ref(), &target) {
        let file = if rule.allow { "devices.allow" } else { "devices.deny" };
        group.directory.set(file, &rule.to_v1())?;
    }
    Ok(())
}

fn filter(group: &Group, rules: &[Rule]) -> Result<()> {
    let words = |what: &str| format!("{what} the device filter of `{}`", group.directory.path().display());
    let program = bpf::load_device_filter(&build(rules), NAME).failing(Kind::Cgroup, || words("load"))?;
    let cgroup = group.directory.fd();
    let mut ours = Vec::new();
    for id in bpf::device_filters(cgroup).failing(Kind::Cgroup, || words("find"))? {
        let old = match bpf::open_program(id) {
            // Detached and gone since we asked.
            Err(Errno::NOENT) => continue,
            other => other.failing(Kind::Cgroup, || words("open"))?,
        };
        if bpf::program_name(old.as_fd()).failing(Kind::Cgroup, || words("read"))? == NAME {
            ours.push(old);
        }
    }
    // In one step where there is one before: at no moment are both in force, or none.
    let replaced = ours.first().map(AsFd::as_fd);
    bpf::attach_device_filter(cgroup, program.as_fd(), replaced).failing(Kind::Cgroup, || words("attach"))?;
    for old in ours.iter().skip(1) {
        bpf::detach_device_filter(cgroup, old.as_fd()).failing(Kind::Cgroup, || words("detach"))?;
    }
    Ok(())
}
