//! A bundle: the directory with a config.json that a caller names.

use crate::error::{Kind, Result};
use crate::files;
use crate::spec::config::{Config, load::parse};
use std::path::Path;

/// What a config.json may be long at most. The largest that callers write, with thousands of mounts, are below one megabyte.
const LARGEST: u64 = 16 << 20;

/// Reads `config.json` below `bundle`; the raw bytes too, which the container keeps.
pub(super) fn read(bundle: &Path) -> Result<(Config, Vec<u8>)> {
    let path = bundle.join("config.json");
    let bytes = files::read_bounded(&path, LARGEST).map_err(|error| match error.errno() {
        Some(libc::ENOENT) => {
            error.of_kind(Kind::NotFound).hint("name a bundle: a directory with a config.json (`brig spec` makes one)")
        }
        _ => error.of_kind(Kind::Spec),
    })?;
    Ok((parse(&bytes).map_err(|error| error.doing(format!("read `{}`", path.display())))?, bytes))
}
