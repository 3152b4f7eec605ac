//! Finds the limits that this host cannot enforce, before a group is made.

use super::controller::{Controller, Controllers, Purpose};
use super::directory::permission_hint;
use super::group::is_host_root;
use super::hierarchy::{Hierarchy, Layout, Tree, has_swap, is_delegated};
use super::plan::{self, Missing, Write};
use crate::error::Result;
use crate::spec::resources::Resources;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refusal {
    /// `memory`, `swap`, `pids`, `cpus`, `cpu_time`, `io`, `cpuset`, `hugepages`, `rdma`, `network`, `devices`.
    pub limit: &'static str,
    pub reason: String,
    /// One action that helps.
    pub fix: String,
}

impl Hierarchy {
    /// Includes the counters that `purpose` needs. Changes nothing.
    pub(crate) fn refusals(&self, purpose: Purpose, limits: &Resources) -> Result<Vec<Refusal>> {
        let writes = plan::writes(limits, |controller| self.is_v1(controller))?;
        let mut refusals: Vec<Refusal> = Vec::new();
        let mut add = |refusal: Option<Refusal>| {
            if let Some(refusal) = refusal
                && !refusals.iter().any(|each| each.limit == refusal.limit)
            {
                refusals.push(refusal);
            }
        };
        let mut required = purpose.required();
        if self.v2.as_ref().is_none_or(|tree| tree.delegated().is_none()) {
            required = required.or(purpose.without_v2());
        }
        for controller in required.iter() {
            add(self.refuse_controller(controller, limit_name(controller, "")));
        }
        if !limits.devices.is_empty() {
            add(self.refuse_devices());
        }
        for write in &writes {
            let Some(controller) = write.controller else { continue };
            let limit = limit_name(controller, &write.file);
            add(self.refuse_controller(controller, limit).or_else(|| self.refuse_write(write, limit)));
        }
        Ok(refusals)
    }

    fn refuse_controller(&self, controller: Controller, limit: &'static str) -> Option<Refusal> {
        let refuse = |reason: String, fix: String| Some(Refusal { limit, reason, fix });
        if let Some(tree) = self.v1_of(controller) {
            let own = tree.own_directory();
            if is_delegated(&own) {
                return None;
            }
            return refuse(format!("no group may be made in `{}`", own.display()), permission_hint());
        }
        let name = controller.name_v1();
        let Some(tree) = self.v2.as_ref().filter(|_| controller.name_v2().is_some()) else {
            return refuse(format!("no controller `{name}` is mounted"), self.fix_missing(controller));
        };
        let Some(base) = tree.delegated() else {
            let reason = format!("no group may be made in `{}` or above it", tree.own_directory().display());
            return refuse(reason, permission_hint());
        };
        let offered = std::fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        if offered.split_whitespace().any(|each| Some(each) == controller.name_v2()) {
            return None;
        }
        let reason = format!("the controller `{name}` is not delegated to `{}`", base.display());
        // The root offers all controllers of the kernel. Below it a parent, mostly systemd, withholds one.
        let fix = if base == tree.mount { self.fix_missing(controller) } else { fix_delegate(name, &base) };
        refuse(reason, fix)
    }

    fn refuse_devices(&self) -> Option<Refusal> {
        let refuse =
            |reason: &str, fix: &str| Some(Refusal { limit: "devices", reason: reason.into(), fix: fix.into() });
        if !is_host_root() {
            return refuse("only root of the host may limit devices", "run as root");
        }
        if self.v2.is_none() && !self.is_v1(Controller::Devices) {
            return refuse("no controller `devices` is mounted", "mount -t cgroup2 none /sys/fs/cgroup");
        }
        None
    }

    /// Looks for the file in an existing group like the new one.
    fn refuse_write(&self, write: &Write, limit: &'static str) -> Option<Refusal> {
        let tree = match write.controller.and_then(|controller| self.v1_of(controller)) {
            Some(tree) => tree,
            None => self.v2.as_ref()?,
        };
        let sample = sample_group(tree, write.controller?)?;
        if sample.join(&write.file).exists() {
            return None;
        }
        let fix = match &write.missing {
            Missing::Ignore => return None,
            Missing::Instead(other, _) if sample.join(other).exists() => return None,
            Missing::NoSwap if write.value.starts_with(['-', 'm']) || !has_swap() => return None,
            Missing::NoSwap => "boot with the kernel parameter swapaccount=1".to_owned(),
            _ => "use a kernel that has this limit".to_owned(),
        };
        // The sample group may vanish meanwhile: then its missing file proves nothing.
        if !sample.join("cgroup.procs").exists() {
            return None;
        }
        Some(Refusal { limit, reason: format!("the kernel has no `{}`", write.file), fix })
    }

    fn fix_missing(&self, controller: Controller) -> String {
        match (controller, self.layout()) {
            // Kernels of Debian and Raspberry Pi disable it by default.
            (Controller::Memory, _) => "boot with the kernel parameters cgroup_enable=memory swapaccount=1".to_owned(),
            (_, Layout::Unified) => format!("use a kernel with the cgroup controller `{}`", controller.name_v1()),
            _ => "boot with the kernel parameter systemd.unified_cgroup_hierarchy=1".to_owned(),
        }
    }
}

fn limit_name(controller: Controller, file: &str) -> &'static str {
    match controller {
        Controller::Memory if file.contains("swap.max") || file.contains("memsw") => "swap",
        Controller::Cpu => "cpus",
        Controller::Cpuacct => "cpu_time",
        Controller::Hugetlb => "hugepages",
        Controller::NetCls | Controller::NetPrio => "network",
        Controller::Io => "io",
        other => other.name_v1(),
    }
}

/// The root lacks many files of a new group.
fn sample_group(tree: &Tree, controller: Controller) -> Option<PathBuf> {
    let own = tree.own_directory();
    let is_v2 = tree.controllers.is_empty();
    let has = |group: &Path| {
        // A v2 group has a controller's files only with the controller.
        let given = || std::fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        !is_v2 || Controllers::parse_v2(&given()).has(controller)
    };
    if own != tree.mount && has(&own) {
        return Some(own);
    }
    let entries = std::fs::read_dir(&tree.mount).ok()?.flatten();
    let mut groups =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    groups.find(|group| has(group))
}

fn fix_delegate(controller: &str, base: &Path) -> String {
    if base.components().any(|name| name.as_os_str().to_string_lossy().starts_with("user@")) {
        format!("add `{controller}` to Delegate= of user@.service, and log in again")
    } else {
        format!("add `{controller}` to Delegate= of the unit, or hand it down in `{}`", base.join("..").display())
    }
}
