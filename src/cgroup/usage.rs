//! What the container uses and used, and the kernel's own word on which limit it ran into.

use super::Cgroup;
use super::controller::Controller;
use super::create::Group;
use crate::error::{Context, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A v1 counter of `cpuacct.stat` is in these, whatever the kernel's own tick (`USER_HZ`, always 100 on Linux).
pub(super) const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// Counters of the whole container. `None` where no file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Processor time in nanoseconds.
    pub cpu_total_ns: Option<u64>,
    pub cpu_user_ns: Option<u64>,
    pub cpu_system_ns: Option<u64>,
    /// How often and how long the quota made it wait.
    pub throttled_periods: Option<u64>,
    pub throttled_ns: Option<u64>,
    /// Bytes.
    pub memory_current: Option<u64>,
    pub memory_peak: Option<u64>,
    pub swap_current: Option<u64>,
    /// Processes and threads.
    pub pids_current: Option<u64>,
    pub pids_peak: Option<u64>,
    /// Bytes and operations on block devices.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
}

/// Proof of a limit that was hit, counted by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// Processes killed for want of memory inside the container's limit.
    pub oom_kills: u64,
    /// How often the limit was reached and nothing could be reclaimed.
    pub oom_events: u64,
    /// Forks refused by the limit of tasks.
    pub pids_max_hits: u64,
}

impl Cgroup {
    /// Opens the files of [`Cgroup::usage`] and [`Cgroup::evidence`] while there is time; what is refused then is refused again later, and said.
    pub(crate) fn open_counters(&self) {
        let _ = (self.usage(), self.evidence());
    }

    /// What the container uses now and used so far. A group that is gone counts nothing.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        self.read_cpu(&mut usage);
        if let Some(group) = self.group(Controller::Memory) {
            let names = if group.is_v2 {
                ["memory.current", "memory.peak", "memory.swap.current"]
            } else {
                ["memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.memsw.usage_in_bytes"]
            };
            usage.memory_current = number(group, names[0]);
            usage.memory_peak = number(group, names[1]);
            usage.swap_current = number(group, names[2]);
            if !group.is_v2 {
                // v1 counts both together.
                let both = usage.swap_current.zip(usage.memory_current);
                usage.swap_current = both.map(|(both, memory)| both.saturating_sub(memory));
            }
        }
        if let Some(group) = self.group(Controller::Pids) {
            usage.pids_current = number(group, "pids.current");
            usage.pids_peak = number(group, "pids.peak");
        }
        if let Some(group) = self.group(Controller::Io) {
            read_io(group, &mut usage);
        }
        Ok(usage)
    }

    /// Any v2 group counts time, with or without a controller; v1 has one controller for the time and another for the
    /// quota.
    fn read_cpu(&self, usage: &mut Usage) {
        if let Some(stat) = self.v2().and_then(|group| group.directory.count("cpu.stat").ok()) {
            let stat = flat(&stat);
            let nanoseconds = |key: &str| stat.get(key).map(|value| value * 1000);
            usage.cpu_total_ns = nanoseconds("usage_usec");
            usage.cpu_user_ns = nanoseconds("user_usec");
            usage.cpu_system_ns = nanoseconds("system_usec");
            usage.throttled_periods = stat.get("nr_throttled").copied();
            usage.throttled_ns = nanoseconds("throttled_usec");
        } else if let Some(group) = self.group(Controller::Cpuacct) {
            usage.cpu_total_ns = number(group, "cpuacct.usage");
            let text = group.directory.count("cpuacct.stat").unwrap_or_default();
            let stat = flat(&text);
            usage.cpu_user_ns = stat.get("user").map(|ticks| ticks * NANOSECONDS_PER_TICK);
            usage.cpu_system_ns = stat.get("system").map(|ticks| ticks * NANOSECONDS_PER_TICK);
        }
        if let Some(group) = self.group(Controller::Cpu).filter(|group| !group.is_v2) {
            let text = group.directory.count("cpu.stat").unwrap_or_default();
            let stat = flat(&text);
            usage.throttled_periods = stat.get("nr_throttled").copied();
            usage.throttled_ns = stat.get("throttled_time").copied();
        }
    }

    /// Which limits the kernel says were hit.
    pub(crate) fn evidence(&self) -> Result<Evidence> {
        let mut evidence = Evidence::default();
        if let Some(group) = self.group(Controller::Memory) {
            let events = if group.is_v2 { "memory.events" } else { "memory.oom_control" };
            let text = count(group, events)?;
            let counts = flat(&text);
            let of = |key: &str| counts.get(key).copied().unwrap_or(0);
            evidence.oom_kills = of("oom_kill");
            // v1 counts in `memory.failcnt` every time the limit was touched, most of them reclaimed at once: no proof.
            evidence.oom_events = if group.is_v2 { of("oom") } else { of("oom_kill") };
        }
        if let Some(group) = self.group(Controller::Pids) {
            // The file is as old as 4.9 on both versions.
            let text = count(group, "pids.events")?;
            evidence.pids_max_hits = flat(&text).get("max").copied().unwrap_or(0);
        }
        Ok(evidence)
    }
}

