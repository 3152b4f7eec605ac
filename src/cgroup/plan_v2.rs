//! The v2 half of the plan: how v1-minded numbers are said to the unified hierarchy.

use super::controller::Controller::{Cpu as CPU, Io as IO, Memory as MEMORY};
use super::write::{Missing, Plan, bytes_or_max};
use crate::error::{Error, Kind, Result};
use crate::spec::resources::{BlockIo, Cpu, Memory, Resources, ThrottleDevice};
use std::collections::BTreeMap;

/// The kernel's default period, which `cpu.max` must be told with every quota.
const PERIOD_US: u64 = 100_000;
/// The largest weights of v1 and v2 (`MAX_SHARES`, `CGROUP_WEIGHT_MAX`).
const SHARES_MAX: u64 = 262_144;
const WEIGHT_MAX: u64 = 10_000;

pub(super) fn memory(limits: &Resources, plan: &mut Plan) -> Result<()> {
    let memory = &limits.memory;
    let limit = memory.limit.unwrap_or(0);
    let swap = swap_alone(memory)?;
    if limit != 0 {
        plan.add(MEMORY, "memory.max", bytes_or_max(limit));
    }
    if let Some(swap) = swap {
        plan.add_or(MEMORY, "memory.swap.max", bytes_or_max(swap), Missing::NoSwap);
    }
    // `kernel`, `kernelTCP`, `swappiness` and `disableOOMKiller` have no file on v2: kernel memory counts as memory there.
    if let Some(reservation) = memory.reservation.filter(|&value| value != 0) {
        plan.add(MEMORY, "memory.low", bytes_or_max(reservation));
    }
    if limits.oom_group {
        plan.add(MEMORY, "memory.oom.group", 1);
    }
    Ok(())
}

/// v1 counts memory and swap together, v2 swap alone.
pub(super) fn swap_alone(memory: &Memory) -> Result<Option<i64>> {
    let (limit, swap) = check_memory(memory)?;
    match (limit, swap) {
        // Unlimited memory alone has always meant unlimited swap too.
        (-1, 0) => Ok(Some(-1)),
        (_, 0) => Ok(None),
        (_, -1) | (-1, _) => Ok(Some(swap)),
        (0, _) => Err(Error::new(Kind::Spec, "unable to set swap limit without memory limit").doing("limit memory")),
        _ => Ok(Some(swap - limit)),
    }
}

/// What is wrong on every version; 0 is unset.
pub(super) fn check_memory(memory: &Memory) -> Result<(i64, i64)> {
    let (limit, swap) = (memory.limit.unwrap_or(0), memory.swap.unwrap_or(0));
    let reason = if limit < -1 {
        format!("invalid memory value: {limit}")
    } else if swap < -1 {
        format!("invalid memory+swap value: {swap}")
    } else if limit > 0 && swap > 0 && swap < limit {
        "memory+swap limit should be >= memory limit".to_owned()
    } else {
        return Ok((limit, swap));
    };
    Err(Error::new(Kind::Spec, reason).doing("limit memory"))
}

pub(super) fn cpu(cpu: &Cpu, plan: &mut Plan) -> Result<()> {
    if cpu.realtime_runtime.unwrap_or(0) != 0 || cpu.realtime_period.unwrap_or(0) != 0 {
        return Err(Error::new(Kind::LimitUnenforceable, "cgroup v2 has no limit for real-time tasks")
            .doing("limit cpu")
            .hint("remove `realtimeRuntime` and `realtimePeriod`"));
    }
    if let Some(idle) = cpu.idle {
        plan.add(CPU, "cpu.idle", idle);
    }
    // An idle group has the lowest weight there is, and the kernel refuses to give it another.
    if let Some(shares) = cpu.shares.filter(|&shares| shares != 0 && cpu.idle != Some(1)) {
        plan.add(CPU, "cpu.weight", weight_of_shares(shares));
    }
    let (quota, period) = (cpu.quota.unwrap_or(0), cpu.period.unwrap_or(0));
    if quota != 0 || period != 0 {
        let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
        plan.add(CPU, "cpu.max", format!("{quota} {}", if period == 0 { PERIOD_US } else { period }));
    }
    // After the quota: a burst above it is refused.
    if let Some(burst) = cpu.burst {
        plan.add(CPU, "cpu.max.burst", burst);
    }
    Ok(())
}

/// 2..1024..262144 to 1..100..10000, smooth through all three points: quadratic in the logarithm (runc 1.3, crun 1.21;
/// the older straight line made a default container's weight 39).
pub(super) fn weight_of_shares(shares: u64) -> u64 {
    match shares {
        0..=2 => 1,
        SHARES_MAX.. => WEIGHT_MAX,
        _ => {
            let log = (shares as f64).log2();
            10f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil() as u64
        }
    }
}

pub(super) fn block_io(io: &BlockIo, plan: &mut Plan) -> Result<()> {
    for weight in io.weight.iter().copied().filter(|&weight| weight != 0) {
        check_weight(weight)?;
        let scaled = 1 + (u64::from(weight) - 10) * 9999 / 990;
        plan.add_or(IO, "io.bfq.weight", weight, Missing::Instead("io.weight", scaled.to_string()));
    }
    for each in &io.weight_device {
        if let Some(weight) = each.weight.filter(|&weight| weight != 0) {
            check_weight(weight)?;
            plan.add(IO, "io.bfq.weight", format!("{}:{} {weight}", each.major, each.minor));
        }
    }
    // One line a device, so that the kernel is asked once.
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
        plan.add(IO, "io.max", format!("{major}:{minor}{line}"));
    }
    Ok(())
}

pub(super) fn check_weight(weight: u16) -> Result<()> {
    if (10..=1000).contains(&weight) {
        return Ok(());
    }
    Err(Error::new(Kind::Spec, format!("the weight {weight} is not within 10 to 1000")).doing("limit block devices"))
}
