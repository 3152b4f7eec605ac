//! The limits as programs read them: read-only files of a control group at /sys/fs/cgroup, made at the start.
//!
//! The real group's files reveal more than needed. A JVM looks for a mount of cgroup v2 and for v2-only controllers in
//! /proc/cgroups; Node on a machine with v1 reads the v1 file.

use super::limits::LimitName;
use super::options::Options;
use crate::spec::root::{Attributes, Shown, Source, Step};
use std::path::Path;

const GROUP: &str = "/sys/fs/cgroup";
/// The files are bound from here to [`GROUP`], over the host's mount.
const FILES: &str = "/sys/fs/limits";
const TABLE: &str = "/proc/cgroups";
/// Microseconds.
const PERIOD: u64 = 100_000;

/// The steps follow that of /proc. `hierarchy` is the host's mount point of cgroup v2, and `is_mixed` whether the host
/// has v1 too.
pub(super) fn steps(options: &Options, hierarchy: Option<&Path>, is_mixed: bool) -> Vec<Step> {
    let limits = &options.limits;
    let holds = |name: LimitName| !options.may_degrade.iter().any(|each| each == name.word());
    let mut files = vec![("cgroup.controllers", "cpu memory pids\n".to_owned())];
    if holds(LimitName::Memory) {
        let line = format!("{}\n", limits.memory);
        files.extend([
            ("memory.max", line.clone()),
            ("memory/memory.limit_in_bytes", line.clone()),
            ("memory/memory.soft_limit_in_bytes", line),
        ]);
    }
    if holds(LimitName::Swap) {
        files.push(("memory.swap.max", format!("{}\n", limits.swap)));
    }
    if holds(LimitName::Cpus) {
        let quota = (limits.cpus * PERIOD as f64).round();
        files.push(("cpu.max", format!("{quota} {PERIOD}\n")));
    }
    if holds(LimitName::Pids) {
        files.push(("pids.max", format!("{}\n", limits.pids)));
    }
    let rows = ["cpuset", "cpu", "cpuacct", "memory", "pids"].map(|name| format!("{name}\t0\t1\t1\n"));
    files.push(("cgroups", format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\n{}", rows.concat())));
    let mut steps: Vec<Step> = files
        .into_iter()
        .map(|(name, text)| Step::File { at: Path::new(FILES).join(name), content: text.into(), mode: 0o444 })
        .collect();
    let show = |source, at: &str| Step::Bind {
        source,
        at: at.into(),
        attributes: Attributes::KERNEL.read_only(),
        shown: Shown::Stored,
    };
    let Some(hierarchy) = hierarchy else { return steps };
    steps.extend([show(Source::Host(hierarchy.into()), GROUP), show(Source::Root(FILES.into()), GROUP)]);
    if is_mixed {
        steps.push(show(Source::Root(Path::new(FILES).join("cgroups")), TABLE));
    }
    steps
}
