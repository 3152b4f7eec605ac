//! Taking names away. The content goes with `prune`, or at once if nothing uses it.

use super::Store;
use crate::error::{Error, Kind, Result};
use crate::image::{Digest, Reference};
use serde::Serialize;

/// What `rm` did.
#[derive(Debug, Serialize)]
pub struct Removed {
    /// Names that are gone.
    pub untagged: Vec<String>,
    /// The image, if that was its last name and nothing uses it.
    pub removed: Option<Digest>,
}

impl Store {
    /// Removes a name, or an image with all its names if `text` is a digest. An image that a sandbox uses loses its names
    /// alone; `prune` removes it later.
    pub fn remove(&self, text: &str) -> Result<Removed> {
        let record = self.find(text)?;
        let all: Vec<Reference> =
            self.names()?.into_iter().filter(|(_, digest)| *digest == record.digest).map(|(name, _)| name).collect();
        let named = text.parse::<Reference>().ok().map(|name| name.kept()).filter(|name| all.contains(name));
        let going = match &named {
            Some(reference) => vec![reference.clone()],
            None if all.len() > 1 => {
                let names = all.iter().map(Reference::familiar).collect::<Vec<_>>().join(", ");
                return Err(Error::new(Kind::State, format!("it has several names: {names}"))
                    .doing(format!("remove the image `{}`", record.digest.short()))
                    .hint("remove it by its names"));
            }
            None => all.clone(),
        };
        let mut untagged = Vec::new();
        for reference in &going {
            if self.remove_name(reference)? {
                untagged.push(reference.familiar());
            }
        }
        let last = going.len() == all.len();
        let removed = if last { self.remove_image(&record.digest)?.then_some(record.digest) } else { None };
        Ok(Removed { untagged, removed })
    }
}
