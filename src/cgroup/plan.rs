//! Plans the writes for a set of limits, one for each limited file, in order. Pure.
//!
//! runc, crun and systemd agree on the conversions from v1 to v2 (runtime-spec config-linux.md, runc
//! docs/cgroup-v2.md). Not here: device rules, which depend on those of the group (`devices`).

use super::controller::{Controller, Controllers};
use crate::error::{Error, Kind, Result};
use crate::spec::resources::{self, BlockIo, Resources, ThrottleDevice, weight_of_shares};
use crate::sys::weaken;
use std::collections::BTreeMap;

/// `MIN_SHARES`, `MAX_SHARES` of sched.h. The kernel clamps other values without an error.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;
/// The kernel's default. `cpu.max` needs a period with every quota.
const PERIOD_US: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// `None` for a file of the v2 group itself (`cgroup.*`).
    pub controller: Option<Controller>,
    pub file: String,
    pub value: String,
    pub missing: Missing,
}

/// If the kernel does not have the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The limit cannot be enforced.
    Refuse,
    /// No protection is lost.
    Ignore,
    /// An error only on a host with swap.
    NoSwap,
    /// Another file, which has its own scale.
    Instead(&'static str, String),
}

#[derive(Default)]
struct Plan(Vec<Write>);

impl Plan {
    fn add(&mut self, controller: Controller, file: impl Into<String>, value: impl ToString) {
        self.add_or(controller, file, value, Missing::Refuse);
    }

    fn add_or(&mut self, controller: Controller, file: impl Into<String>, value: impl ToString, missing: Missing) {
        let (file, value) = (file.into(), value.to_string());
        self.0.push(Write { controller: Some(controller), file, value, missing });
    }
}

pub(super) fn controllers(writes: &[Write]) -> Controllers {
    writes.iter().filter_map(|write| write.controller).collect()
}

fn bytes_or_max(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

pub(super) fn writes(limits: &Resources, is_v1: impl Fn(Controller) -> bool) -> Result<Vec<Write>> {
    let mut plan = Plan::default();
    pids(limits, &mut plan);
    if is_v1(Controller::Memory) {
        memory_v1(&limits.memory, &mut plan)?;
    } else {
        memory_v2(limits, &mut plan)?;
    }
    if is_v1(Controller::Cpu) {
        cpu_v1(&limits.cpu, &mut plan)?;
    } else {
        cpu_v2(&limits.cpu, &mut plan)?;
    }
    cpuset(limits, &mut plan);
    if is_v1(Controller::Io) {
        block_io_v1(&limits.block_io, &mut plan)?;
    } else {
        block_io_v2(&limits.block_io, &mut plan)?;
    }
    let hugetlb = if is_v1(Controller::Hugetlb) { "limit_in_bytes" } else { "max" };
    for each in &limits.hugepage_limits {
        check_file_name(&each.page_size)?;
        let file = format!("hugetlb.{}.{hugetlb}", each.page_size);
        plan.add(Controller::Hugetlb, file, each.limit);
        // Reserved pages that are not touched yet (kernel 5.7).
        let file = format!("hugetlb.{}.rsvd.{hugetlb}", each.page_size);
        plan.add_or(Controller::Hugetlb, file, each.limit, Missing::Ignore);
    }
    rdma(limits, &mut plan);
    network_v1(&limits.network, &is_v1, &mut plan)?;
    unified(limits, &is_v1, &mut plan)?;
    Ok(plan.0)
}

/// 0 becomes 1, as with runc and systemd: the container's own process counts.
fn pids(limits: &Resources, plan: &mut Plan) {
    if let Some(limit) = limits.pids.limit {
        plan.add(Controller::Pids, "pids.max", bytes_or_max(if limit == 0 { 1 } else { limit }));
    }
}

fn cpuset(limits: &Resources, plan: &mut Plan) {
    for (file, value) in [("cpuset.cpus", &limits.cpu.cpus), ("cpuset.mems", &limits.cpu.mems)] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            plan.add(Controller::Cpuset, file, value);
        }
    }
}

