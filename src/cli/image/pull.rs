//! `brig image pull`.

use super::registry::Registry;
use super::{Common, Unpacking, show};
use brig::error::Result;
use brig::image::{Pulled, Reference, pull};
use clap::Args;

/// Fetch an image from a registry
#[derive(Args)]
#[command(after_help = "Examples:
  brig image pull debian:12
  brig image pull registry.example/agent:1 --platform linux/arm64
  brig image pull debian:12 --mirror docker.io=mirror.example/hub")]
pub(super) struct Arguments {
    /// A name, with a tag or a digest
    #[arg(value_name = "REF")]
    reference: Reference,
    #[command(flatten)]
    registry: Registry,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let progress = show::Progress::new(common);
    let (registry, options) = (arguments.registry.options(), arguments.unpacking.options());
    let (record, pulled) = pull(&store, &arguments.reference, &registry, &options, &|event| progress.event(event))?;
    let current = pulled == Pulled::Current;
    if common.json {
        return show::json(&serde_json::json!({
            "name": arguments.reference.to_string(), "digest": record.digest, "current": current,
            "layers": record.chain.len(), "packed_size": record.packed_size, "size": record.size,
        }));
    }
    if current && !common.quiet {
        tell!("{} is up to date", arguments.reference.familiar());
    }
    show::line(&record.digest.to_string())
}
