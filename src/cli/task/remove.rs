//! `brig task rm`

use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Remove ended tasks with all that is kept of them
#[derive(Args)]
pub(super) struct Arguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    for id in store.find_all(&arguments.ids)? {
        store.remove(&id)?;
    }
    Ok(ExitCode::SUCCESS)
}
