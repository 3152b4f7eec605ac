//! `brig image inspect`.

use super::{Common, show};
use brig::error::Result;
use clap::Args;
use serde::Serialize;

/// Show everything that is known about images, as JSON
#[derive(Args)]
#[command(after_help = "Examples:
  brig image inspect debian:12
  brig image inspect 3f2a | jq '.[0].config.env'")]
pub(super) struct Arguments {
    /// A name, a digest, or its first digits
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    names: Vec<String>,
    #[serde(flatten)]
    record: brig::image::ImageRecord,
    layers: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let names = store.names()?;
    let mut rows = Vec::new();
    for text in &arguments.images {
        let record = store.find(text)?;
        rows.push(Row {
            names: names
                .iter()
                .filter(|(_, digest)| *digest == record.digest)
                .map(|(name, _)| name.to_string())
                .collect(),
            layers: store.layer_directories(&record).iter().map(|path| path.display().to_string()).collect(),
            record,
        });
    }
    show::json(&rows)
}
