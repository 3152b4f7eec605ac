//! Layers get their place, are replaced, and are written to disk.

use super::{ImageRecord, LayerRecord, Store, to_json};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Durability, Lock};
use crate::image::Digest;
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Many blobs can unpack to one layer. The record keeps the latest, and others are verified again.
const MOST_BLOBS: usize = 16;

impl Store {
    /// An existing layer stays if it is whole, and its record gets the verified `blob`.
    pub(crate) fn put_layer(&self, chain: &Digest, blob: &Digest, staged: &Path, work: &Path) -> Result<()> {
        let step = || format!("commit the layer `{}`", chain.short());
        match renameat_with(CWD, staged, CWD, self.layer_path(chain), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other.map_err(|errno| files::failed(errno.into(), step())),
        }
        let _lock = Lock::wait(&self.path.join("lock"))?;
        if let Some(mut layer) = self.layer(chain)? {
            layer.blobs.retain(|other| other != blob);
            layer.blobs.insert(0, blob.clone());
            layer.blobs.truncate(MOST_BLOBS);
            return put_record(&self.layer_path(chain), &layer, Durability::Synced);
        }
        if self.replace_layer(chain, staged, &work.join("old"))? {
            return Ok(());
        }
        Err(Error::new(Kind::State, "the store's copy may be damaged, and an image with this layer is in use"))
            .doing(step)
            .hint(|| "try again when the sandboxes with that image have ended")
    }

    /// `false` if a sandbox may have the layer open: an overlay's lower directory must not change, and the old one is
    /// deleted. Needs the exclusive lock of the store.
    pub(crate) fn replace_layer(&self, chain: &Digest, fresh: &Path, old: &Path) -> Result<bool> {
        let mut alone = Vec::new();
        for image in self.images()?.iter().filter(|image| image.chain.contains(chain)) {
            match self.lock_alone(&image.digest)? {
                Some(lock) => alone.push(lock),
                None => return Ok(false),
            }
        }
        let failed = |cause| files::failed(cause, format!("replace the layer `{}`", chain.short()));
        let layer = self.layer_path(chain);
        if layer.exists() {
            std::fs::rename(&layer, old).map_err(failed)?;
        }
        std::fs::rename(fresh, &layer).map_err(failed)?;
        Ok(true)
    }

    /// Removes the marks when everything is on disk: an image without a mark promises that of all its layers.
    pub(crate) fn sync_image(&self, record: &mut ImageRecord) -> Result<()> {
        let mut unsynced = Vec::new();
        for chain in &record.chain {
            let marked = self.layer(chain)?.filter(|layer| layer.unsynced_boot.is_some());
            unsynced.extend(marked.map(|layer| (chain, layer)));
        }
        if unsynced.is_empty() && record.unsynced_boot.is_none() {
            return Ok(());
        }
        let directory = File::open(&self.path).map_err(|cause| files::failed(cause, "open the store".into()))?;
        syncfs(&directory).failing(Kind::Store, || "write everything to disk")?;
        // Another image may have the same layers.
        let _lock = Lock::wait(&self.path.join("lock"))?;
        for (chain, mut layer) in unsynced {
            layer.unsynced_boot = None;
            put_record(&self.layer_path(chain), &layer, Durability::Synced)?;
        }
        record.unsynced_boot = None;
        self.put_image(record)
    }
}

pub(crate) fn put_record(layer: &Path, record: &LayerRecord, durability: Durability) -> Result<()> {
    files::replace(&layer.join("layer.json"), &to_json(record)?, 0o600, durability)
}
