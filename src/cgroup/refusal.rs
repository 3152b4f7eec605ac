//! Which limits cannot be enforced here, found out before anything is made.

use super::controller::{Controller, Controllers};
use super::create::Purpose;
use super::hierarchy::{Hierarchy, Layout, Tree, is_ours};
use super::plan;
use super::write::{Missing, Write};
use crate::error::Result;
use crate::spec::resources::Resources;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A limit that cannot be enforced on this machine as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refusal {
    /// Which: `memory`, `swap`, `pids`, `cpus`, `cpu_time`, `io`, `cpuset`, `hugepages`, `rdma`, `network`, `devices`.
    pub limit: &'static str,
    pub reason: String,
    /// What to do about it, one action.
    pub fix: String,
}

impl Hierarchy {
    /// Which of `limits` (and of what `purpose` must be able to measure) cannot be had here. Changes nothing.
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
            add(self.refuse_controller(controller, name_of(controller, "")));
        }
        if !limits.devices.is_empty() {
            add(self.refuse_devices());
        }
        for write in &writes {
            let Some(controller) = write.controller else { continue };
            let limit = name_of(controller, &write.file);
            add(self.refuse_controller(controller, limit).or_else(|| self.refuse_write(write, limit)));
        }
        Ok(refusals)
    }

    fn refuse_controller(&self, controller: Controller, limit: &'static str) -> Option<Refusal> {
        let refuse = |reason: String, fix: String| Some(Refusal { limit, reason, fix });
        if let Some(tree) = self.v1_of(controller) {
            let own = tree.own_directory();
            if is_ours(&own) {
                return None;
            }
            return refuse(format!("no group may be made in `{}`", own.display()), fix_permission());
        }
        let name = controller.name_v1();
        let Some(tree) = self.v2.as_ref().filter(|_| controller.name_v2().is_some()) else {
            return refuse(format!("no controller `{name}` is mounted"), self.fix_missing(controller));
        };
        let Some(base) = tree.delegated() else {
            let reason = format!("no group may be made in `{}` or above it", tree.own_directory().display());
            return refuse(reason, fix_permission());
        };
        let offered = std::fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        if offered.split_whitespace().any(|each| Some(each) == controller.name_v2()) {
            return None;
        }
        let reason = format!("the controller `{name}` is not given to `{}`", base.display());
        // At the root the kernel offers all it has; below it a parent, in practice systemd, withholds it.
        let fix = if base == tree.mount { self.fix_missing(controller) } else { fix_delegate(name, &base) };
        refuse(reason, fix)
    }

    fn refuse_devices(&self) -> Option<Refusal> {
        let refuse =
            |reason: &str, fix: &str| Some(Refusal { limit: "devices", reason: reason.into(), fix: fix.into() });
        if !super::is_host_root() {
            return refuse("only root of the host may limit devices", "run as root");
        }
        if self.v2.is_none() && !self.is_v1(Controller::Devices) {
            return refuse("no controller `devices` is mounted", "mount -t cgroup2 none /sys/fs/cgroup");
        }
        None
    }

    /// The file itself, looked for where it would be, in a group like the one that will be made.
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
        // Another task's group may have gone meanwhile, and its files with it: that says nothing.
        if !sample.join("cgroup.procs").exists() {
            return None;
        }
        Some(Refusal { limit, reason: format!("the kernel has no `{}`", write.file), fix })
    }

    fn fix_missing(&self, controller: Controller) -> String {
        match (controller, self.layout()) {
            // Debian and Raspberry Pi kernels leave it out unless told.
            (Controller::Memory, _) => "boot with the kernel parameters cgroup_enable=memory swapaccount=1".to_owned(),
            (_, Layout::Unified) => format!("use a kernel with the cgroup controller `{}`", controller.name_v1()),
            _ => "boot with the kernel parameter systemd.unified_cgroup_hierarchy=1".to_owned(),
        }
    }
}

/// The word that users know it by.
fn name_of(controller: Controller, file: &str) -> &'static str {
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

/// A group that has the files a new one will have; none if there is none to be found. The root lacks many of them.
fn sample_group(tree: &Tree, controller: Controller) -> Option<PathBuf> {
    let own = tree.own_directory();
    let is_v2 = tree.controllers.is_empty();
    let has = |group: &Path| {
        // On v2 a group has a controller's files only if it was given the controller.
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

/// Whether there is any swap that a container could use.
pub(super) fn has_swap() -> bool {
    // One line of headings, then one a swap area; a kernel without swap has no such file.
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

/// What is done about a group that may not be made.
pub(super) fn fix_permission() -> String {
    let has_systemd = Path::new("/run/systemd/system").exists();
    let fix = match (rustix::process::geteuid().is_root(), has_systemd) {
        (true, _) => {
            "mount the cgroup file system writable; inside a container, give that a group of its own to manage"
        }
        (false, true) => "systemd-run --user --scope -p Delegate=yes brig …",
        (false, false) => "run as root, or have root chown a group to you and start you in a child of it",
    };
    fix.to_owned()
}

fn fix_delegate(controller: &str, base: &Path) -> String {
    if base.components().any(|name| name.as_os_str().to_string_lossy().starts_with("user@")) {
        format!("add `{controller}` to Delegate= of user@.service, and log in again")
    } else {
        format!("add `{controller}` to Delegate= of the unit, or hand it down in `{}`", base.join("..").display())
    }
}
