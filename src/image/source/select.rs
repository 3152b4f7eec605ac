//! From a descriptor to one image: indexes are followed, the platform decides.

use super::{Source, document};
use crate::error::{Error, Kind, Result};
use crate::image::Platform;
use crate::image::config::ImageConfig;
use crate::image::manifest::{Descriptor, Document, Manifest, parse};
use crate::image::platform::{candidates, offered};

/// Indexes within indexes; honest ones have two at most.
const DEEPEST: usize = 4;

/// One image: its manifest, as bytes too, and its config.
pub(crate) struct Chosen {
    pub(crate) descriptor: Descriptor,
    pub(crate) bytes: Vec<u8>,
    pub(crate) manifest: Manifest,
    pub(crate) config: ImageConfig,
    pub(crate) config_bytes: Vec<u8>,
}

/// Follows `descriptor` to the image for `wanted`; without one, for this machine, where there is a choice.
pub(crate) fn choose(source: &dyn Source, descriptor: &Descriptor, wanted: Option<&Platform>) -> Result<Chosen> {
    let host = Platform::host();
    let platform = wanted.unwrap_or(&host);
    // A single image without a choice is taken as it is, unless the caller insists.
    let insist = wanted.is_some();
    match follow(source, descriptor, platform, insist, 0)? {
        Some(chosen) => Ok(chosen),
        None => Err(Error::new(Kind::NotFound, format!("there is no image for {platform}"))
            .hint("choose another with --platform")),
    }
}

fn follow(
    source: &dyn Source,
    descriptor: &Descriptor,
    platform: &Platform,
    insist: bool,
    depth: usize,
) -> Result<Option<Chosen>> {
    if depth > DEEPEST {
        return Err(Error::new(Kind::Image, format!("indexes are nested more than {DEEPEST} deep")));
    }
    let bytes = document(source, descriptor)?;
    match parse(&bytes, Some(&descriptor.media_type))? {
        Document::Manifest(manifest) => {
            let chosen = complete(source, descriptor, bytes, manifest)?;
            let fits = !insist || fits(&chosen.config, platform);
            Ok(fits.then_some(chosen))
        }
        Document::Index(index) => {
            for candidate in candidates(&index, platform)? {
                if let Some(chosen) = follow(source, &candidate, platform, true, depth + 1)? {
                    return Ok(Some(chosen));
                }
            }
            if depth > 0 {
                return Ok(None);
            }
            let offered = offered(&index);
            let offers = if offered.is_empty() { "none at all".to_owned() } else { offered.join(", ") };
            Err(Error::new(Kind::NotFound, format!("there is no image for {platform}, only for {offers}"))
                .hint("choose one of these with --platform"))
        }
    }
}

fn fits(config: &ImageConfig, platform: &Platform) -> bool {
    // The variant stands in the index; a config often leaves it out.
    config.os == platform.os && config.architecture == platform.architecture
}

fn complete(source: &dyn Source, descriptor: &Descriptor, bytes: Vec<u8>, manifest: Manifest) -> Result<Chosen> {
    let config_bytes = document(source, &manifest.config)?;
    let config = ImageConfig::parse(&config_bytes)?;
    if config.diff_ids.len() != manifest.layers.len() {
        let (layers, diff_ids) = (manifest.layers.len(), config.diff_ids.len());
        return Err(Error::new(Kind::Image, format!("its manifest has {layers} layers and its config {diff_ids}")));
    }
    Ok(Chosen { descriptor: descriptor.clone(), bytes, manifest, config, config_bytes })
}
