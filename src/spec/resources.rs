//! `linux.resources` of config.json (runtime-spec 1.3, config-linux.md "Control groups").
//!
//! `config.json`, `update --resources` and brig's records share the type. Unknown fields are ignored and `null` means
//! absent, as in the specification's own types.

use crate::error::{self, Error, Kind};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// The default limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Resources {
    /// In order: a later rule overrides an earlier one.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub devices: Vec<DeviceRule>,
    /// Memory and swap.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub memory: Memory,
    /// Processor time and placement.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub cpu: Cpu,
    /// Tasks: processes and threads.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub pids: Pids,
    /// Weights and throttles of block devices.
    #[serde(rename = "blockIO", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub block_io: BlockIo,
    /// Huge pages, by size.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub hugepage_limits: Vec<HugepageLimit>,
    /// Marks on packets; cgroup v1 only.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub network: Network,
    /// RDMA handles and objects, by device.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub rdma: BTreeMap<String, Rdma>,
    /// Files of cgroup v2 and their values, written last.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub unified: BTreeMap<String, String>,
    /// Lack of memory ends every process of the container, not one. On v2 this is `memory.oom.group`; on v1 the waiter
    /// for the OOM notification does it. Not in the specification.
    #[serde(skip)]
    pub oom_group: bool,
}

/// One device rule (`linux.resources.devices`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRule {
    /// Whether matching devices may be used.
    pub allow: bool,
    /// `a` (all, also if absent), `b` (block) or `c` (character).
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Absent or negative: every number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Absent or negative: every number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Letters of `rwm`; absent: all three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// Memory limits in bytes (`linux.resources.memory`); -1 is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Memory {
    /// Memory alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// Kept under pressure (v2), or v1's soft limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<i64>,
    /// Memory and swap together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<i64>,
    /// The kernel has no such limit since 5.16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<i64>,
    /// TCP buffers; v1 only.
    #[serde(rename = "kernelTCP", skip_serializing_if = "Option::is_none")]
    pub kernel_tcp: Option<i64>,
    /// 0 to 100; v1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swappiness: Option<u64>,
    /// Processes wait instead of being killed; v1 only.
    #[serde(rename = "disableOOMKiller", skip_serializing_if = "Option::is_none")]
    pub disable_oom_killer: Option<bool>,
    /// Always on with every supported kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_hierarchy: Option<bool>,
    /// Refuses a limit below the current use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_before_update: Option<bool>,
}

/// Processor time and placement (`linux.resources.cpu`); times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cpu {
    /// Weight on v1's scale, 2 to 262144.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// Time in each period; -1 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<i64>,
    /// Unused time for a later period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Length of a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Time for real-time tasks; v1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_runtime: Option<i64>,
    /// Period for real-time tasks; v1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_period: Option<u64>,
    /// A list such as `0-3,7`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Memory nodes, as a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<String>,
    /// 1: runs only when no other process needs the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<i64>,
}

/// The number of tasks (`linux.resources.pids`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pids {
    /// -1 is unlimited, 0 allows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
}

/// Block devices (`linux.resources.blockIO`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockIo {
    /// Relative weight, 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Against child groups; the kernel has no such weight since 5.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf_weight: Option<u16>,
    /// Weights by device.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub weight_device: Vec<WeightDevice>,
    /// Bytes read a second.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub throttle_read_bps_device: Vec<ThrottleDevice>,
    /// Bytes written a second.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub throttle_write_bps_device: Vec<ThrottleDevice>,
    /// Reads a second.
    #[serde(rename = "throttleReadIOPSDevice", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub throttle_read_iops_device: Vec<ThrottleDevice>,
    /// Writes a second.
    #[serde(rename = "throttleWriteIOPSDevice", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub throttle_write_iops_device: Vec<ThrottleDevice>,
}

/// The weight of one block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeightDevice {
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Relative weight, 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// See [`BlockIo::leaf_weight`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf_weight: Option<u16>,
}

/// A rate for one block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThrottleDevice {
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Bytes or operations a second; 0 is unlimited.
    pub rate: u64,
}

/// The limit of one huge page size (`linux.resources.hugepageLimits`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HugepageLimit {
    /// `2MB`, `1GB` and the like, as in the kernel's file names.
    pub page_size: String,
    /// Bytes.
    pub limit: u64,
}

/// Marks on packets (`linux.resources.network`); v1 only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// The class of the container's packets.
    #[serde(rename = "classID", skip_serializing_if = "Option::is_none")]
    pub class_id: Option<u32>,
    /// Priorities by interface.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub priorities: Vec<InterfacePriority>,
}

/// The priority of packets that leave by one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfacePriority {
    /// The interface.
    pub name: String,
    /// Its priority.
    pub priority: u32,
}

/// The limits of one RDMA device (`linux.resources.rdma`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rdma {
    /// Handles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hca_handles: Option<u32>,
    /// Objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hca_objects: Option<u32>,
}

