//! Messages of CRIU's `images/rpc.proto` (protocol buffers, version 2). Field numbers never change. Decoding skips
//! fields that brig does not use.

use prost::{Enumeration, Message};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Empty = 0,
    Dump = 1,
    Restore = 2,
    PreDump = 4,
    Notify = 6,
    FeatureCheck = 9,
}

/// criu(8), `--manage-cgroups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum CgroupMode {
    Ignore = 0,
    Soft = 3,
    Full = 4,
    Strict = 5,
    Default = 6,
}

/// Receives memory pages instead of a file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PageServer {
    #[prost(string, optional, tag = "1")]
    pub address: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub port: Option<i32>,
}

/// CRIU does not save it: on a dump mount point and name, on a restore name and source.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExternalMount {
    #[prost(string, required, tag = "1")]
    pub key: String,
    #[prost(string, required, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct JoinNamespace {
    #[prost(string, required, tag = "1")]
    pub namespace: String,
    #[prost(string, required, tag = "2")]
    pub file: String,
}

/// Replaces the image's file `key` by a descriptor of CRIU.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InheritDescriptor {
    #[prost(string, required, tag = "1")]
    pub key: String,
    #[prost(int32, required, tag = "2")]
    pub descriptor: i32,
}

/// The saved cgroups go below it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CgroupRoot {
    #[prost(string, optional, tag = "1")]
    pub controller: Option<String>,
    #[prost(string, required, tag = "2")]
    pub path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Options {
    /// A descriptor of the requesting process; CRIU opens it again.
    #[prost(int32, required, tag = "1")]
    pub images: i32,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub external_unix_sockets: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    #[prost(bool, optional, tag = "6")]
    pub evasive_devices: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub shell_job: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    pub log_file: Option<String>,
    #[prost(message, optional, tag = "11")]
    pub page_server: Option<PageServer>,
    #[prost(bool, optional, tag = "12")]
    pub notify: Option<bool>,
    #[prost(string, optional, tag = "13")]
    pub root: Option<String>,
    #[prost(string, optional, tag = "14")]
    pub parent: Option<String>,
    #[prost(bool, optional, tag = "15")]
    pub track_memory: Option<bool>,
    #[prost(bool, optional, tag = "16")]
    pub auto_dedup: Option<bool>,
    #[prost(int32, optional, tag = "17")]
    pub work: Option<i32>,
    #[prost(bool, optional, tag = "18")]
    pub link_remap: Option<bool>,
    #[prost(message, repeated, tag = "23")]
    pub mounts: Vec<ExternalMount>,
    #[prost(bool, optional, tag = "24")]
    pub manage_cgroups: Option<bool>,
    #[prost(message, repeated, tag = "25")]
    pub cgroup_roots: Vec<CgroupRoot>,
    /// Makes the process a child of the requesting process.
    #[prost(bool, optional, tag = "26")]
    pub sibling: Option<bool>,
    #[prost(message, repeated, tag = "27")]
    pub inherited: Vec<InheritDescriptor>,
    #[prost(enumeration = "CgroupMode", optional, tag = "34")]
    pub cgroups: Option<i32>,
    #[prost(string, repeated, tag = "37")]
    pub external: Vec<String>,
    #[prost(uint32, optional, tag = "38")]
    pub empty_namespaces: Option<u32>,
    #[prost(message, repeated, tag = "39")]
    pub joined: Vec<JoinNamespace>,
    #[prost(string, optional, tag = "44")]
    pub freezer: Option<String>,
    #[prost(bool, optional, tag = "46")]
    pub tcp_skip_in_flight: Option<bool>,
    #[prost(bool, optional, tag = "48")]
    pub lazy_pages: Option<bool>,
    #[prost(bool, optional, tag = "50")]
    pub orphan_terminal: Option<bool>,
    #[prost(string, optional, tag = "51")]
    pub config_file: Option<String>,
    #[prost(string, optional, tag = "53")]
    pub lsm_profile: Option<String>,
    #[prost(string, optional, tag = "63")]
    pub lsm_mount_context: Option<String>,
}

/// Of this CRIU and this kernel together.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Features {
    #[prost(bool, optional, tag = "1")]
    pub memory_tracking: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub lazy_pages: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub options: Option<Options>,
    #[prost(bool, optional, tag = "3")]
    pub notify_success: Option<bool>,
    #[prost(message, optional, tag = "5")]
    pub features: Option<Features>,
}

/// CRIU waits until the step is acknowledged.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Notification {
    #[prost(string, optional, tag = "1")]
    pub step: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    #[prost(message, optional, tag = "5")]
    pub notification: Option<Notification>,
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    #[prost(message, optional, tag = "8")]
    pub features: Option<Features>,
    #[prost(string, optional, tag = "9")]
    pub message: Option<String>,
}
