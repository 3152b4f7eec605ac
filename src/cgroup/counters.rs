//! Reads a container's counters, whose files have other names on v1 and v2. A missing file counts nothing, as with
//! runc.

use super::controller::Controller;
use super::group::{Cgroup, Group};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The unit of `cpuacct.stat` (`USER_HZ`, always 100 on Linux).
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// `None` where no file has the counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Nanoseconds.
    pub cpu_total_ns: Option<u64>,
    pub cpu_user_ns: Option<u64>,
    pub cpu_system_ns: Option<u64>,
    /// Periods in which the quota stopped the container, and the time.
    pub throttled_periods: Option<u64>,
    pub throttled_ns: Option<u64>,
    /// Bytes.
    pub memory_current: Option<u64>,
    pub memory_peak: Option<u64>,
    pub swap_current: Option<u64>,
    /// Processes and threads.
    pub pids_current: Option<u64>,
    pub pids_peak: Option<u64>,
    /// Block devices.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
}

/// Times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct CpuTime {
    pub total: Option<u64>,
    pub user: Option<u64>,
    pub system: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
}

/// On v1 `Swap` is memory and swap together.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryKind {
    All,
    Swap,
    Kernel,
    KernelTcp,
}

/// Bytes; `None` without a file or a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryCounters {
    pub current: Option<u64>,
    pub peak: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoUnit {
    Bytes,
    Operations,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IoCounter {
    pub major: u64,
    pub minor: u64,
    pub unit: IoUnit,
    /// `Read`, `Write`, and on v1 also `Sync`, `Async`, `Discard` and `Total`.
    pub operation: String,
    pub value: u64,
}

impl Cgroup {
    pub(crate) fn usage(&self) -> Result<Usage> {
        let cpu = self.cpu_time();
        let mut usage = Usage {
            cpu_total_ns: cpu.total,
            cpu_user_ns: cpu.user,
            cpu_system_ns: cpu.system,
            throttled_periods: cpu.throttled_periods,
            throttled_ns: cpu.throttled,
            ..Usage::default()
        };
        if let Some(group) = self.group(Controller::Memory) {
            let memory = memory(group, MemoryKind::All);
            (usage.memory_current, usage.memory_peak) = (memory.current, memory.peak);
            usage.swap_current = number(group, memory_file(group, MemoryKind::Swap, "current", "usage_in_bytes"));
            if !group.is_v2 {
                let both = usage.swap_current.zip(usage.memory_current);
                usage.swap_current = both.map(|(both, memory)| both.saturating_sub(memory));
            }
        }
        if let Some(group) = self.group(Controller::Pids) {
            usage.pids_current = number(group, "pids.current");
            usage.pids_peak = number(group, "pids.peak");
        }
        if let Some(group) = self.group(Controller::Io) {
            let table = io(group);
            let sum = |unit: IoUnit, operation: &str| {
                let matches = |each: &&IoCounter| each.unit == unit && each.operation == operation;
                table.as_ref().map(|table| table.iter().filter(matches).map(|each| each.value).sum())
            };
            (usage.read_bytes, usage.written_bytes) = (sum(IoUnit::Bytes, "Read"), sum(IoUnit::Bytes, "Write"));
            (usage.reads, usage.writes) = (sum(IoUnit::Operations, "Read"), sum(IoUnit::Operations, "Write"));
        }
        Ok(usage)
    }

    /// Nanoseconds, by one read (v1: two). A processor's tick behind, at most 10 ms.
    pub(crate) fn processor_time(&self) -> Option<u64> {
        self.used_time().total
    }

    /// v1 has the quota in another controller, `cpu`.
    pub(super) fn cpu_time(&self) -> CpuTime {
        let mut time = self.used_time();
        if let Some(group) = self.group(Controller::Cpu).filter(|group| !group.is_v2) {
            let text = text(group, "cpu.stat");
            let stat = flat(&text);
            (time.periods, time.throttled_periods) = (get(&stat, "nr_periods"), get(&stat, "nr_throttled"));
            time.throttled = get(&stat, "throttled_time");
        }
        time
    }

    fn used_time(&self) -> CpuTime {
        let mut time = CpuTime::default();
        if let Some(stat) = self.v2().and_then(|group| group.directory.count("cpu.stat").ok()) {
            let stat = flat(&stat);
            let nanoseconds = |key: &str| stat.get(key).map(|value| value * 1000);
            time.total = nanoseconds("usage_usec");
            (time.user, time.system) = (nanoseconds("user_usec"), nanoseconds("system_usec"));
            (time.periods, time.throttled_periods) = (get(&stat, "nr_periods"), get(&stat, "nr_throttled"));
            time.throttled = nanoseconds("throttled_usec");
        } else if let Some(group) = self.group(Controller::Cpuacct) {
            time.total = number(group, "cpuacct.usage");
            let text = text(group, "cpuacct.stat");
            let stat = flat(&text);
            let nanoseconds = |key: &str| stat.get(key).map(|ticks| ticks * NANOSECONDS_PER_TICK);
            (time.user, time.system) = (nanoseconds("user"), nanoseconds("system"));
        }
        time
    }
}

pub(super) fn memory_file(group: &Group, kind: MemoryKind, v2: &str, v1: &str) -> String {
    match (group.is_v2, kind) {
        (true, MemoryKind::All) => format!("memory.{v2}"),
        (true, MemoryKind::Swap) => format!("memory.swap.{v2}"),
        // v2 counts kernel memory as memory and has no such file.
        (true, MemoryKind::Kernel | MemoryKind::KernelTcp) => format!("memory.kmem.{v2}"),
        (false, MemoryKind::All) => format!("memory.{v1}"),
        (false, MemoryKind::Swap) => format!("memory.memsw.{v1}"),
        (false, MemoryKind::Kernel) => format!("memory.kmem.{v1}"),
        (false, MemoryKind::KernelTcp) => format!("memory.kmem.tcp.{v1}"),
    }
}

pub(super) fn memory(group: &Group, kind: MemoryKind) -> MemoryCounters {
    MemoryCounters {
        current: number(group, memory_file(group, kind, "current", "usage_in_bytes")),
        peak: number(group, memory_file(group, kind, "peak", "max_usage_in_bytes")),
    }
}

/// `None` if the group has no such file.
pub(super) fn io(group: &Group) -> Option<Vec<IoCounter>> {
    if group.is_v2 {
        return group.directory.count("io.stat").ok().map(|text| io_v2(&text));
    }
    let mut found = None;
    for (file, unit) in [
        ("blkio.throttle.io_service_bytes_recursive", IoUnit::Bytes),
        ("blkio.throttle.io_serviced_recursive", IoUnit::Operations),
    ] {
        if let Ok(text) = group.directory.count(file) {
            found.get_or_insert_with(Vec::new).extend(text.lines().filter_map(|line| io_v1(line, unit)));
        }
    }
    found
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …` for each device. Discards have no name in v1's tables and are left out.
fn io_v2(text: &str) -> Vec<IoCounter> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some((major, minor)) = words.next().and_then(device) else { continue };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let (unit, operation) = match key {
                "rbytes" => (IoUnit::Bytes, "Read"),
                "wbytes" => (IoUnit::Bytes, "Write"),
                "rios" => (IoUnit::Operations, "Read"),
                "wios" => (IoUnit::Operations, "Write"),
                _ => continue,
            };
            let Ok(value) = value.parse() else { continue };
            found.push(IoCounter { major, minor, unit, operation: operation.to_owned(), value });
        }
    }
    found
}

/// `8:0 Read 1`. The last line is a total without a device.
fn io_v1(line: &str, unit: IoUnit) -> Option<IoCounter> {
    let mut words = line.split(' ');
    let (major, minor) = device(words.next()?)?;
    Some(IoCounter { major, minor, unit, operation: words.next()?.to_owned(), value: words.next()?.parse().ok()? })
}

fn device(word: &str) -> Option<(u64, u64)> {
    let (major, minor) = word.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Empty if the file is missing.
pub(super) fn text(group: &Group, file: impl AsRef<str>) -> String {
    group.directory.count(file.as_ref()).unwrap_or_default()
}

/// `None` for `max`.
pub(super) fn number(group: &Group, file: impl AsRef<str>) -> Option<u64> {
    group.directory.count(file.as_ref()).ok()?.trim().parse().ok()
}

/// Parses `KEY VALUE` lines.
pub(super) fn flat(text: &str) -> BTreeMap<&str, u64> {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(key, value)| Some((key, value.trim().parse().ok()?))).collect()
}

fn get(counters: &BTreeMap<&str, u64>, key: &str) -> Option<u64> {
    counters.get(key).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(table: &[IoCounter]) -> String {
        let row = |each: &IoCounter| {
            let IoCounter { major, minor, unit, operation, value } = each;
            format!("{major}:{minor} {unit:?} {operation} {value}")
        };
        table.iter().map(row).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn counters_parse_by_key() {
        assert_eq!(flat("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").get("oom_kill"), Some(&3));
        let v2 = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=9 dios=9\n8:16 rbytes=10 wbytes=20 rios=30 wios=x\n";
        assert_eq!(
            show(&io_v2(v2)),
            "8:0 Bytes Read 1, 8:0 Bytes Write 2, 8:0 Operations Read 3, 8:0 Operations Write 4, \
             8:16 Bytes Read 10, 8:16 Bytes Write 20, 8:16 Operations Read 30"
        );
        let v1 = "254:0 Read 5\n254:0 Write 6\n254:0 Total 11\n254:16 Read 1\nTotal 11\n";
        let v1: Vec<_> = v1.lines().filter_map(|line| io_v1(line, IoUnit::Bytes)).collect();
        assert_eq!(show(&v1), "254:0 Bytes Read 5, 254:0 Bytes Write 6, 254:0 Bytes Total 11, 254:16 Bytes Read 1");
    }
}
