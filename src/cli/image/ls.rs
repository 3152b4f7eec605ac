//! `brig image ls`.

use super::{Common, show};
use brig::error::Result;
use clap::Args;
use serde::Serialize;

/// List the images of the store
#[derive(Args)]
#[command(after_help = "Examples:
  brig image ls
  brig image ls --json | jq -r '.[].name'")]
pub(super) struct Arguments {}

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

pub(super) fn run(_: &Arguments, common: &Common) -> Result<()> {
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
        return show::json(&rows);
    }
    let mut table =
        vec![["NAME", "DIGEST", "PLATFORM", "LAYERS", "PACKED", "SIZE", "ADDED"].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        vec![
            row.name.clone().unwrap_or_else(|| "-".into()),
            row.digest.chars().skip("sha256:".len()).take(12).collect(),
            row.platform.clone(),
            row.layers.to_string(),
            show::bytes(row.packed_size),
            show::bytes(row.size),
            show::age(row.added),
        ]
    }));
    show::table(&table)
}
