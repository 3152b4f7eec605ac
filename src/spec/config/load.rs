//! What the bytes of a config.json say.

use super::Config;
use crate::error::{Error, Kind, Result};

/// What `bytes` say; every word and number in them has the right type.
pub(crate) fn parse(bytes: &[u8]) -> Result<Config> {
    serde_json::from_slice(bytes)
        .map_err(|cause| Error::new(Kind::Spec, cause.to_string()).hint("correct the file at that place"))
}
