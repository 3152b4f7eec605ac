//! The image's config: what it says about how to run it, and what that becomes (image-spec, conversion.md).
//!
//! `process` is the pure conversion, `accounts` looks users up, `labels` keeps back what a runtime would obey, `bundle` writes a config.json for any OCI runtime.

mod accounts;
pub(crate) mod bundle;
mod labels;
mod process;

pub use accounts::{Accounts, User};
pub use process::{Overrides, Process, to_process};

use super::manifest::{MOST_LAYERS, json};
use super::{Digest, Platform};
use crate::error::{Error, Kind, Result};
use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What an image says about itself: the OCI fields, and Docker's own (Healthcheck, Shell, OnBuild).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// RFC 3339, as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Who made it.
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
    /// Arguments, or the command if there is no entrypoint.
    pub cmd: Vec<String>,
    /// Where the command starts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// Free words about the image.
    pub labels: BTreeMap<String, String>,
    /// Paths that want a volume each.
    pub volumes: Vec<String>,
    /// `port[/protocol]`.
    pub exposed_ports: Vec<String>,
    /// `SIGTERM`, `15` or `SIGRTMIN+3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Docker's, as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Value>,
    /// Docker's shell for the shell form of commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Docker's triggers for builds; nothing runs them here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_build: Vec<String>,
    /// The digests of the layers' tars, bottom first.
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Reads a config blob whose digest has been checked.
    pub(crate) fn parse(bytes: &[u8]) -> Result<ImageConfig> {
        read(bytes).map_err(|error| error.doing("read the image's config"))
    }

    /// What it runs on.
    pub fn platform(&self) -> Platform {
        Platform { os: self.os.clone(), architecture: self.architecture.clone(), variant: self.variant.clone() }
    }

    /// The names and values of the annotations that say where a container comes from (conversion.md). Labels win.
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

/// Docker's fields, which the OCI types do not have.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DockerFields {
    healthcheck: Option<Value>,
    shell: Vec<String>,
    on_build: Vec<String>,
}

fn read(bytes: &[u8]) -> Result<ImageConfig> {
    let wrong = |cause: serde_json::Error| Error::new(Kind::Image, cause.to_string());
    let value = json(bytes)?;
    let docker: DockerFields = match value.get("config") {
        Some(config) => DockerFields::deserialize(config).map_err(wrong)?,
        None => DockerFields::default(),
    };
    let config: ImageConfiguration = serde_json::from_value(mended(value)).map_err(wrong)?;
    if config.rootfs().typ() != "layers" {
        return Err(Error::new(
            Kind::Image,
            format!("its root is of type `{}`, not `layers`", config.rootfs().typ().escape_debug()),
        ));
    }
    let diff_ids = config.rootfs().diff_ids().iter().map(|text| text.parse()).collect::<Result<Vec<Digest>>>()?;
    if diff_ids.len() > MOST_LAYERS {
        return Err(Error::new(Kind::Image, format!("it has more than {MOST_LAYERS} layers")));
    }
    let run = config.config().clone().unwrap_or_default();
    let sorted = |list: Option<Vec<String>>| {
        let mut list = list.unwrap_or_default();
        list.sort();
        list
    };
    Ok(ImageConfig {
        created: config.created().clone(),
        author: config.author().clone(),
        os: config.os().to_string(),
        architecture: config.architecture().to_string(),
        variant: config.variant().clone().unwrap_or_default(),
        os_version: config.os_version().clone(),
        os_features: config.os_features().clone().unwrap_or_default(),
        user: run.user().clone().unwrap_or_default(),
        env: run.env().clone().unwrap_or_default(),
        entrypoint: run.entrypoint().clone().unwrap_or_default(),
        cmd: run.cmd().clone().unwrap_or_default(),
        working_dir: run.working_dir().clone().unwrap_or_default(),
        labels: run.labels().clone().unwrap_or_default().into_iter().collect(),
        volumes: sorted(run.volumes().clone()),
        exposed_ports: sorted(run.exposed_ports().clone()),
        stop_signal: run.stop_signal().clone(),
        healthcheck: docker.healthcheck,
        shell: docker.shell,
        on_build: docker.on_build,
        diff_ids,
    })
}

/// Old programs leave out what is required: an empty word stands for it.
fn mended(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        for name in ["architecture", "os"] {
            fields.entry(name).or_insert_with(|| Value::String(String::new()));
        }
        fields.entry("rootfs").or_insert_with(|| serde_json::json!({ "type": "layers", "diff_ids": [] }));
        // A history without `created` and the like is nobody's concern here.
        fields.remove("history");
        if let Some(root) = fields.get_mut("rootfs").and_then(Value::as_object_mut) {
            root.entry("diff_ids").or_insert_with(|| Value::Array(Vec::new()));
        }
    }
    value
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
