//! `brig image rm`.

use super::{Common, show};
use brig::error::Result;
use clap::Args;

/// Remove names; an image without a name goes too, unless a sandbox uses it
#[derive(Args)]
#[command(after_help = "Examples:
  brig image rm tool:1
  brig image rm 3f2a91")]
pub(super) struct Arguments {
    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let mut all = Vec::new();
    for image in &arguments.images {
        let removed = store.remove(image)?;
        if !common.json {
            removed.untagged.iter().try_for_each(|name| show::line(&format!("untagged {name}")))?;
            removed.removed.iter().try_for_each(|digest| show::line(&format!("removed {digest}")))?;
        }
        all.push(removed);
    }
    if common.json { show::json(&all) } else { Ok(()) }
}
