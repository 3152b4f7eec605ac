//! The image's config and its conversion to a process (image-spec, conversion.md).

mod accounts;
pub(crate) mod bundle;
mod process;

pub(crate) use accounts::LARGEST_FILE as LARGEST_ACCOUNT_FILE;
pub use accounts::{Accounts, User};
pub use process::{Overrides, Process, to_process};

use super::manifest::{MOST_LAYERS, json};
use super::{Digest, Platform};
use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// OCI's fields, and Docker's own (Healthcheck, Shell, OnBuild).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// RFC 3339, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Such as `linux`.
    pub os: String,
    /// Such as `amd64`.
    pub architecture: String,
    /// Such as `v8`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// `os.version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// `os.features`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub os_features: Vec<String>,
    /// `user[:group]`, names or numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// The command, together with `cmd`.
    pub entrypoint: Vec<String>,
    /// Arguments, or the command if the entrypoint is empty.
    pub cmd: Vec<String>,
    /// The working directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Paths of volumes.
    pub volumes: Vec<String>,
    /// `port[/protocol]`.
    pub exposed_ports: Vec<String>,
    /// `SIGTERM`, `15` or `SIGRTMIN+3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Docker's health check, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Value>,
    /// For the shell form of commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Docker's build triggers; never run here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_build: Vec<String>,
    /// The digests of the layers' tars, bottom first.
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// The caller has checked the digest.
    pub(crate) fn parse(bytes: &[u8]) -> Result<ImageConfig> {
        read(bytes).map_err(|error| error.doing("read the image's config"))
    }

    /// Its platform.
    pub fn platform(&self) -> Platform {
        Platform { os: self.os.clone(), architecture: self.architecture.clone(), variant: self.variant.clone() }
    }

    /// The origin of a container (conversion.md). Labels win.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                all.insert(format!("org.opencontainers.image.{name}"), value.to_owned());
            }
        };
        put("os", &self.os);
        put("architecture", &self.architecture);
        put("variant", &self.variant);
        put("os.version", self.os_version.as_deref().unwrap_or_default());
        put("os.features", &self.os_features.join(","));
        put("author", self.author.as_deref().unwrap_or_default());
        put("created", self.created.as_deref().unwrap_or_default());
        put("stopSignal", self.stop_signal.as_deref().unwrap_or_default());
        put("exposedPorts", &self.exposed_ports.join(","));
        all.extend(self.labels.clone());
        all
    }
}

/// image-spec, config.md. Old programs omit required fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    created: Option<String>,
    author: Option<String>,
    os: String,
    architecture: String,
    variant: String,
    #[serde(rename = "os.version")]
    os_version: Option<String>,
    #[serde(rename = "os.features")]
    os_features: Vec<String>,
    config: Run,
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Run {
    user: String,
    env: Vec<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    working_dir: String,
    labels: BTreeMap<String, String>,
    /// Go writes sets as objects.
    volumes: BTreeMap<String, Nothing>,
    exposed_ports: BTreeMap<String, Nothing>,
    stop_signal: Option<String>,
    healthcheck: Option<Value>,
    shell: Vec<String>,
    on_build: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Nothing {}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Default for RootFs {
    fn default() -> RootFs {
        RootFs { kind: "layers".to_owned(), diff_ids: Vec::new() }
    }
}

fn read(bytes: &[u8]) -> Result<ImageConfig> {
    let document: Document =
        serde_json::from_value(json(bytes)?).map_err(|cause| Error::new(Kind::Image, cause.to_string()))?;
    if document.rootfs.kind != "layers" {
        let kind = document.rootfs.kind.escape_debug();
        return Err(Error::new(Kind::Image, format!("its root is of type `{kind}`, not `layers`")));
    }
    let diff_ids = document.rootfs.diff_ids.iter().map(|text| text.parse()).collect::<Result<Vec<Digest>>>()?;
    if diff_ids.len() > MOST_LAYERS {
        return Err(Error::new(Kind::Image, format!("it has more than {MOST_LAYERS} layers")));
    }
    let run = document.config;
    Ok(ImageConfig {
        created: document.created,
        author: document.author,
        os: document.os,
        architecture: document.architecture,
        variant: document.variant,
        os_version: document.os_version,
        os_features: document.os_features,
        user: run.user,
        env: run.env,
        entrypoint: run.entrypoint,
        cmd: run.cmd,
        working_dir: run.working_dir,
        labels: run.labels,
        volumes: run.volumes.into_keys().collect(),
        exposed_ports: run.exposed_ports.into_keys().collect(),
        stop_signal: run.stop_signal,
        healthcheck: run.healthcheck,
        shell: run.shell,
        on_build: run.on_build,
        diff_ids,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_missing_fields_are_absent_and_docker_fields_are_kept() {
        let text = br#"{"architecture":"amd64","os":"linux","config":{"User":null,"Cmd":["sh"],"Volumes":{"/b":{},"/a":{}},
            "ExposedPorts":{"80/tcp":{}},"Healthcheck":{"Test":["CMD","x"]},"Shell":["/bin/bash","-c"],"ArgsEscaped":true,
            "Labels":{"org.opencontainers.image.author":"me"},"Unknown":1},"author":"you","rootfs":{"type":"layers","diff_ids":null}}"#;
        let config = ImageConfig::parse(text).unwrap();
        assert_eq!((config.cmd.as_slice(), config.user.as_str()), (&["sh".to_owned()][..], ""));
        assert_eq!(config.volumes, ["/a", "/b"]);
        assert!(config.healthcheck.is_some());
        assert_eq!(config.shell, ["/bin/bash", "-c"]);
        assert_eq!(config.annotations()["org.opencontainers.image.author"], "me");
        assert_eq!(config.annotations()["org.opencontainers.image.exposedPorts"], "80/tcp");
    }

    #[test]
    fn a_root_that_is_not_layers_is_refused() {
        let text = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"zip","diff_ids":[]}}"#;
        assert!(ImageConfig::parse(text).unwrap_err().to_string().contains("not `layers`"));
    }
}