fn rdma(limits: &Resources, plan: &mut Plan) {
    for (device, limit) in &limits.rdma {
        let mut line = device.clone();
        for (key, value) in [("hca_handle", limit.hca_handles), ("hca_object", limit.hca_objects)] {
            if let Some(value) = value {
                line += &format!(" {key}={value}");
            }
        }
        plan.add(Controller::Rdma, "rdma.max", line);
    }
}

/// A key is a v2 file name; each line of a value is a write. Last, so that these values win.
fn unified(limits: &Resources, is_v1: &impl Fn(Controller) -> bool, plan: &mut Plan) -> Result<()> {
    for (key, value) in &limits.unified {
        let fail = |reason: String| Err(Error::new(Kind::Spec, reason).doing("use `linux.resources.unified`"));
        if key.contains('/') {
            return fail(format!("unified resource {key:?} must be a file name (no slashes)"));
        }
        let Some((prefix, _)) = key.split_once('.') else {
            return fail(format!("unified resource {key:?} must be in the form CONTROLLER.PARAMETER"));
        };
        let controller = match (prefix, Controller::from_v2(prefix)) {
            ("cgroup", _) => None,
            (_, Some(controller)) if !is_v1(controller) => Some(controller),
            _ => return fail(format!("unified resource {key:?} can't be set: controller {prefix:?} not available")),
        };
        for value in value.lines() {
            let (file, value) = (key.clone(), value.to_owned());
            plan.0.push(Write { controller, file, value, missing: Missing::Refuse });
        }
    }
    Ok(())
}

/// Such a page size would turn the file name into a path.
fn check_file_name(word: &str) -> Result<()> {
    if word.is_empty() || word.contains(['/', '\0']) {
        return Err(Error::new(Kind::Spec, "invalid page size: use a name such as `2MB`")
            .doing(format!("limit huge pages of `{}`", word.escape_default())));
    }
    Ok(())
}

fn memory_v1(memory: &resources::Memory, plan: &mut Plan) -> Result<()> {
    let (limit, mut swap) = memory.limit_and_swap()?;
    if limit == -1 && swap == 0 {
        swap = -1;
    }
    if limit != 0 {
        plan.add(Controller::Memory, "memory.limit_in_bytes", limit);
    }
    // If both are raised, the first write exceeds the old value of the second; `limits::write_all` repeats it.
    if swap != 0 {
        plan.add_or(Controller::Memory, "memory.memsw.limit_in_bytes", swap, Missing::NoSwap);
    }
    if let Some(reservation) = memory.reservation.filter(|&value| value != 0) {
        plan.add(Controller::Memory, "memory.soft_limit_in_bytes", reservation);
    }
    // `kernel` is ignored: the kernel refuses every value since 5.16, and memory.limit_in_bytes includes kernel memory.
    if let Some(tcp) = memory.kernel_tcp.filter(|&value| value != 0 && !weaken::is_off("uncounted-memory")) {
        plan.add(Controller::Memory, "memory.kmem.tcp.limit_in_bytes", tcp);
    }
    if memory.disable_oom_killer == Some(true) {
        plan.add(Controller::Memory, "memory.oom_control", 1);
    }
    if let Some(swappiness) = memory.swappiness {
        if swappiness > 100 {
            let reason = format!("invalid memory swappiness value: {swappiness} (valid range is 0-100)");
            return Err(Error::new(Kind::Spec, reason).doing("limit memory"));
        }
        plan.add(Controller::Memory, "memory.swappiness", swappiness);
    }
    Ok(())
}

