//! The v1 half of the plan.

use super::controller::Controller::{self, Cpu as CPU, Io as IO, Memory as MEMORY, NetCls, NetPrio};
use super::plan_v2::{check_memory, check_weight};
use super::write::{Missing, Plan};
use crate::error::{Error, Kind, Result};
use crate::spec::resources::{BlockIo, Cpu, Memory, Network};
use crate::sys::weaken;

/// The kernel clamps shares in silence (`MIN_SHARES`, `MAX_SHARES` of sched.h), so they are checked here.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

pub(super) fn memory(memory: &Memory, plan: &mut Plan) -> Result<()> {
    let (limit, mut swap) = check_memory(memory)?;
    if limit == -1 && swap == 0 {
        swap = -1;
    }
    if limit != 0 {
        plan.add(MEMORY, "memory.limit_in_bytes", limit);
    }
    // When both are raised the first is above the second's old value for a moment and is refused; whoever writes tries
    // what was refused once more after the rest.
    if swap != 0 {
        plan.add_or(MEMORY, "memory.memsw.limit_in_bytes", swap, Missing::NoSwap);
    }
    if let Some(reservation) = memory.reservation.filter(|&value| value != 0) {
        plan.add(MEMORY, "memory.soft_limit_in_bytes", reservation);
    }
    // `kernel` is left out: since 5.16 the kernel refuses every value, and memory.limit_in_bytes includes it.
    if let Some(tcp) = memory.kernel_tcp.filter(|&value| value != 0 && !weaken::is_off("uncounted-memory")) {
        plan.add(MEMORY, "memory.kmem.tcp.limit_in_bytes", tcp);
    }
    if memory.disable_oom_killer == Some(true) {
        plan.add(MEMORY, "memory.oom_control", 1);
    }
    if let Some(swappiness) = memory.swappiness {
        if swappiness > 100 {
            let reason = format!("invalid memory swappiness value: {swappiness} (valid range is 0-100)");
            return Err(Error::new(Kind::Spec, reason).doing("limit memory"));
        }
        plan.add(MEMORY, "memory.swappiness", swappiness);
    }
    Ok(())
}

pub(super) fn cpu(cpu: &Cpu, plan: &mut Plan) -> Result<()> {
    if let Some(idle) = cpu.idle {
        plan.add(CPU, "cpu.idle", idle);
    }
    if let Some(shares) = cpu.shares.filter(|&shares| shares != 0 && cpu.idle != Some(1)) {
        let refuse = |reason: String| Err(Error::new(Kind::Spec, reason).doing("limit cpu"));
        if shares < *SHARES.start() {
            return refuse(format!("the minimum allowed cpu-shares is {}", SHARES.start()));
        }
        if shares > *SHARES.end() {
            return refuse(format!("the maximum allowed cpu-shares is {}", SHARES.end()));
        }
        plan.add(CPU, "cpu.shares", shares);
    }
    if let Some(period) = cpu.realtime_period.filter(|&period| period != 0) {
        plan.add(CPU, "cpu.rt_period_us", period);
    }
    if let Some(runtime) = cpu.realtime_runtime.filter(|&runtime| runtime != 0) {
        plan.add(CPU, "cpu.rt_runtime_us", runtime);
    }
    if let Some(period) = cpu.period.filter(|&period| period != 0) {
        plan.add(CPU, "cpu.cfs_period_us", period);
    }
    if let Some(quota) = cpu.quota.filter(|&quota| quota != 0) {
        plan.add(CPU, "cpu.cfs_quota_us", quota);
    }
    if let Some(burst) = cpu.burst {
        plan.add(CPU, "cpu.cfs_burst_us", burst);
    }
    Ok(())
}

pub(super) fn block_io(io: &BlockIo, plan: &mut Plan) -> Result<()> {
    // CFQ's files are gone since 5.0; BFQ's have the same scale.
    if let Some(weight) = io.weight.filter(|&weight| weight != 0) {
        check_weight(weight)?;
        plan.add_or(IO, "blkio.weight", weight, Missing::Instead("blkio.bfq.weight", weight.to_string()));
    }
    if let Some(weight) = io.leaf_weight.filter(|&weight| weight != 0) {
        plan.add_or(IO, "blkio.leaf_weight", weight, Missing::Ignore);
    }
    for each in &io.weight_device {
        let line = |weight: u16| format!("{}:{} {weight}", each.major, each.minor);
        if let Some(weight) = each.weight.filter(|&weight| weight != 0) {
            check_weight(weight)?;
            let instead = Missing::Instead("blkio.bfq.weight_device", line(weight));
            plan.add_or(IO, "blkio.weight_device", line(weight), instead);
        }
        if let Some(weight) = each.leaf_weight.filter(|&weight| weight != 0) {
            plan.add_or(IO, "blkio.leaf_weight_device", line(weight), Missing::Ignore);
        }
    }
    for (file, list) in [
        ("blkio.throttle.read_bps_device", &io.throttle_read_bps_device),
        ("blkio.throttle.write_bps_device", &io.throttle_write_bps_device),
        ("blkio.throttle.read_iops_device", &io.throttle_read_iops_device),
        ("blkio.throttle.write_iops_device", &io.throttle_write_iops_device),
    ] {
        for each in list {
            plan.add(IO, file, format!("{}:{} {}", each.major, each.minor, each.rate));
        }
    }
    Ok(())
}

pub(super) fn network(network: &Network, is_v1: &impl Fn(Controller) -> bool, plan: &mut Plan) -> Result<()> {
    let wanted = network.class_id.is_some() || !network.priorities.is_empty();
    if wanted && !is_v1(NetCls) && !is_v1(NetPrio) {
        return Err(Error::new(Kind::LimitUnenforceable, "cgroup v2 has no network controller")
            .doing("mark packets")
            .hint("remove `linux.resources.network`"));
    }
    if let Some(class) = network.class_id {
        plan.add(NetCls, "net_cls.classid", class);
    }
    for each in &network.priorities {
        plan.add(NetPrio, "net_prio.ifpriomap", format!("{} {}", each.name, each.priority));
    }
    Ok(())
}
