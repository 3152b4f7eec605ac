//! Reading config.json from a bundle.

use super::Config;
use crate::error::{Error, Kind, Result};
use crate::files;
use std::path::Path;

/// What a config.json may be long at most. The largest that callers write, with thousands of mounts, are below one megabyte.
const LARGEST: u64 = 16 << 20;

/// Reads `config.json` below `bundle`; the raw bytes too, which the container keeps.
pub(crate) fn load(bundle: &Path) -> Result<(Config, Vec<u8>)> {
    let path = bundle.join("config.json");
    let bytes = files::read_bounded(&path, LARGEST).map_err(|error| match error.errno() {
        Some(libc::ENOENT) => {
            error.of_kind(Kind::NotFound).hint("name a bundle: a directory with a config.json (`brig spec` makes one)")
        }
        _ => error.of_kind(Kind::Spec),
    })?;
    Ok((parse(&bytes).map_err(|error| error.doing(format!("read `{}`", path.display())))?, bytes))
}

/// What `bytes` say; every word and number in them has the right type.
pub(crate) fn parse(bytes: &[u8]) -> Result<Config> {
    serde_json::from_slice(bytes)
        .map_err(|cause| Error::new(Kind::Spec, cause.to_string()).hint("correct the file at that place"))
}
