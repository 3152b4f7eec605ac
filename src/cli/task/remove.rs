//! `brig task rm`

use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Remove ended tasks with all that is kept of them
#[derive(Args)]
pub(super) struct Arguments {
    /// The tasks' ids, or their beginnings
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    for word in &arguments.ids {
        store.remove(&store.find(word)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
