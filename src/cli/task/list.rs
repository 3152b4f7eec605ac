//! `brig task ls`

use crate::cli::output;
use brig::error::Result;
use brig::task::{Filter, Store};
use clap::Args;
use std::process::ExitCode;

/// List tasks, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task ls --filter status=running
  brig task ls --filter label=team=search --filter label=nightly --json

A filter is label=KEY, label=KEY=VALUE, status=WORD or name=NAME. WORD is running, ended, lost, an outcome, or the state of
a health check: starting, healthy, unhealthy.")]
pub(super) struct Arguments {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Only tasks that fulfil this (repeat: all of them)
    #[arg(long, value_name = "FILTER")]
    filter: Vec<String>,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let filters = arguments.filter.iter().map(|text| text.parse()).collect::<Result<Vec<Filter>>>()?;
    let (mut rows, unread) = store.list()?;
    rows.retain(|row| filters.iter().all(|filter| filter.matches(row)));
    if arguments.json {
        output::json(&rows);
    } else if arguments.quiet {
        output::lines(rows.iter().map(|row| row.id.clone()));
    } else {
        let cells = rows.iter().map(|row| {
            let status = row.outcome.clone().unwrap_or_else(|| row.status.word().to_owned());
            let health = row.health.map_or_else(String::new, |health| format!(" ({})", health.word()));
            let status = status + &health;
            let time = row.wall_seconds.map_or_else(String::new, |seconds| format!("{seconds:.2}s"));
            let created = output::moment(&row.created);
            let name = row.name.clone().unwrap_or_default();
            [row.id.clone(), name, status, created, time, output::shortened(&row.command.join(" "), 60)]
        });
        output::table(["ID", "NAME", "OUTCOME", "CREATED", "TIME", "COMMAND"], cells);
    }
    unread.iter().for_each(output::error);
    Ok(ExitCode::SUCCESS)
}