fn cpu_v1(cpu: &resources::Cpu, plan: &mut Plan) -> Result<()> {
    if let Some(idle) = cpu.idle {
        plan.add(Controller::Cpu, "cpu.idle", idle);
    }
    if let Some(shares) = cpu.shares.filter(|&shares| shares != 0 && cpu.idle != Some(1)) {
        let refuse = |reason: String| Err(Error::new(Kind::Spec, reason).doing("limit cpu"));
        if shares < *SHARES.start() {
            return refuse(format!("the minimum allowed cpu-shares is {}", SHARES.start()));
        }
        if shares > *SHARES.end() {
            return refuse(format!("the maximum allowed cpu-shares is {}", SHARES.end()));
        }
        plan.add(Controller::Cpu, "cpu.shares", shares);
    }
    if let Some(period) = cpu.realtime_period.filter(|&period| period != 0) {
        plan.add(Controller::Cpu, "cpu.rt_period_us", period);
    }
    if let Some(runtime) = cpu.realtime_runtime.filter(|&runtime| runtime != 0) {
        plan.add(Controller::Cpu, "cpu.rt_runtime_us", runtime);
    }
    if let Some(period) = cpu.period.filter(|&period| period != 0) {
        plan.add(Controller::Cpu, "cpu.cfs_period_us", period);
    }
    if let Some(quota) = cpu.quota.filter(|&quota| quota != 0) {
        plan.add(Controller::Cpu, "cpu.cfs_quota_us", quota);
    }
    if let Some(burst) = cpu.burst {
        plan.add(Controller::Cpu, "cpu.cfs_burst_us", burst);
    }
    Ok(())
}

fn block_io_v1(io: &BlockIo, plan: &mut Plan) -> Result<()> {
    // CFQ's files ended with 5.0. BFQ's files have the same scale.
    if let Some(weight) = io.weight.filter(|&weight| weight != 0) {
        check_weight(weight)?;
        plan.add_or(Controller::Io, "blkio.weight", weight, Missing::Instead("blkio.bfq.weight", weight.to_string()));
    }
    if let Some(weight) = io.leaf_weight.filter(|&weight| weight != 0) {
        plan.add_or(Controller::Io, "blkio.leaf_weight", weight, Missing::Ignore);
    }
    for each in &io.weight_device {
        let line = |weight: u16| format!("{}:{} {weight}", each.major, each.minor);
        if let Some(weight) = each.weight.filter(|&weight| weight != 0) {
            check_weight(weight)?;
            let instead = Missing::Instead("blkio.bfq.weight_device", line(weight));
            plan.add_or(Controller::Io, "blkio.weight_device", line(weight), instead);
        }
        if let Some(weight) = each.leaf_weight.filter(|&weight| weight != 0) {
            plan.add_or(Controller::Io, "blkio.leaf_weight_device", line(weight), Missing::Ignore);
        }
    }
    for (file, list) in [
        ("blkio.throttle.read_bps_device", &io.throttle_read_bps_device),
        ("blkio.throttle.write_bps_device", &io.throttle_write_bps_device),
        ("blkio.throttle.read_iops_device", &io.throttle_read_iops_device),
        ("blkio.throttle.write_iops_device", &io.throttle_write_iops_device),
    ] {
        for each in list {
            plan.add(Controller::Io, file, format!("{}:{} {}", each.major, each.minor, each.rate));
        }
    }
    Ok(())
}

fn network_v1(network: &resources::Network, is_v1: &impl Fn(Controller) -> bool, plan: &mut Plan) -> Result<()> {
    let wanted = network.class_id.is_some() || !network.priorities.is_empty();
    if wanted && !is_v1(Controller::NetCls) && !is_v1(Controller::NetPrio) {
        return Err(Error::new(Kind::LimitUnenforceable, "cgroup v2 has no network controller")
            .doing("mark packets")
            .hint("remove `linux.resources.network`"));
    }
    if let Some(class) = network.class_id {
        plan.add(Controller::NetCls, "net_cls.classid", class);
    }
    for each in &network.priorities {
        plan.add(Controller::NetPrio, "net_prio.ifpriomap", format!("{} {}", each.name, each.priority));
    }
    Ok(())
}

