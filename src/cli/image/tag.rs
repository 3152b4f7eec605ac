//! `brig image tag`.

use super::Common;
use brig::error::Result;
use brig::image::Reference;
use clap::Args;

/// Give an image another name
#[derive(Args)]
#[command(after_help = "Examples:
  brig image tag debian:12 registry.example/base:1")]
pub(super) struct Arguments {
    /// A name, a digest, or its first digits
    image: String,
    /// The new name
    name: Reference,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    common.store()?.tag(&arguments.image, &arguments.name)
}
