//! `brig task prune` and `rm`: the removal of ended tasks.

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::{Filter, PruneOptions, Store};
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

/// Remove ended tasks by age, number or size, oldest first; by age also checkouts and mirrors of repositories that no task needs
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task prune --older-than 30d --keep 1000
  brig task prune --max-size 20G --dry-run
  brig task prune --label nightly --older-than 2d
  brig task prune --workspaces --older-than 2d     kept workspaces only; the records stay")]
pub(super) struct PruneArguments {
    /// Those that began longer ago, and what was fetched of repositories and has not been used since
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// All but so many of the newest
    #[arg(long, value_name = "NUMBER")]
    keep: Option<usize>,
    /// The oldest, until all together take no more
    #[arg(long, value_name = "SIZE", value_parser = brig::sandbox::parse_size)]
    max_size: Option<u64>,
    /// Only those with this label, KEY or KEY=VALUE (repeat: all of them); with nothing else, all of these
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Give up kept workspaces only
    #[arg(long)]
    workspaces: bool,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn prune(store: &Store, arguments: &PruneArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let options = PruneOptions {
        older_than: arguments.older_than,
        keep: arguments.keep,
        max_size: arguments.max_size,
        filters: arguments.labels.iter().map(|text| Filter::label(text)).collect::<Result<_>>()?,
        workspaces_only: arguments.workspaces,
        dry_run: arguments.dry_run,
    };
    let has_bound = (options.older_than, options.keep, options.max_size) != (None, None, None);
    if !has_bound && options.filters.is_empty() {
        return Err(Error::new(Kind::Usage, "no flag chooses what to remove")
            .hint("give --older-than TIME, --keep NUMBER, --max-size SIZE or --label LABEL"));
    }
    let gone = store.prune(&options)?;
    if arguments.json {
        output::json(&gone);
        return Ok(ExitCode::SUCCESS);
    }
    let rows = gone.iter().map(|each| [each.kind.to_owned(), each.id.clone(), output::approximate(each.bytes)]);
    output::table(["KIND", "ID", "SIZE"], rows);
    Ok(ExitCode::SUCCESS)
}

/// Remove ended tasks with all that is kept of them
#[derive(Args)]
pub(super) struct RmArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(super) fn remove(store: &Store, arguments: &RmArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    for id in store.find_all(&arguments.ids)? {
        store.remove(&id)?;
    }
    Ok(ExitCode::SUCCESS)
}
