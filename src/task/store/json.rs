//! Records as JSON files: bounded, and replaced atomically.

use crate::error::{Error, Kind, Result};
use crate::files::{self, Bounded, Durability};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::SystemTime;

/// No record or receipt of ours is longer: what an agent can put into one is bounded where it is collected, to half of this together.
pub(crate) const LONGEST: u64 = 64 << 20;

/// Writes a new JSON file of ours: never one that is longer than what is read.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut bytes = Vec::new();
    serde_json::to_writer_pretty(Bounded::new(&mut bytes, LONGEST), value)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("write `{}`", path.display())))?;
    files::replace(path, &bytes, 0o600, Durability::Cached)
}

pub(crate) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let bytes = files::read_bounded(path, LONGEST)?;
    serde_json::from_slice(&bytes)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{}`", path.display())))
}

/// The time in the form of every record.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}
