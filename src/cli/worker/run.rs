//! `brig worker run`: the process of a worker's unit.

use crate::cli::task::image::{Pull, fetch};
use crate::cli::task::run::tell;
use crate::cli::task::screen::Screen;
use brig::error::Result;
use brig::task::Store;
use brig::worker::Folder;
use clap::Args;
use std::process::ExitCode;

/// Run a worker in the foreground, as its unit does
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker run search                               with /etc/brig/workers/search.toml
  brig worker run --workers . search                   try a file before it is installed

It reports to systemd (sd_notify): ready when the health check passes, alive while it passes. The exit status is 0 for
a wished end, 75 for the end of a command that is to run again (restart = \"always\"), and 78 for a failure after which
the worker stays down (restart = \"no\").")]
pub(super) struct Arguments {
    /// The worker
    name: String,
}

pub(super) fn main(folder: &Folder, store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    let worker = folder.read(&arguments.name)?;
    if let Some(wish) = &worker.definition.image
        && let Some(failed) = fetch(store.root(), wish, Pull::Missing)?
    {
        return Ok(failed);
    }
    let receipt = brig::task::run(store, &worker.definition, &mut Screen::new(false, false))?;
    tell(&receipt);
    Ok(ExitCode::from(worker.exit_status(&receipt)))
}
