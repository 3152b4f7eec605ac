//! Records as JSON files: bounded, and replaced atomically.

use crate::error::{Error, Kind, Result};
use crate::files::{self, Bounded, Durability};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::SystemTime;

/// The longest record or receipt. An agent's part is bounded at its collection, to half of this together.
pub(crate) const LONGEST: u64 = 64 << 20;

/// Refuses a file longer than readers take.
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

pub(crate) fn now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}
