//! A start reads only one record.

use super::{LARGEST_RECORD, Store};
use crate::error::{Error, Kind, Result};
use crate::files::{self, Bounded, Durability};
use crate::image::config::ImageConfig;
use crate::image::layer::{FinishedLayer, Measured, Skipped};
use crate::image::manifest::{Descriptor, OCI_LAYER};
use crate::image::{Digest, Platform};
use serde::{Deserialize, Serialize};
use std::path::Path;

const VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) version: u32,
    pub(crate) diff_id: Digest,
    pub(crate) size: u64,
    pub(crate) entries: u64,
    pub(crate) removes: bool,
    pub(crate) skipped: Skipped,
    /// Blobs that were verified to unpack to it, the latest first. Records of earlier versions have none: each blob is
    /// verified at the next load.
    #[serde(default)]
    pub(crate) blobs: Vec<Digest>,
    /// The boot in which the layer was written, if it was not synced. After a power cut it is unpacked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unsynced_boot: Option<String>,
}

impl LayerRecord {
    pub(crate) fn new(measured: Measured, finished: FinishedLayer) -> LayerRecord {
        LayerRecord {
            version: VERSION,
            diff_id: measured.diff_id,
            size: measured.size,
            blobs: vec![measured.blob],
            entries: finished.entries,
            removes: finished.removes,
            skipped: finished.skipped,
            unsynced_boot: Some(boot()),
        }
    }

    /// Synced, or written since this machine started.
    pub(crate) fn is_trusted(&self) -> bool {
        self.version == VERSION && self.unsynced_boot.as_ref().is_none_or(|then| *then == boot())
    }
}

/// The checked manifest and config, ready for a start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageRecord {
    version: u32,
    /// The manifest's digest, the image's permanent name.
    pub digest: Digest,
    pub(crate) manifest: Descriptor,
    pub(crate) config_blob: Descriptor,
    pub(crate) layer_blobs: Vec<Descriptor>,
    pub(crate) diff_ids: Vec<Digest>,
    /// By chain, bottom first: the names of the layers' directories.
    pub chain: Vec<Digest>,
    /// The image's config.
    pub config: ImageConfig,
    /// Bytes of the compressed layers.
    pub packed_size: u64,
    /// Bytes of the layers' tars.
    pub size: u64,
    /// Seconds since 1970.
    pub added: u64,
    /// The index or manifest that its names meant when it was fetched.
    pub(crate) found_by: Digest,
    /// Set until the image is synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unsynced_boot: Option<String>,
}

impl ImageRecord {
    pub(crate) fn new(
        manifest: Descriptor,
        config_blob: Descriptor,
        layer_blobs: Vec<Descriptor>,
        config: ImageConfig,
        size: u64,
    ) -> ImageRecord {
        ImageRecord {
            version: VERSION,
            digest: manifest.digest.clone(),
            packed_size: layer_blobs.iter().map(|layer| layer.size).sum(),
            chain: crate::image::digest::chain(&config.diff_ids),
            diff_ids: config.diff_ids.clone(),
            config_blob,
            layer_blobs,
            config,
            size,
            added: std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
            found_by: manifest.digest.clone(),
            unsynced_boot: Some(boot()),
            manifest,
        }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.version == VERSION && self.unsynced_boot.as_ref().is_none_or(|then| *then == boot())
    }

    /// Its platform.
    pub fn platform(&self) -> Platform {
        self.config.platform()
    }

    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        [&self.manifest, &self.config_blob].into_iter().chain(&self.layer_blobs)
    }
}

impl Store {
    /// `None` if the layer is missing or not whole.
    pub(crate) fn layer(&self, chain: &Digest) -> Result<Option<LayerRecord>> {
        match read::<LayerRecord>(&self.layer_path(chain).join("layer.json")) {
            // A power cut may empty it.
            Err(error) if error.kind() == Kind::Record => Ok(None),
            record => Ok(record?.filter(LayerRecord::is_trusted)),
        }
    }

    /// [`Store::layer`], if the store has `blob`, and verified that it unpacks to the layer.
    pub(crate) fn layer_of(&self, chain: &Digest, blob: &Descriptor) -> Result<Option<LayerRecord>> {
        let fits = |record: &LayerRecord| {
            let is_plain = blob.media_type == OCI_LAYER;
            record.blobs.contains(&blob.digest) && (!is_plain || record.size == blob.size) && self.has_blob(blob)
        };
        Ok(self.layer(chain)?.filter(fits))
    }

    /// `None` if the store lacks the image.
    pub fn image(&self, manifest: &Digest) -> Result<Option<ImageRecord>> {
        read_image(&self.image_path(manifest))
    }

    /// Topmost first.
    pub fn layer_directories(&self, record: &ImageRecord) -> Vec<std::path::PathBuf> {
        record.chain.iter().rev().map(|chain| self.layer_path(chain).join("fs")).collect()
    }

    pub(crate) fn put_image(&self, record: &ImageRecord) -> Result<()> {
        let mut bytes = Vec::new();
        // Without indentation, which multiplies a hostile config.
        serde_json::to_writer(Bounded::new(&mut bytes, LARGEST_RECORD), record).map_err(|_| {
            Error::new(Kind::Image, format!("its config needs a record of more than {LARGEST_RECORD} bytes"))
                .hint("build the image with a smaller config: fewer variables, labels or a shorter health check")
        })?;
        let path = self.image_path(&record.digest);
        files::create_directories(&path, 0o700)?;
        files::replace(&path.join("image.json"), &bytes, 0o600, Durability::Synced)
    }

    /// Oldest first.
    pub fn images(&self) -> Result<Vec<ImageRecord>> {
        let mut images = Vec::new();
        let path = self.path.join("images");
        let entries =
            std::fs::read_dir(&path).map_err(|cause| files::failed(cause, format!("list `{}`", path.display())))?;
        for entry in entries {
            let entry = entry.map_err(|cause| files::failed(cause, format!("list `{}`", path.display())))?;
            // A directory without a record is being made or removed.
            if let Some(record) = read_image(&entry.path())? {
                images.push(record);
            }
        }
        images.sort_by(|a, b| (a.added, a.digest.hex()).cmp(&(b.added, b.digest.hex())));
        Ok(images)
    }
}

fn read_image(directory: &Path) -> Result<Option<ImageRecord>> {
    read(&directory.join("image.json")).map_err(|error| match error.kind() {
        Kind::Record => {
            let digits = directory.file_name().unwrap_or_default().display();
            error.hint(format!("`brig image rm sha256:{digits}` removes the image; then pull or load it again"))
        }
        _ => error,
    })
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let bytes = match files::read_bounded(path, LARGEST_RECORD) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{}`", path.display())))
}

fn boot() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|text| text.trim().to_owned()).unwrap_or_default()
}
