//! The data of an `events` line of type `stats`: names and shape are runc's (`types/events.go`), since its callers parse
//! them. What Go leaves out when it is zero is left out here too.
//!
//! `read` fills it. Not here: the line around it, and Intel RDT and network interfaces, which are not of a cgroup.

mod read;

use serde::Serialize;
use std::collections::BTreeMap;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Stats {
    pub cpu: Cpu,
    pub cpuset: Cpuset,
    pub memory: Memory,
    pub pids: Pids,
    pub blkio: Blkio,
    pub hugetlb: BTreeMap<String, Hugetlb>,
    /// Always empty: filled by whoever knows of Intel RDT.
    pub intel_rdt: Empty,
    /// Always `null`, as runc has it for a container without interfaces of its own making.
    pub network_interfaces: Option<()>,
}

/// `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Empty {}

/// Processor time.
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

/// How the quota held it back.
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

/// Percentages of time, and microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PressureLine {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total: u64,
}

/// The files of v1's `cpuset`.
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

/// Memory; `swap` is memory and swap together on every layout, as v1 counts.
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

/// Block devices. The tables that only CFQ filled (kernel before 5.0) are left out, as when they are empty.
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

/// One device, one operation.
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

/// One size of huge pages; bytes.
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
