//! `tag`, `rm` and `prune`: names of images, and the removal of unnamed ones.

use super::{Common, show};
use brig::error::Result;
use brig::image::Reference;
use clap::Args;

/// Give an image another name
#[derive(Args)]
#[command(after_help = "Examples:
  brig image tag debian:12 registry.example/base:1")]
pub(super) struct TagArguments {
    /// A name, a digest, or its first digits
    image: String,
    /// The new name
    name: Reference,
}

pub(super) fn run_tag(arguments: &TagArguments, common: &Common) -> Result<()> {
    common.store()?.tag(&arguments.image, &arguments.name)
}

/// Remove names; an image without a name goes too, unless a sandbox uses it
#[derive(Args)]
#[command(after_help = "Examples:
  brig image rm tool:1
  brig image rm 3f2a91")]
pub(super) struct RmArguments {
    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

pub(super) fn run_rm(arguments: &RmArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let mut all = Vec::new();
    for image in &arguments.images {
        let removed = store.remove(image)?;
        if !common.json {
            removed.untagged.iter().try_for_each(|name| show::line(&format!("untagged {name}")))?;
            removed.removed.iter().try_for_each(|digest| show::line(&format!("removed {digest}")))?;
        }
        all.push(removed);
    }
    if common.json { show::json(&all) } else { Ok(()) }
}

/// Remove images without a name, and layers and blobs without an image
#[derive(Args)]
#[command(after_help = "What a running sandbox uses stays.

Examples:
  brig image prune
  brig image prune --json | jq .bytes")]
pub(super) struct PruneArguments {}

pub(super) fn run_prune(_: &PruneArguments, common: &Common) -> Result<()> {
    let pruned = common.store()?.prune()?;
    if common.json {
        return show::json(&pruned);
    }
    pruned.images.iter().try_for_each(|digest| show::line(&format!("removed {digest}")))?;
    pruned.in_use.iter().try_for_each(|digest| show::line(&format!("in use {digest}")))?;
    let (layers, blobs, bytes) = (pruned.layers, pruned.blobs, show::bytes(pruned.bytes));
    show::line(&format!("{layers} layers, {blobs} blobs and {} leftovers removed: {bytes}", pruned.leftovers))
}
