//! A bundle: the directory of a config.json.

use super::creation::Creation;
use crate::error::{Error, Kind, Result};
use crate::files;
use crate::mounts::bundle::Mount;
use crate::mounts::bundle::options;
use crate::spec::config::{self, Config};
use std::path::{Path, PathBuf};

/// In bytes. The largest of real callers, with thousands of mounts, are below 1 MB.
const LARGEST: u64 = 16 << 20;

pub(super) fn config_path(wish: &Creation) -> PathBuf {
    wish.config.clone().unwrap_or_else(|| wish.bundle.join("config.json"))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    files::read_bounded(path, LARGEST).map_err(|error| match error.errno() {
        Some(libc::ENOENT) => {
            error.of_kind(Kind::NotFound).hint("name a bundle: a directory with a config.json (`brig spec` makes one)")
        }
        _ => error.of_kind(Kind::Spec),
    })
}

pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Config> {
    config::parse(bytes).map_err(|error| error.doing(format!("read `{}`", path.display())))
}

/// Apart from the host's later mounts.
pub(super) fn read_only(at: &str, source: PathBuf) -> Result<Mount> {
    let words = ["bind", "ro", "nosuid", "nodev", "noexec", "private"].map(str::to_owned);
    Ok(Mount {
        at: at.into(),
        kind: "bind".into(),
        source,
        options: options::parse(at, &words)?,
        userns: None,
        label: String::new(),
        tree: None,
        context: None,
    })
}

/// The container keeps these bytes. Another value in the configuration is an error: the operator's and the caller's
/// must both count.
pub(super) fn annotate(mut config: Config, bytes: Vec<u8>, more: &[(String, String)]) -> Result<(Config, Vec<u8>)> {
    for (key, value) in more {
        let old = config.annotations.insert(key.clone(), value.clone());
        if let Some(old) = old.filter(|old| old != value) {
            let words = format!(
                "the annotation `{key}` is `{}` in the configuration and `{}` by the runtime's flag --annotation: leave it out of one of the two",
                old.escape_debug(),
                value.escape_debug()
            );
            return Err(Error::new(Kind::Spec, words));
        }
    }
    if more.is_empty() {
        return Ok((config, bytes));
    }
    let bytes = serde_json::to_vec(&config).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    Ok((config, bytes))
}
