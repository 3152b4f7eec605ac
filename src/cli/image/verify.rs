//! `brig image verify`.

use super::{Common, show};
use brig::error::{Error, Kind, Result};
use brig::image::Repair;
use clap::Args;

/// Prove that the store is whole: unpack every image again and compare
#[derive(Args)]
#[command(after_help = "Examples:
  brig image verify
  brig image verify debian:12 --repair")]
pub(super) struct Arguments {
    /// Images of the store [default: all]
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// Replace damaged layers; remove damaged blobs, so that the next pull or load brings them again
    #[arg(long)]
    repair: bool,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let repair = if arguments.repair { Repair::Yes } else { Repair::No };
    let verified = common.store()?.verify(&arguments.images, repair)?;
    if common.json {
        show::json(&verified)?;
    } else {
        for finding in &verified.findings {
            let word = if finding.repaired { "repaired" } else { "damaged" };
            show::line(&format!("{word} {}: {}", finding.image.short(), finding.fault))?;
        }
        show::line(&format!("{} images, {} layers", verified.images, verified.layers))?;
    }
    let left = verified.findings.iter().filter(|finding| !finding.repaired).count();
    match left {
        0 => Ok(()),
        count => Err(Error::new(Kind::Image, format!("{count} faults")).doing("verify the store").hint(
            if arguments.repair {
                "pull or load the image again; what is in use can be repaired when that has ended"
            } else {
                "mend them with --repair"
            },
        )),
    }
}
