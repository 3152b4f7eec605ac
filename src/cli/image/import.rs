//! `brig image import`.

use super::{Common, Unpacking, show};
use brig::error::Result;
use brig::image::{Reference, import};
use clap::Args;
use std::path::PathBuf;

/// Make an image of a root file system
#[derive(Args)]
#[command(after_help = "Examples:
  mmdebstrap bookworm | brig image import - debian:mine
  brig image import ./rootfs tool:1 --user 1000 --env LANG=C.UTF-8 -- /bin/bash -l")]
pub(super) struct Arguments {
    /// A tar, packed or not, or a folder; - is standard input
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The image's name
    #[arg(value_name = "REF")]
    name: Reference,
    #[command(flatten)]
    process: super::Process,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let how = arguments.process.overrides();
    let progress = show::Progress::new(common);
    let options = arguments.unpacking.options();
    let record = import(&store, &arguments.path, &arguments.name, &how, &options, &|event| progress.event(event))?;
    if common.json { show::json(&record) } else { show::line(&record.digest.to_string()) }
}
