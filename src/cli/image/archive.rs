//! `load`, `save`, `import` and `unpack`: images from and to files.

use super::{Common, Unpacking, show};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::image::{Reference, import, load, save, unpack, unpack_local};
use clap::Args;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Load images from an OCI layout or a docker-archive
#[derive(Args)]
#[command(after_help = "Examples:
  brig image load ./layout --name tool:1
  docker save tool:1 | brig image load
  brig image load image.tar --platform linux/arm64")]
pub(super) struct LoadArguments {
    /// A layout's folder, a tar of one, or what `docker save` writes; - is standard input
    #[arg(default_value = "-", value_name = "PATH")]
    path: PathBuf,
    /// Name the image
    #[arg(long, short, value_name = "REF")]
    name: Option<Reference>,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run_load(arguments: &LoadArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let progress = show::Progress::new(common);
    let options = arguments.unpacking.options();
    let loaded = load(&store, &arguments.path, arguments.name.as_ref(), &options, &|event| progress.event(event))?;
    if common.json {
        output::json(&loaded);
    } else {
        loaded.iter().for_each(|image| output::line(&format!("{}  {}", image.record.digest, image.names.join(", "))));
    }
    Ok(())
}

/// Write images to a tar that `brig image load` and `docker load` take
#[derive(Args)]
#[command(after_help = "Examples:
  brig image save debian:12 -o debian.tar
  brig image save a:1 b:2 | ssh other brig image load")]
pub(super) struct SaveArguments {
    /// Images of the store
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
    /// A file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run_save(arguments: &SaveArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let progress = show::Progress::new(common);
    let report = |event: brig::image::Event<'_>| progress.event(event);
    let Some(path) = &arguments.output else {
        if std::io::stdout().is_terminal() {
            return Err(Error::new(Kind::Usage, "an image is nothing for a terminal").hint("name a file with --output"));
        }
        return save(&store, &arguments.images, std::io::BufWriter::new(std::io::stdout().lock()), &report);
    };
    let staged = path.with_extension(format!("tmp-{}", std::process::id()));
    let failed = |cause: std::io::Error| Error::os(Kind::Disk, cause).doing(format!("write `{}`", path.display()));
    let file = std::fs::File::create(&staged).map_err(failed)?;
    match save(&store, &arguments.images, std::io::BufWriter::new(file), &report) {
        Ok(()) => std::fs::rename(&staged, path).map_err(failed),
        Err(error) => {
            // Report the error of saving, not this one.
            let _ = std::fs::remove_file(&staged);
            Err(error)
        }
    }
}

/// Make an image of a root file system
#[derive(Args)]
#[command(after_help = "Examples:
  mmdebstrap bookworm | brig image import - debian:mine
  brig image import ./rootfs tool:1 --user 1000 --env LANG=C.UTF-8 -- /bin/bash -l")]
pub(super) struct ImportArguments {
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

pub(super) fn run_import(arguments: &ImportArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let how = arguments.process.overrides();
    let progress = show::Progress::new(common);
    let options = arguments.unpacking.options();
    let record = import(&store, &arguments.path, &arguments.name, &how, &options, &|event| progress.event(event))?;
    if common.json {
        output::json(&record)
    } else {
        output::line(&record.digest.to_string())
    }
    Ok(())
}

/// Unpack an image as an OCI bundle: DIR/rootfs and DIR/config.json
#[derive(Args)]
#[command(after_help = "Examples:
  brig image unpack debian:12 ./bundle
  brig image unpack oci:./layout:1.0 ./bundle
  brig image unpack docker-archive:image.tar ./bundle --user 1000:1000 -- sh -l")]
pub(super) struct UnpackArguments {
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

pub(super) fn run_unpack(arguments: &UnpackArguments, common: &Common) -> Result<()> {
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
        output::json(&serde_json::json!({ "bundle": arguments.target, "args": process.args, "cwd": process.cwd }));
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
