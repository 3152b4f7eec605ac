//! `brig image save`.

use super::{Common, show};
use brig::error::{Error, Kind, Result};
use brig::image::save;
use clap::Args;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Write images to a tar that `brig image load` and `docker load` take
#[derive(Args)]
#[command(after_help = "Examples:
  brig image save debian:12 -o debian.tar
  brig image save a:1 b:2 | ssh other brig image load")]
pub(super) struct Arguments {
    /// Images of the store
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
    /// A file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
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
            // The error of saving is the one to tell.
            let _ = std::fs::remove_file(&staged);
            Err(error)
        }
    }
}
