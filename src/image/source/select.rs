//! Selects one image from a descriptor: follows indexes by platform.

use super::{Source, document};
use crate::error::{Error, Kind, Result};
use crate::image::config::ImageConfig;
use crate::image::manifest::{Descriptor, Document, Manifest, parse};
use crate::image::platform::{candidates, offered};
use crate::image::{Digest, Platform};
use std::collections::BTreeSet;

/// Honest indexes have two levels.
const DEEPEST: usize = 4;
/// Honest indexes need few; three nested ones of 300 entries each lead to 27 million.
const MOST_DOCUMENTS: usize = 64;

pub(crate) struct SelectedImage {
    pub(crate) descriptor: Descriptor,
    pub(crate) bytes: Vec<u8>,
    pub(crate) manifest: Manifest,
    pub(crate) config: ImageConfig,
    pub(crate) config_bytes: Vec<u8>,
}

pub(crate) fn choose(source: &dyn Source, descriptor: &Descriptor, wanted: Option<&Platform>) -> Result<SelectedImage> {
    let host = Platform::host();
    let platform = wanted.unwrap_or(&host);
    // A single image is taken for any platform, unless the caller names one.
    let insist = wanted.is_some();
    let mut search = Search { source, platform, seen: BTreeSet::new() };
    match search.follow(descriptor, insist, 0)? {
        Some(chosen) => Ok(chosen),
        None => {
            Err(Error::new(Kind::NotFound, format!("no image for {platform}")).hint("choose another with --platform"))
        }
    }
}

struct Search<'a> {
    source: &'a dyn Source,
    platform: &'a Platform,
    seen: BTreeSet<Digest>,
}

impl Search<'_> {
    fn follow(&mut self, descriptor: &Descriptor, insist: bool, depth: usize) -> Result<Option<SelectedImage>> {
        if depth > DEEPEST {
            return Err(Error::new(Kind::Image, format!("indexes are nested more than {DEEPEST} deep")));
        }
        if !self.seen.insert(descriptor.digest.clone()) {
            return Ok(None);
        }
        if self.seen.len() > MOST_DOCUMENTS {
            return Err(Error::new(Kind::Image, format!("its index leads to more than {MOST_DOCUMENTS} documents"))
                .hint("name the image itself, by its digest"));
        }
        let bytes = document(self.source, descriptor)?;
        match parse(&bytes, Some(&descriptor.media_type))? {
            Document::Manifest(manifest) => {
                let chosen = complete(self.source, descriptor, bytes, manifest)?;
                let fits = !insist || fits(&chosen.config, self.platform);
                Ok(fits.then_some(chosen))
            }
            Document::Index(index) => {
                for candidate in candidates(&index, self.platform)? {
                    if let Some(chosen) = self.follow(&candidate, true, depth + 1)? {
                        return Ok(Some(chosen));
                    }
                }
                if depth > 0 {
                    return Ok(None);
                }
                let offered = offered(&index);
                let offers = if offered.is_empty() { "none at all".to_owned() } else { offered.join(", ") };
                let platform = self.platform;
                Err(Error::new(Kind::NotFound, format!("no image for {platform}, only for {offers}"))
                    .hint("choose one of these with --platform"))
            }
        }
    }
}

fn fits(config: &ImageConfig, platform: &Platform) -> bool {
    // The index has the variant; a config often omits it.
    config.os == platform.os && config.architecture == platform.architecture
}

fn complete(source: &dyn Source, descriptor: &Descriptor, bytes: Vec<u8>, manifest: Manifest) -> Result<SelectedImage> {
    let config_bytes = document(source, &manifest.config)?;
    let config = ImageConfig::parse(&config_bytes)?;
    if config.diff_ids.len() != manifest.layers.len() {
        let (layers, diff_ids) = (manifest.layers.len(), config.diff_ids.len());
        return Err(Error::new(Kind::Image, format!("its manifest has {layers} layers and its config {diff_ids}")));
    }
    Ok(SelectedImage { descriptor: descriptor.clone(), bytes, manifest, config, config_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::{OCI_INDEX, OCI_MANIFEST};
    use crate::image::source::Blob;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Shelf(BTreeMap<Digest, Vec<u8>>, AtomicUsize);

    impl Source for Shelf {
        fn open(&self, descriptor: &Descriptor, _: u64) -> Result<Blob<'_>> {
            let asked = self.1.fetch_add(1, Ordering::Relaxed);
            assert!(asked < 1000, "there is no end to it");
            Ok(Box::new(self.0[&descriptor.digest].as_slice()))
        }

        fn name(&self) -> String {
            "a shelf".into()
        }
    }

    impl Shelf {
        /// Returns an index entry for the document.
        fn put(&mut self, media_type: &str, document: &Value) -> Value {
            let bytes = document.to_string().into_bytes();
            let entry =
                json!({ "mediaType": media_type, "digest": Digest::of(&bytes).to_string(), "size": bytes.len() });
            self.0.insert(Digest::of(&bytes), bytes);
            entry
        }

        fn index(&mut self, entries: &[Value]) -> Value {
            self.put(OCI_INDEX, &json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries }))
        }

        fn image(&mut self, architecture: &str) -> Value {
            let config =
                json!({ "architecture": architecture, "os": "linux", "rootfs": { "type": "layers", "diff_ids": [] } });
            let config = self.put("application/vnd.oci.image.config.v1+json", &config);
            self.put(
                OCI_MANIFEST,
                &json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [] }),
            )
        }

        /// The choice for amd64, or the error, and the number of reads.
        fn choose(&self, from: &Value) -> (String, usize) {
            let from = Descriptor::new(&serde_json::from_value(from.clone()).unwrap()).unwrap();
            let wanted = "linux/amd64".parse().unwrap();
            let chosen = choose(self, &from, Some(&wanted));
            let said = chosen.map_or_else(|error| error.to_string(), |chosen| chosen.config.architecture);
            (said, self.1.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn an_index_that_names_the_same_again_and_again_is_read_once() {
        let mut shelf = Shelf::default();
        let other = shelf.image("s390x");
        let deepest = shelf.index(&vec![other; 300]);
        let middle = shelf.index(&vec![deepest; 300]);
        let top = shelf.index(&vec![middle.clone(); 300]);
        // Three indexes, a manifest and its config.
        assert_eq!(shelf.choose(&top), ("no image for linux/amd64, only for none at all".into(), 5));
        let mut shelf = Shelf(shelf.0, AtomicUsize::new(0));
        let wanted = shelf.image("amd64");
        let top = shelf.index(&[middle.clone(), middle, wanted]);
        assert_eq!(shelf.choose(&top), ("amd64".into(), 7));
    }

    #[test]
    fn an_index_that_leads_to_ever_more_documents_is_refused() {
        let mut shelf = Shelf::default();
        let images: Vec<Value> = (0..70).map(|number| shelf.image(&format!("cpu{number}"))).collect();
        let parts: Vec<Value> = images.chunks(10).map(|part| shelf.index(part)).collect();
        let top = shelf.index(&parts);
        let (said, read) = shelf.choose(&top);
        assert_eq!(said, "its index leads to more than 64 documents");
        assert!(read <= 2 * MOST_DOCUMENTS, "{read}");
    }
}
