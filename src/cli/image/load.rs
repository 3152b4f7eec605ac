//! `brig image load`.

use super::{Common, Unpacking, show};
use brig::error::Result;
use brig::image::{Reference, load};
use clap::Args;
use std::path::PathBuf;

/// Load images from an OCI layout or a docker-archive
#[derive(Args)]
#[command(after_help = "Examples:
  brig image load ./layout --name tool:1
  docker save tool:1 | brig image load
  brig image load image.tar --platform linux/arm64")]
pub(super) struct Arguments {
    /// A layout's folder, a tar of one, or what `docker save` writes; - is standard input
    #[arg(default_value = "-", value_name = "PATH")]
    path: PathBuf,
    /// Name the image
    #[arg(long, short, value_name = "REF")]
    name: Option<Reference>,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let progress = show::Progress::new(common);
    let options = arguments.unpacking.options();
    let loaded = load(&store, &arguments.path, arguments.name.as_ref(), &options, &|event| progress.event(event))?;
    if common.json {
        return show::json(&loaded);
    }
    loaded.iter().try_for_each(|image| show::line(&format!("{}  {}", image.record.digest, image.names.join(", "))))
}