fn memory_v2(limits: &Resources, plan: &mut Plan) -> Result<()> {
    let memory = &limits.memory;
    let limit = memory.limit.unwrap_or(0);
    let swap = memory.swap_alone()?;
    if limit != 0 {
        plan.add(Controller::Memory, "memory.max", bytes_or_max(limit));
    }
    if let Some(swap) = swap {
        plan.add_or(Controller::Memory, "memory.swap.max", bytes_or_max(swap), Missing::NoSwap);
    }
    // v2 has no file for `kernel`, `kernelTCP`, `swappiness` and `disableOOMKiller`.
    if let Some(reservation) = memory.reservation.filter(|&value| value != 0) {
        plan.add(Controller::Memory, "memory.low", bytes_or_max(reservation));
    }
    if limits.oom_group {
        plan.add(Controller::Memory, "memory.oom.group", 1);
    }
    Ok(())
}

fn cpu_v2(cpu: &resources::Cpu, plan: &mut Plan) -> Result<()> {
    if cpu.realtime_runtime.unwrap_or(0) != 0 || cpu.realtime_period.unwrap_or(0) != 0 {
        return Err(Error::new(Kind::LimitUnenforceable, "cgroup v2 has no limit for real-time tasks")
            .doing("limit cpu")
            .hint("remove `realtimeRuntime` and `realtimePeriod`"));
    }
    if let Some(idle) = cpu.idle {
        plan.add(Controller::Cpu, "cpu.idle", idle);
    }
    // The kernel refuses another weight than the lowest for an idle group.
    if let Some(shares) = cpu.shares.filter(|&shares| shares != 0 && cpu.idle != Some(1)) {
        plan.add(Controller::Cpu, "cpu.weight", weight_of_shares(shares));
    }
    let (quota, period) = (cpu.quota.unwrap_or(0), cpu.period.unwrap_or(0));
    if quota != 0 || period != 0 {
        let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
        plan.add(Controller::Cpu, "cpu.max", format!("{quota} {}", if period == 0 { PERIOD_US } else { period }));
    }
    // The kernel refuses a burst above the quota.
    if let Some(burst) = cpu.burst {
        plan.add(Controller::Cpu, "cpu.max.burst", burst);
    }
    Ok(())
}

fn block_io_v2(io: &BlockIo, plan: &mut Plan) -> Result<()> {
    for weight in io.weight.iter().copied().filter(|&weight| weight != 0) {
        check_weight(weight)?;
        let scaled = 1 + (u64::from(weight) - 10) * 9999 / 990;
        plan.add_or(Controller::Io, "io.bfq.weight", weight, Missing::Instead("io.weight", scaled.to_string()));
    }
    for each in &io.weight_device {
        if let Some(weight) = each.weight.filter(|&weight| weight != 0) {
            check_weight(weight)?;
            plan.add(Controller::Io, "io.bfq.weight", format!("{}:{} {weight}", each.major, each.minor));
        }
    }
    // One write for each device sets all its rates.
    let mut lines: BTreeMap<(i64, i64), String> = BTreeMap::new();
    let mut collect = |key: &str, list: &[ThrottleDevice]| {
        for each in list {
            let rate = if each.rate == 0 { "max".to_owned() } else { each.rate.to_string() };
            *lines.entry((each.major, each.minor)).or_default() += &format!(" {key}={rate}");
        }
    };
    collect("rbps", &io.throttle_read_bps_device);
    collect("wbps", &io.throttle_write_bps_device);
    collect("riops", &io.throttle_read_iops_device);
    collect("wiops", &io.throttle_write_iops_device);
    for ((major, minor), line) in lines {
        plan.add(Controller::Io, "io.max", format!("{major}:{minor}{line}"));
    }
    Ok(())
}

fn check_weight(weight: u16) -> Result<()> {
    if (10..=1000).contains(&weight) {
        return Ok(());
    }
    Err(Error::new(Kind::Spec, format!("the weight {weight} is not within 10 to 1000")).doing("limit block devices"))
}
