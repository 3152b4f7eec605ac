//! `brig task revoke`

use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Take a secret back from a running task: its file is gone when this returns
#[derive(Args)]
#[command(after_help = "\
Example:
  brig task revoke 1a2b GH_TOKEN

What the command has read already, it has; revoke the credential where it was issued too.")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The secret's name
    name: String,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    brig::task::revoke(store, &store.find(&arguments.id)?, &arguments.name)?;
    Ok(ExitCode::SUCCESS)
}
