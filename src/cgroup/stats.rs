//! The data of an `events` line of type `stats`, in the form of runc (`types/events.go`), which callers parse. What Go
//! omits when it is zero is omitted here.

use super::controller::Controller;
use super::counters::{IoUnit, MemoryKind, flat, io, memory, memory_file, number, text};
use super::group::{Cgroup, Group};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Stats {
    pub cpu: Cpu,
    pub cpuset: Cpuset,
    pub memory: Memory,
    pub pids: Pids,
    pub blkio: Blkio,
    pub hugetlb: BTreeMap<String, Hugetlb>,
    /// The caller adds Intel RDT.
    pub intel_rdt: Empty,
    /// `null`, as with runc for a container whose interfaces it did not make.
    pub network_interfaces: Option<()>,
}

/// `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Empty {}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cpu {
    pub usage: CpuUsage,
    pub throttling: Throttling,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Pressure>,
}

/// Nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CpuUsage {
    #[serde(skip_serializing_if = "is_zero")]
    pub total: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percpu: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percpu_kernel: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percpu_user: Vec<u64>,
    pub kernel: u64,
    pub user: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Throttling {
    #[serde(skip_serializing_if = "is_zero")]
    pub periods: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled_periods: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled_time: u64,
}

/// `cpu.pressure` and the like (psi.rst).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pressure {
    pub some: PressureLine,
    pub full: PressureLine,
}

/// Averages are percentages; the total is microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PressureLine {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Cpuset {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u16>,
    pub cpu_exclusive: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mems: Vec<u16>,
    pub mem_hardwall: u64,
    pub mem_exclusive: u64,
    pub memory_migrate: u64,
    pub memory_spread_page: u64,
    pub memory_spread_slab: u64,
    pub memory_pressure: u64,
    pub sched_load_balance: u64,
    pub sched_relax_domain_level: i64,
}

/// `swap` is memory and swap together on every layout, as v1 counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    #[serde(skip_serializing_if = "is_zero")]
    pub cache: u64,
    pub usage: MemoryEntry,
    pub swap: MemoryEntry,
    pub kernel: MemoryEntry,
    #[serde(rename = "kernelTCP")]
    pub kernel_tcp: MemoryEntry,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub raw: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Pressure>,
}

/// Bytes; no limit is 2^64-1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryEntry {
    pub limit: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub usage: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub max: u64,
    pub failcnt: u64,
}

/// Tasks; no limit is 0, which is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Pids {
    #[serde(skip_serializing_if = "is_zero")]
    pub current: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
}

/// Without the tables that only CFQ filled (kernels before 5.0).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Blkio {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_service_bytes_recursive: Vec<BlkioEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_serviced_recursive: Vec<BlkioEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Pressure>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct BlkioEntry {
    #[serde(skip_serializing_if = "is_zero")]
    pub major: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub minor: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub value: u64,
}

/// Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Hugetlb {
    #[serde(skip_serializing_if = "is_zero")]
    pub usage: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub max: u64,
    pub failcnt: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Cgroup {
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats { cpu: self.cpu(), ..Stats::default() };
        if let Some(group) = self.group(Controller::Cpuset).filter(|group| !group.is_v2) {
            stats.cpuset = cpuset(group);
        }
        if let Some(group) = self.group(Controller::Memory) {
            stats.memory = if group.is_v2 { memory_v2(group) } else { memory_v1(group) };
        }
        if let Some(group) = self.group(Controller::Pids) {
            let limit = number(group, "pids.max").unwrap_or(0);
            stats.pids = Pids { current: number(group, "pids.current").unwrap_or(0), limit };
        }
        if let Some(group) = self.group(Controller::Io) {
            stats.blkio = blkio(group);
        }
        if let Some(group) = self.group(Controller::Hugetlb) {
            stats.hugetlb = hugetlb(group);
        }
        // Every v2 group counts pressure, with or without the controller.
        if let Some(group) = self.v2() {
            stats.cpu.psi = pressure(&text(group, "cpu.pressure"));
            stats.memory.psi = pressure(&text(group, "memory.pressure"));
            stats.blkio.psi = pressure(&text(group, "io.pressure"));
        }
        stats
    }

    fn cpu(&self) -> Cpu {
        let time = self.cpu_time();
        let zero = |value: Option<u64>| value.unwrap_or(0);
        let mut cpu = Cpu::default();
        cpu.usage.total = zero(time.total);
        (cpu.usage.user, cpu.usage.kernel) = (zero(time.user), zero(time.system));
        cpu.throttling.periods = zero(time.periods);
        cpu.throttling.throttled_periods = zero(time.throttled_periods);
        cpu.throttling.throttled_time = zero(time.throttled);
        // Only v1 counts by processor.
        if let Some(group) = self.group(Controller::Cpuacct) {
            let percpu = text(group, "cpuacct.usage_percpu");
            cpu.usage.percpu = percpu.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let all = text(group, "cpuacct.usage_all");
            (cpu.usage.percpu_user, cpu.usage.percpu_kernel) = all.lines().skip(1).filter_map(user_and_system).unzip();
        }
        cpu
    }
}