fn count(group: &Group, file: &str) -> Result<String> {
    group
        .directory
        .count(file)
        .failing(Kind::Cgroup, || format!("read `{}`", group.directory.path().join(file).display()))
}

/// A file with one number; `max` is none.
pub(super) fn number(group: &Group, file: &str) -> Option<u64> {
    group.directory.count(file).ok()?.trim().parse().ok()
}

/// A file of `KEY VALUE` lines.
pub(super) fn flat(text: &str) -> BTreeMap<&str, u64> {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(key, value)| Some((key, value.trim().parse().ok()?))).collect()
}

fn read_io(group: &Group, usage: &mut Usage) {
    if group.is_v2 {
        let Ok(text) = group.directory.count("io.stat") else { return };
        let sum = sum_io_v2(&text);
        [usage.read_bytes, usage.written_bytes, usage.reads, usage.writes] = sum.map(Some);
        return;
    }
    for (file, read, written) in [
        ("blkio.throttle.io_service_bytes_recursive", &mut usage.read_bytes, &mut usage.written_bytes),
        ("blkio.throttle.io_serviced_recursive", &mut usage.reads, &mut usage.writes),
    ] {
        if let Ok(text) = group.directory.count(file) {
            let sum = sum_io_v1(&text);
            (*read, *written) = (Some(sum.0), Some(sum.1));
        }
    }
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …` for each device.
fn sum_io_v2(text: &str) -> [u64; 4] {
    let mut sum = [0; 4];
    for (key, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
        let keys = ["rbytes", "wbytes", "rios", "wios"];
        if let (Some(at), Ok(value)) = (keys.iter().position(|each| *each == key), value.parse::<u64>()) {
            sum[at] += value;
        }
    }
    sum
}

/// `8:0 Read 1` and so on for each device, then a total without a device.
fn sum_io_v1(text: &str) -> (u64, u64) {
    let of = |word: &str| {
        let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let values = lines.filter_map(|line| match line[..] {
            [_, operation, value] if operation == word => value.parse::<u64>().ok(),
            _ => None,
        });
        values.sum()
    };
    (of("Read"), of("Write"))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn counters_are_read_by_key_and_summed_over_devices() {
        assert_eq!(flat("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").get("oom_kill"), Some(&3));
        assert_eq!(
            sum_io_v2(
                "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=9 dios=9\n8:16 rbytes=10 wbytes=20 rios=30 wios=40\n"
            ),
            [11, 22, 33, 44]
        );
        assert_eq!(
            sum_io_v1("254:0 Read 5\n254:0 Write 6\n254:0 Sync 7\n254:0 Total 11\n254:16 Read 1\nTotal 11\n"),
            (6, 6)
        );
    }
}
