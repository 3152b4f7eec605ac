//! Checks what this machine and this user can enforce, before anything is created.

use crate::cgroup::{Hierarchy, Purpose, Refusal};
use crate::error::{Error, Kind, Result};
use crate::spec::Container;
use crate::spec::resources::Resources;
use crate::{landlock, ns};
use std::sync::OnceLock;

/// Whether we can mount disk images, map any range of ids and make device nodes. Root of another user namespace (a
/// rootless container, `unshare -r`) counts as an ordinary user.
pub(crate) fn privileged() -> bool {
    static PRIVILEGED: OnceLock<bool> = OnceLock::new();
    *PRIVILEGED.get_or_init(|| {
        rustix::process::geteuid().is_root()
            && caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap_or(false)
            && ns::is_initial()
    })
}

/// In a container with a separate user namespace.
pub(crate) fn nested() -> bool {
    rustix::process::geteuid().is_root() && !ns::is_initial()
}

/// A sandbox around us may deny new namespaces.
fn check_surroundings() -> Result<()> {
    if crate::sys::clone::can_clone() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Namespace,
        "a seccomp filter around us refuses new namespaces, as inside a sandbox of brig or a Docker container",
    )
    .doing("make a sandbox")
    .hint("run brig outside of that sandbox or container"))
}

#[derive(Debug)]
pub(crate) struct Checked {
    pub(super) hierarchy: Option<Hierarchy>,
    /// Allowed to be missing: name and reason.
    pub missing: Vec<(String, String)>,
}

/// Removes limits that may be missing. If none may, making the cgroups is the check, undone after a failure, which
/// [`thoroughly`] reports. A check ahead costs a tenth of the time to the clone.
pub(crate) fn check(spec: &mut Container) -> Result<Checked> {
    if !spec.may_degrade.is_empty() || spec.file_system.scratch.rates.any() || landlock::abi().is_none() {
        return thoroughly(spec);
    }
    check_surroundings()?;
    let hierarchy = spec.resources.as_ref().map(|_| Hierarchy::probe()).transpose()?;
    Ok(Checked { hierarchy, missing: weaker_landlock().into_iter().collect() })
}

/// Accepted without a flag: namespaces and ids do the same. The receipt has it.
fn weaker_landlock() -> Option<(String, String)> {
    let (abi, lack) = (landlock::abi()?, landlock::lacks()?);
    Some(("landlock".to_owned(), format!("this kernel has {lack} (ABI {abi})")))
}

/// The error names all limits that cannot be enforced.
pub(crate) fn thoroughly(spec: &mut Container) -> Result<Checked> {
    limits(&mut spec.resources, &spec.may_degrade)
}

pub(super) fn limits(wanted: &mut Option<Resources>, may_degrade: &[String]) -> Result<Checked> {
    check_surroundings()?;
    let mut missing: Vec<Missing> = Vec::new();
    if landlock::abi().is_none() {
        missing.push(Missing {
            name: "landlock",
            reason: "this kernel has no Landlock".into(),
            fix: "boot a kernel of 5.13 or newer with `lsm=landlock,…`".into(),
        });
    }
    let mut hierarchy = None;
    if let Some(resources) = wanted {
        let refusals = hierarchy.insert(Hierarchy::probe()?).refusals(Purpose::Task, resources)?;
        let no_group = refusals.iter().find(|refusal| matches!(refusal.limit, "memory" | "pids")).cloned();
        // Without a cgroup there is nothing to freeze.
        let matters = |refusal: &Refusal| refusal.limit != "freezer" || no_group.is_none();
        for refusal in refusals.into_iter().filter(matters) {
            for name in names_of(&refusal, resources) {
                missing.push(Missing { name, reason: refusal.reason.clone(), fix: refusal.fix.clone() });
            }
        }
        if let Some(cause) = no_group {
            // Without these limits no cgroup is made, and nothing else is counted.
            for name in counted(resources) {
                if !missing.iter().any(|each| each.name == name) {
                    missing.push(Missing {
                        name,
                        reason: format!("without a group for `{}` nothing counts it", cause.limit),
                        fix: cause.fix.clone(),
                    });
                }
            }
            *wanted = None;
        } else {
            missing.iter().for_each(|each| leave_out(each.name, resources));
        }
    }
    let refused: Vec<_> = missing.iter().filter(|each| !may_degrade.iter().any(|name| name == each.name)).collect();
    if let Some(first) = refused.first() {
        let quoted: Vec<_> = refused.iter().map(|each| format!("`{}`", each.name)).collect();
        let names: Vec<_> = missing.iter().map(|each| each.name).collect();
        let kind = if first.name == "landlock" { Kind::Landlock } else { Kind::LimitUnenforceable };
        return Err(Error::new(kind, first.reason.clone())
            .doing(format!("enforce {}", quoted.join(", ")))
            .hint(format!("{}; or go without: --allow-degraded {}", first.fix, names.join(","))));
    }
    let missing =
        missing.into_iter().map(|each| (each.name.to_owned(), each.reason)).chain(weaker_landlock()).collect();
    Ok(Checked { hierarchy, missing })
}

struct Missing {
    name: &'static str,
    reason: String,
    fix: String,
}

/// As on the command line: one controller counts both kinds of input and output.
fn names_of(refusal: &Refusal, resources: &Resources) -> Vec<&'static str> {
    match refusal.limit {
        "io" => counted(resources).filter(|name| name.starts_with("io_")).collect(),
        name => vec![name],
    }
}

fn leave_out(name: &str, resources: &mut Resources) {
    match name {
        "swap" => resources.memory.swap = None,
        "cpus" => (resources.cpu.quota, resources.cpu.period) = (None, None),
        "io_bps" => {
            resources.block_io.throttle_read_bps_device.clear();
            resources.block_io.throttle_write_bps_device.clear();
        }
        "io_iops" => {
            resources.block_io.throttle_read_iops_device.clear();
            resources.block_io.throttle_write_iops_device.clear();
        }
        // `cpu_time` is only read; without `memory` or `pids` no limits remain.
        _ => {}
    }
}

/// The limits, and processor time for the supervisor.
fn counted(resources: &Resources) -> impl Iterator<Item = &'static str> {
    let io = &resources.block_io;
    [
        ("memory", resources.memory.limit.is_some()),
        ("swap", resources.memory.swap.is_some()),
        ("pids", resources.pids.limit.is_some()),
        ("cpus", resources.cpu.quota.is_some()),
        ("cpu_time", true),
        ("io_bps", !io.throttle_read_bps_device.is_empty()),
        ("io_iops", !io.throttle_read_iops_device.is_empty()),
    ]
    .into_iter()
    .filter_map(|(name, is_set)| is_set.then_some(name))
}

#[derive(Debug)]
pub(crate) struct Possible {
    pub groups: String,
    /// Name, reason, and one action for the operator.
    pub refused: Vec<(&'static str, String, String)>,
}

/// Changes nothing.
pub(crate) fn possible(limits: &Resources) -> Result<Possible> {
    let hierarchy = Hierarchy::probe()?;
    let refusals = hierarchy.refusals(Purpose::Task, limits)?;
    let refused = refusals.into_iter().map(|refusal| (refusal.limit, refusal.reason, refusal.fix)).collect();
    Ok(Possible { groups: hierarchy.description(), refused })
}
