//! `brig worker diff`, `apply` and `update`.

use crate::cli::output;
use crate::cli::task::run::{Pull, fetch};
use brig::error::{Error, Kind, Result};
use brig::task::{ImageWish, Store};
use brig::worker::{Change, Folder};
use clap::Args;
use std::process::ExitCode;

/// Show what `apply` would do
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker diff
  brig worker diff --json | jq length        0 if the units match the files")]
pub(super) struct DiffArguments {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

/// Make the units match the files: start new workers, restart changed ones, stop those without a file
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker apply
  brig worker apply search mail              these alone

It waits until each worker is ready. A worker that is restarted or stopped is drained first.")]
pub(super) struct ApplyArguments {
    /// Only these workers [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

/// Fetch a worker's image, replace the worker, and go back to the former image if it does not become healthy
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker update search
  brig worker update search --no-pull        the store has the new image: brig image load

The exit status is 1 if the former image runs again.")]
pub(super) struct UpdateArguments {
    /// The worker
    name: String,
    /// Take the image that the store has under that name
    #[arg(long)]
    no_pull: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn print(changes: &[Change], json: bool) {
    if json {
        return output::json(&changes);
    }
    let cells = changes.iter().map(|each| [each.worker.clone(), each.change.word().to_owned(), each.reason.to_owned()]);
    output::table(["NAME", "CHANGE", "REASON"], cells);
}

pub(super) fn diff(folder: &Folder, store: &Store, arguments: &DiffArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    print(&brig::worker::changes(folder, store)?, arguments.json);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn apply(folder: &Folder, store: &Store, arguments: &ApplyArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    for name in &arguments.names {
        brig::worker::state(folder, store, name)?; // an unknown name is an error
    }
    let mut changes = brig::worker::changes(folder, store)?;
    changes.retain(|change| arguments.names.is_empty() || arguments.names.contains(&change.worker));
    // One worker that does not start keeps no other from its change.
    let failed: Vec<_> = changes.iter().filter_map(|change| brig::worker::apply(change).err()).collect();
    print(&changes, arguments.json);
    failed.iter().for_each(output::error);
    Ok(failed.first().map_or(ExitCode::SUCCESS, |error| ExitCode::from(error.kind().exit_status())))
}

pub(super) fn fetch_image(store: &Store, wish: &ImageWish, when: Pull) -> Result<()> {
    match fetch(store.root(), wish, when, None)? {
        Some(_) => Err(Error::new(Kind::Registry, format!("the image `{}` was not fetched", wish.reference))
            .hint("the lines above have the reason")),
        None => Ok(()),
    }
}

pub(super) fn update(folder: &Folder, store: &Store, arguments: &UpdateArguments) -> Result<ExitCode> {
    let mut pull = |reference: &str| {
        let wish = ImageWish { reference: reference.to_owned(), ..ImageWish::default() };
        let when = if arguments.no_pull { Pull::Never } else { Pull::Always };
        fetch_image(store, &wish, when)
    };
    let update = brig::worker::update(folder, store, &arguments.name, &mut pull)?;
    if arguments.json {
        output::json(&update);
    } else {
        let words = match (update.result, &update.reason) {
            ("unchanged", _) => format!("{}: the image has not changed: {}", update.worker, update.from),
            (_, None) => format!("{}: updated from {} to {}", update.worker, update.from, update.to),
            (_, Some(why)) => format!("{}: back on {}, since {} failed: {why}", update.worker, update.from, update.to),
        };
        output::line(&words);
    }
    Ok(if update.reason.is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
