//! `brig image prune`.

use super::{Common, show};
use brig::error::Result;
use clap::Args;

/// Remove images without a name, and layers and blobs without an image
#[derive(Args)]
#[command(after_help = "What a running sandbox uses stays.

Examples:
  brig image prune
  brig image prune --json | jq .bytes")]
pub(super) struct Arguments {}

pub(super) fn run(_: &Arguments, common: &Common) -> Result<()> {
    let pruned = common.store()?.prune()?;
    if common.json {
        return show::json(&pruned);
    }
    pruned.images.iter().try_for_each(|digest| show::line(&format!("removed {digest}")))?;
    pruned.in_use.iter().try_for_each(|digest| show::line(&format!("in use {digest}")))?;
    let (layers, blobs, bytes) = (pruned.layers, pruned.blobs, show::bytes(pruned.bytes));
    show::line(&format!("{layers} layers, {blobs} blobs and {} leftovers removed: {bytes}", pruned.leftovers))
}