impl Memory {
    /// Returns memory alone, and memory and swap together; 0 if unset. Refuses values that are invalid on v1 and v2.
    pub(crate) fn limit_and_swap(&self) -> error::Result<(i64, i64)> {
        let (limit, swap) = (self.limit.unwrap_or(0), self.swap.unwrap_or(0));
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

    /// As cgroup v2 and systemd count it; -1 is unlimited.
    pub(crate) fn swap_alone(&self) -> error::Result<Option<i64>> {
        let (limit, swap) = self.limit_and_swap()?;
        match (limit, swap) {
            // Unlimited memory alone means unlimited swap, as on v1.
            (-1, 0) => Ok(Some(-1)),
            (_, 0) => Ok(None),
            (_, -1) | (-1, _) => Ok(Some(swap)),
            (0, _) => {
                Err(Error::new(Kind::Spec, "unable to set swap limit without memory limit").doing("limit memory"))
            }
            _ => Ok(Some(swap - limit)),
        }
    }
}

/// The bits of a list such as `0-3,7`.
pub(crate) fn bits_of_list(list: &str) -> error::Result<Vec<u64>> {
    /// Above the limit of every kernel build.
    const MOST: usize = 65_536;
    let wrong =
        || Error::new(Kind::Spec, format!("`{}` is not a list of numbers such as `0-3,7`", list.escape_debug()));
    let mut bits = Vec::new();
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first > last || last >= MOST {
            return Err(wrong());
        }
        for number in first..=last {
            if bits.len() <= number / 64 {
                bits.resize(number / 64 + 1, 0);
            }
            bits[number / 64] |= 1 << (number % 64);
        }
    }
    Ok(bits)
}

/// For v2 and systemd (runc 1.3, crun 1.21). A quadratic function of the logarithm maps 2, 1024, 262144 to 1, 100,
/// 10000. The older linear formula gives a default container the weight 39.
pub(crate) fn weight_of_shares(shares: u64) -> u64 {
    /// `MAX_SHARES`, `CGROUP_WEIGHT_MAX`.
    const SHARES_MAX: u64 = 262_144;
    const WEIGHT_MAX: u64 = 10_000;
    match shares {
        0..=2 => 1,
        SHARES_MAX.. => WEIGHT_MAX,
        _ => {
            let log = (shares as f64).log2();
            10f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil() as u64
        }
    }
}

/// For reads and for writes of a disk; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub bytes: Option<u64>,
    pub operations: Option<u64>,
}

impl Rates {
    pub(crate) fn any(self) -> bool {
        self.bytes.is_some() || self.operations.is_some()
    }
}

pub(crate) fn block_io(rates: &Rates, disks: &[(u32, u32)]) -> BlockIo {
    let each = |rate: Option<u64>| {
        let device = |rate| {
            move |&(major, minor): &(u32, u32)| ThrottleDevice { major: major.into(), minor: minor.into(), rate }
        };
        rate.map_or_else(Vec::new, |rate| disks.iter().map(device(rate)).collect())
    };
    BlockIo {
        throttle_read_bps_device: each(rates.bytes),
        throttle_write_bps_device: each(rates.bytes),
        throttle_read_iops_device: each(rates.operations),
        throttle_write_iops_device: each(rates.operations),
        ..BlockIo::default()
    }
}

/// Callers write empty pointers and slices as `null`.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field of runtime-spec 1.3, once.
    const WHOLE: &str = r#"{
      "devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}],
      "memory": {"limit": 536870912, "reservation": 1, "swap": 2, "kernel": -1, "kernelTCP": -1, "swappiness": 0,
                 "disableOOMKiller": false, "useHierarchy": true, "checkBeforeUpdate": true},
      "cpu": {"shares": 1024, "quota": 1000000, "burst": 1000, "period": 500000, "realtimeRuntime": 950000,
              "realtimePeriod": 1000000, "cpus": "2-3", "mems": "0-7", "idle": 0},
      "pids": {"limit": 32771},
      "blockIO": {"weight": 10, "leafWeight": 10, "weightDevice": [{"major": 8, "minor": 0, "weight": 500, "leafWeight": 300}],
                  "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 600}],
                  "throttleWriteBpsDevice": [{"major": 8, "minor": 0, "rate": 601}],
                  "throttleReadIOPSDevice": [{"major": 8, "minor": 0, "rate": 602}],
                  "throttleWriteIOPSDevice": [{"major": 8, "minor": 16, "rate": 300}]},
      "hugepageLimits": [{"pageSize": "2MB", "limit": 209715200}],
      "network": {"classID": 1048577, "priorities": [{"name": "eth0", "priority": 500}]},
      "rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}},
      "unified": {"memory.high": "1G"}
    }"#;

    #[test]
    fn every_field_of_the_specification_is_read_and_written_under_its_name() {
        let read: Resources = serde_json::from_str(WHOLE).unwrap();
        let given: serde_json::Value = serde_json::from_str(WHOLE).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), given);
    }

    #[test]
    fn unknown_fields_are_ignored_and_null_is_absent() {
        let read: Resources = serde_json::from_str(
            r#"{"devices": null, "memory": null, "cpu": {"cpus": null, "new": 1}, "blockIO": {"weightDevice": null}, "later": {}}"#,
        )
        .unwrap();
        assert_eq!(read, Resources::default());
        assert_eq!(serde_json::to_string(&read).unwrap(), "{}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused() {
        for wrong in [r#"{"pids": {"limit": "many"}}"#, r#"{"cpu": {"shares": -1}}"#, r#"{"devices": [{"allow": 1}]}"#]
        {
            assert!(serde_json::from_str::<Resources>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_read_strictly() {
        assert_eq!(bits_of_list("0-3,7").unwrap(), [0x8f]);
        assert_eq!(bits_of_list("64").unwrap(), [0, 1]);
        assert!(bits_of_list("").unwrap().is_empty());
        for wrong in ["a", "3-1", "1-", "99999999", "-1", "1;2"] {
            assert!(bits_of_list(wrong).is_err(), "{wrong}");
        }
    }
}
