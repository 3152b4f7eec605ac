//! `brig image unpack`.

use super::{Common, Unpacking, show};
use brig::error::Result;
use brig::image::{unpack, unpack_local};
use clap::Args;
use std::path::{Path, PathBuf};

/// Unpack an image as an OCI bundle: DIR/rootfs and DIR/config.json
#[derive(Args)]
#[command(after_help = "Examples:
  brig image unpack debian:12 ./bundle
  brig image unpack oci:./layout:1.0 ./bundle
  brig image unpack docker-archive:image.tar ./bundle --user 1000:1000 -- sh -l")]
pub(super) struct Arguments {
    /// An image of the store, or oci:PATH[:TAG] or docker-archive:PATH[:NAME] straight from a file
    #[arg(value_name = "IMAGE")]
    image: String,
    /// A new or empty directory
    #[arg(value_name = "DIR")]
    target: PathBuf,
    #[command(flatten)]
    process: super::Process,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let overrides = arguments.process.overrides();
    let local = arguments.image.strip_prefix("oci:").or_else(|| arguments.image.strip_prefix("docker-archive:"));
    let process = match local {
        None => unpack(&common.store()?, &arguments.image, &arguments.target, &overrides)?,
        Some(place) => {
            let (path, tag) = split(place);
            let progress = show::Progress::new(common);
            let options = arguments.unpacking.options();
            unpack_local(path, tag, &arguments.target, &options, &overrides, &|event| progress.event(event))?
        }
    };
    if common.json {
        return show::json(
            &serde_json::json!({ "bundle": arguments.target, "args": process.args, "cwd": process.cwd }),
        );
    }
    Ok(())
}

/// Splits a location into path and selection. An existing path may contain colons.
fn split(place: &str) -> (&Path, Option<&str>) {
    if Path::new(place).exists() {
        return (Path::new(place), None);
    }
    place.split_once(':').map_or((Path::new(place), None), |(path, tag)| (Path::new(path), Some(tag)))
}
