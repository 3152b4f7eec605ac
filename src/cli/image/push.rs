//! `brig image push`.

use super::registry::Registry;
use super::{Common, show};
use brig::error::Result;
use brig::image::{Reference, push};
use clap::Args;

/// Send an image to a registry
#[derive(Args)]
#[command(after_help = "Examples:
  brig image push registry.example/agent:1
  brig image push agent:1 registry.example/agent:1")]
pub(super) struct Arguments {
    /// An image of the store
    image: String,
    /// Where to [default: the image's own name]
    #[arg(value_name = "REF")]
    target: Option<Reference>,
    #[command(flatten)]
    registry: Registry,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let target = match &arguments.target {
        Some(target) => target.clone(),
        None => arguments.image.parse()?,
    };
    let progress = show::Progress::new(common);
    let options = arguments.registry.options();
    let digest = push(&store, &arguments.image, &target, &options, &|event| progress.event(event))?;
    if common.json {
        show::json(&serde_json::json!({ "name": target.to_string(), "digest": digest }))
    } else {
        show::line(&digest)
    }
}