/// `CPU USER SYSTEM` of `cpuacct.usage_all`.
fn user_and_system(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace().skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn cpuset(group: &Group) -> Cpuset {
    let number = |file: &str| number(group, file).unwrap_or(0);
    Cpuset {
        cpus: list(&text(group, "cpuset.cpus")),
        cpu_exclusive: number("cpuset.cpu_exclusive"),
        mems: list(&text(group, "cpuset.mems")),
        mem_hardwall: number("cpuset.mem_hardwall"),
        mem_exclusive: number("cpuset.mem_exclusive"),
        memory_migrate: number("cpuset.memory_migrate"),
        memory_spread_page: number("cpuset.memory_spread_page"),
        memory_spread_slab: number("cpuset.memory_spread_slab"),
        memory_pressure: number("cpuset.memory_pressure"),
        sched_load_balance: number("cpuset.sched_load_balance"),
        sched_relax_domain_level: text(group, "cpuset.sched_relax_domain_level").trim().parse().unwrap_or(0),
    }
}

/// `0-3,7`.
fn list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn raw(group: &Group) -> BTreeMap<String, u64> {
    flat(&text(group, "memory.stat")).into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn memory_v1(group: &Group) -> Memory {
    let entry = |kind: MemoryKind| {
        let counters = memory(group, kind);
        let file = |name: &str| number(group, memory_file(group, kind, "", name)).unwrap_or(0);
        MemoryEntry {
            limit: file("limit_in_bytes"),
            usage: counters.current.unwrap_or(0),
            max: counters.peak.unwrap_or(0),
            failcnt: file("failcnt"),
        }
    };
    let raw = raw(group);
    Memory {
        cache: raw.get("cache").copied().unwrap_or(0),
        usage: entry(MemoryKind::All),
        swap: entry(MemoryKind::Swap),
        kernel: entry(MemoryKind::Kernel),
        kernel_tcp: entry(MemoryKind::KernelTcp),
        raw,
        psi: None,
    }
}

fn memory_v2(group: &Group) -> Memory {
    let entry = |kind: MemoryKind| {
        let counters = memory(group, kind);
        MemoryEntry {
            // `max` is not a number.
            limit: number(group, memory_file(group, kind, "max", "")).unwrap_or(u64::MAX),
            usage: counters.current.unwrap_or(0),
            max: counters.peak.unwrap_or(0),
            failcnt: 0,
        }
    };
    let (raw, usage, alone) = (raw(group), entry(MemoryKind::All), entry(MemoryKind::Swap));
    let limit = alone.limit.saturating_add(usage.limit);
    // The two peaks may be of different times: their sum is not a peak.
    let swap = MemoryEntry { limit, usage: alone.usage + usage.usage, max: 0, failcnt: 0 };
    Memory { cache: raw.get("file").copied().unwrap_or(0), usage, swap, raw, ..Memory::default() }
}

fn blkio(group: &Group) -> Blkio {
    let mut blkio = Blkio::default();
    for counter in io(group).unwrap_or_default() {
        let table = match counter.unit {
            IoUnit::Bytes => &mut blkio.io_service_bytes_recursive,
            IoUnit::Operations => &mut blkio.io_serviced_recursive,
        };
        let (major, minor, op, value) = (counter.major, counter.minor, counter.operation, counter.value);
        table.push(BlkioEntry { major, minor, op, value });
    }
    blkio
}

fn hugetlb(group: &Group) -> BTreeMap<String, Hugetlb> {
    let current = if group.is_v2 { ".current" } else { ".usage_in_bytes" };
    let names = std::fs::read_dir(group.directory.path()).into_iter().flatten().flatten();
    let sizes = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(current)?;
        (!size.contains('.')).then(|| size.to_owned())
    });
    let read = |size: String| {
        let number = |file: &str| number(group, format!("hugetlb.{size}{file}")).unwrap_or(0);
        let entry = if group.is_v2 {
            let events = text(group, format!("hugetlb.{size}.events"));
            Hugetlb { usage: number(current), max: 0, failcnt: flat(&events).get("max").copied().unwrap_or(0) }
        } else {
            Hugetlb { usage: number(current), max: number(".max_usage_in_bytes"), failcnt: number(".failcnt") }
        };
        (size, entry)
    };
    sizes.map(read).collect()
}

fn pressure(text: &str) -> Option<Pressure> {
    let mut pressure = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let mut read = PressureLine::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => read.avg10 = value.parse().ok()?,
                "avg60" => read.avg60 = value.parse().ok()?,
                "avg300" => read.avg300 = value.parse().ok()?,
                "total" => read.total = value.parse().ok()?,
                _ => {}
            }
        }
        let pressure: &mut Pressure = pressure.get_or_insert_default();
        match kind {
            "some" => pressure.some = read,
            "full" => pressure.full = read,
            _ => {}
        }
    }
    pressure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_pressure_parse() {
        assert_eq!(list("0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(list("\n"), Vec::<u16>::new());
        let psi = pressure(
            "some avg10=1.50 avg60=0.00 avg300=0.25 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
        let psi = serde_json::to_string(&psi).unwrap();
        assert_eq!(
            psi,
            r#"{"some":{"avg10":1.5,"avg60":0.0,"avg300":0.25,"total":42},"full":{"avg10":0.0,"avg60":0.0,"avg300":0.0,"total":7}}"#
        );
    }

    #[test]
    fn empty_statistics_are_those_of_runc() {
        let none = r#"{"cpu":{"usage":{"kernel":0,"user":0},"throttling":{}},"cpuset":{"cpu_exclusive":0,"mem_hardwall":0,"mem_exclusive":0,"memory_migrate":0,"memory_spread_page":0,"memory_spread_slab":0,"memory_pressure":0,"sched_load_balance":0,"sched_relax_domain_level":0},"memory":{"usage":{"limit":0,"failcnt":0},"swap":{"limit":0,"failcnt":0},"kernel":{"limit":0,"failcnt":0},"kernelTCP":{"limit":0,"failcnt":0}},"pids":{},"blkio":{},"hugetlb":{},"intel_rdt":{},"network_interfaces":null}"#;
        assert_eq!(serde_json::to_string(&Stats::default()).unwrap(), none);
    }
}
