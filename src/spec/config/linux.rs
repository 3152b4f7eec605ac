//! `linux` of config.json, without `resources` and `seccomp`.

use crate::spec::resources::{Resources, is_default, nullable};
use crate::spec::seccomp::Seccomp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `linux`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Linux {
    /// User ids of the new user namespace.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub uid_mappings: Vec<IdMapping>,
    /// Group ids of the new user namespace.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub gid_mappings: Vec<IdMapping>,
    /// Kernel parameters of the container's namespaces.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub sysctl: BTreeMap<String, String>,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The path of its cgroup.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub cgroups_path: String,
    /// Namespaces to create or join.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub namespaces: Vec<Namespace>,
    /// Device nodes besides the default ones.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub devices: Vec<Device>,
    /// Interfaces of the host that move inside.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub net_devices: BTreeMap<String, NetDevice>,
    /// The system-call filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Seccomp>,
    /// Propagation of the root mount.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub rootfs_propagation: String,
    /// Paths that read as empty.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub readonly_paths: Vec<String>,
    /// SELinux label of the mounts.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub mount_label: String,
    /// Cache and memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// set_mempolicy(2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_policy: Option<MemoryPolicy>,
    /// personality(2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub personality: Option<Personality>,
    /// For `monotonic` and `boottime`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub time_offsets: BTreeMap<String, TimeOffset>,
}

/// One line of an id map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdMapping {
    /// First id inside.
    #[serde(rename = "containerID")]
    pub container_id: u32,
    /// First id outside.
    #[serde(rename = "hostID")]
    pub host_id: u32,
    /// Number of ids.
    pub size: u32,
}

/// One of `linux.namespaces`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: NamespaceKind,
    /// The namespace to join; empty creates one.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub path: String,
}

/// The kinds of namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamespaceKind {
    /// Process ids.
    Pid,
    /// Network.
    Network,
    /// Mounts.
    Mount,
    /// System V IPC and POSIX message queues.
    Ipc,
    /// Host and domain name.
    Uts,
    /// User and group ids.
    User,
    /// View of the cgroup hierarchy.
    Cgroup,
    /// Offsets of the monotonic and boot-time clocks.
    Time,
}

impl NamespaceKind {
    /// In the specification's order.
    pub const ALL: [NamespaceKind; 8] = {
        use NamespaceKind::{Cgroup, Ipc, Mount, Network, Pid, Time, User, Uts};
        [Pid, Network, Mount, Ipc, Uts, User, Cgroup, Time]
    };

    /// The name in /proc/PID/ns.
    pub const fn file(self) -> &'static str {
        match self {
            NamespaceKind::Pid => "pid",
            NamespaceKind::Network => "net",
            NamespaceKind::Mount => "mnt",
            NamespaceKind::Ipc => "ipc",
            NamespaceKind::Uts => "uts",
            NamespaceKind::User => "user",
            NamespaceKind::Cgroup => "cgroup",
            NamespaceKind::Time => "time",
        }
    }

    /// The word in config.json.
    pub const fn word(self) -> &'static str {
        match self {
            NamespaceKind::Network => "network",
            NamespaceKind::Mount => "mount",
            other => other.file(),
        }
    }
}

/// One of `linux.devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Device {
    /// `c` or `u` (character), `b` (block), `p` (FIFO).
    #[serde(rename = "type")]
    pub kind: String,
    /// The path.
    pub path: String,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Permissions; 0666 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Owner inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// One of `linux.netDevices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetDevice {
    /// Inside; empty keeps the name.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub name: String,
}

/// `linux.intelRdt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IntelRdt {
    /// A directory of the resctrl file system; `/` is its root.
    #[serde(rename = "closID", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub clos_id: String,
    /// Lines for its `schemata`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub schemata: Vec<String>,
    /// The older form of the L3 line.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub l3_cache_schema: String,
    /// The older form of the MB line.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub mem_bw_schema: String,
    /// Whether there is a monitoring group.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub enable_monitoring: bool,
}

/// `linux.memoryPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryPolicy {
    /// `MPOL_DEFAULT` and so on.
    pub mode: String,
    /// Memory nodes, as a list.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub nodes: String,
    /// `MPOL_F_…`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub flags: Vec<String>,
}

/// `linux.personality`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Personality {
    /// `LINUX` or `LINUX32`.
    pub domain: String,
    /// The specification defines no flags.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub flags: Vec<String>,
}

/// One of `linux.timeOffsets`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeOffset {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds.
    pub nanosecs: u32,
}
