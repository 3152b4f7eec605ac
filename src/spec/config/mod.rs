//! config.json of runtime-spec 1.3: every field for Linux, under its own name.
//!
//! Unknown properties are ignored. `null` means absent, since Go programs write empty pointers as `null`. A value of
//! the wrong type is an error.

pub(crate) mod check;
pub(crate) mod linux;
pub(crate) mod process;

use super::resources::{Resources, is_default, nullable};
use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) fn parse(bytes: &[u8]) -> Result<Config> {
    let mut config: Config = serde_json::from_slice(bytes)
        .map_err(|cause| Error::new(Kind::Spec, cause.to_string()).hint("correct the file at that place"))?;
    if let Some(resources) = &mut config.linux.resources {
        forget_unlimited_pids(resources, &config.oci_version);
    }
    Ok(config)
}

/// Until version 1.2 of the specification, a `pids.limit` of 0 meant unlimited. Podman before 5.5 writes it for
/// `--pids-limit -1`, and for each container that the docker command makes by its socket.
pub(crate) fn forget_unlimited_pids(resources: &mut Resources, version: &str) {
    let minor = version.split('.').nth(1).and_then(|text| text.parse::<u32>().ok());
    if resources.pids.limit == Some(0) && minor.is_some_and(|minor| minor < 3) {
        // Not -1, which asks for the controller: it may not be delegated to an ordinary user.
        resources.pids.limit = None;
    }
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Config {
    /// The specification's version.
    #[serde(deserialize_with = "nullable")]
    pub oci_version: String,
    /// The root file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
    /// In this order.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub mounts: Vec<Mount>,
    /// The program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<process::Process>,
    /// Inside; empty keeps the caller's.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub hostname: String,
    /// NIS domain name; empty keeps the caller's.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub domainname: String,
    /// The caller's programs for certain steps.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub hooks: Hooks,
    /// The state repeats them.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
    /// The Linux part.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub linux: linux::Linux,
}

/// `root`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Root {
    /// A directory, absolute or relative to the bundle.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    /// Whether the container may not write to it.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub readonly: bool,
}

/// One entry of `mounts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Mount {
    /// In the container. A relative path (deprecated) starts at `/`.
    #[serde(deserialize_with = "nullable")]
    pub destination: String,
    /// File system; ignored for a bind mount.
    #[serde(rename = "type", deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub kind: String,
    /// A device, a path (relative to the bundle for bind mounts), or just a name.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub source: String,
    /// Options of mount(8), and of the file system.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub options: Vec<String>,
    /// For the files' user ids.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub uid_mappings: Vec<linux::IdMapping>,
    /// For the files' group ids.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub gid_mappings: Vec<linux::IdMapping>,
}

/// `hooks`, in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hooks {
    /// Deprecated name of `createRuntime`; run first.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub prestart: Vec<Hook>,
    /// In the runtime's namespaces, after the container's exist and before its root is entered.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub create_runtime: Vec<Hook>,
    /// In the container's namespaces, at the same time.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub create_container: Vec<Hook>,
    /// In the container, right before its program.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub start_container: Vec<Hook>,
    /// In the runtime's namespaces, when the program runs.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub poststart: Vec<Hook>,
    /// In the runtime's namespaces, when the container is removed.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub poststop: Vec<Hook>,
}

/// One hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// The program, absolute.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    /// The program's name is first.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// The whole environment. Without it `startContainer` inherits the container process's; a hook on the host has none
    /// (CVE-2025-23266).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Seconds until it is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}
