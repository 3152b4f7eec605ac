//! `ls`, `inspect` and `verify`: the content of the store.

use super::{Common, show};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::image::Repair;
use brig::sandbox::counted;
use clap::Args;
use serde::Serialize;

/// List the images of the store
#[derive(Args)]
#[command(after_help = "Examples:
  brig image ls
  brig image ls --json | jq -r '.[].name'")]
pub(super) struct LsArguments {}

#[derive(Serialize)]
struct Row {
    name: Option<String>,
    digest: String,
    platform: String,
    layers: usize,
    packed_size: u64,
    size: u64,
    added: u64,
}

pub(super) fn run_ls(_: &LsArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let names = store.names()?;
    let mut rows = Vec::new();
    for image in store.images()? {
        let mut of_image: Vec<_> =
            names.iter().filter(|(_, digest)| *digest == image.digest).map(|(name, _)| Some(name.familiar())).collect();
        if of_image.is_empty() {
            of_image.push(None);
        }
        rows.extend(of_image.into_iter().map(|name| Row {
            name,
            digest: image.digest.to_string(),
            platform: image.platform().to_string(),
            layers: image.chain.len(),
            packed_size: image.packed_size,
            size: image.size,
            added: image.added,
        }));
    }
    if common.json {
        output::json(&rows);
        return Ok(());
    }
    let cells = rows.iter().map(|row| {
        [
            row.name.clone().unwrap_or_else(|| "-".into()),
            row.digest.chars().skip("sha256:".len()).take(12).collect(),
            row.platform.clone(),
            row.layers.to_string(),
            show::bytes(row.packed_size),
            show::bytes(row.size),
            show::age(row.added),
        ]
    });
    output::table(["NAME", "DIGEST", "PLATFORM", "LAYERS", "PACKED", "SIZE", "ADDED"], cells);
    Ok(())
}

/// Show everything that is known about images, as JSON
#[derive(Args)]
#[command(after_help = "Examples:
  brig image inspect debian:12
  brig image inspect 3f2a | jq '.[0].config.env'")]
pub(super) struct InspectArguments {
    /// A name, a digest, or its first digits
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

#[derive(Serialize)]
struct ImageDetails {
    names: Vec<String>,
    #[serde(flatten)]
    record: brig::image::ImageRecord,
    layers: Vec<String>,
}

pub(super) fn run_inspect(arguments: &InspectArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let names = store.names()?;
    let mut rows = Vec::new();
    for text in &arguments.images {
        let record = store.find(text)?;
        rows.push(ImageDetails {
            names: names
                .iter()
                .filter(|(_, digest)| *digest == record.digest)
                .map(|(name, _)| name.to_string())
                .collect(),
            layers: store.layer_directories(&record).iter().map(|path| path.display().to_string()).collect(),
            record,
        });
    }
    output::json(&rows);
    Ok(())
}

/// Prove that the store is whole: unpack every image again and compare
#[derive(Args)]
#[command(after_help = "Examples:
  brig image verify
  brig image verify debian:12 --repair")]
pub(super) struct VerifyArguments {
    /// Images of the store [default: all]
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// Replace damaged layers; remove damaged blobs, so that the next pull or load brings them again
    #[arg(long)]
    repair: bool,
}

pub(super) fn run_verify(arguments: &VerifyArguments, common: &Common) -> Result<()> {
    let repair = if arguments.repair { Repair::Yes } else { Repair::No };
    let verified = common.store()?.verify(&arguments.images, repair)?;
    if common.json {
        output::json(&verified);
    } else {
        for finding in &verified.findings {
            let word = if finding.repaired { "repaired" } else { "damaged" };
            output::line(&format!("{word} {}: {}", finding.image.short(), finding.fault));
        }
        let images = counted(verified.images, "image", "images");
        output::line(&format!("{images}, {}", counted(verified.layers, "layer", "layers")));
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
