//! `brig worker ls`, `show` and `history`.

use crate::cli::output;
use brig::error::Result;
use brig::task::Store;
use brig::worker::{Death, Folder};
use clap::Args;
use std::process::ExitCode;

/// List workers with their state and their health
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker ls
  brig worker ls --json | jq -r '.[] | select(.state != \"running\") | .name'

The state is running, starting, restarting, failed or down.")]
pub(super) struct LsArguments {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

/// Show one worker: its state, its unit, its last death
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker show search
  brig worker show search --json | jq .health")]
pub(super) struct ShowArguments {
    /// The worker
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List each death of a worker with its reason, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker history search
  brig worker history search --json | jq -r '.[].outcome' | sort | uniq -c

`brig task show ID` has the whole receipt. `brig task prune` removes old ones, and their deaths with them.")]
pub(super) struct HistoryArguments {
    /// The worker
    name: String,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn ls(folder: &Folder, store: &Store, arguments: &LsArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let (states, error) = brig::worker::states(folder, store)?;
    if arguments.json {
        output::json(&states);
    } else {
        let cells = states.iter().map(|state| {
            let health = state.health.map_or_else(String::new, |health| health.word().to_owned());
            let since = state.since.as_deref().map_or_else(String::new, output::moment);
            let task = state.task.clone().unwrap_or_default();
            let last = state.last_death.as_ref().map_or_else(String::new, Death::words);
            let name = if state.has_file { state.name.clone() } else { format!("{} (no file)", state.name) };
            let deaths = state.deaths.to_string();
            [name, state.state.to_owned(), health, task, since, deaths, output::shortened(&last, 60)]
        });
        output::table(["NAME", "STATE", "HEALTH", "TASK", "SINCE", "DEATHS", "LAST DEATH"], cells);
    }
    error.iter().for_each(output::error);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(folder: &Folder, store: &Store, arguments: &ShowArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let state = brig::worker::state(folder, store, &arguments.name)?;
    if arguments.json {
        output::json(&state);
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![("worker", state.name), ("state", state.state.to_owned())];
    rows.extend(state.health.map(|health| ("health", health.word().to_owned())));
    rows.extend(state.task.map(|task| ("task", task)));
    rows.extend(state.since.map(|since| ("since", output::moment(&since))));
    rows.extend(state.image.map(|image| ("image", image)));
    if !state.has_file {
        rows.push(("file", "is gone: brig worker apply stops it".to_owned()));
    }
    if let Some(unit) = state.unit {
        let enabled = if unit.enabled { "" } else { ", does not start with the machine" };
        rows.push(("unit", format!("{} ({}){enabled}", unit.active, unit.sub)));
        rows.push(("restarts", unit.restarts.to_string()));
    }
    rows.push(("deaths", state.deaths.to_string()));
    if let Some(death) = state.last_death {
        rows.push(("last death", format!("{} {}", output::moment(&death.ended), death.words())));
    }
    output::pairs(&rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Vec<_>>(), false);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn history(folder: &Folder, store: &Store, arguments: &HistoryArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let deaths = brig::worker::history(store, &arguments.name)?;
    if deaths.is_empty() {
        brig::worker::state(folder, store, &arguments.name)?; // an unknown name is an error
    }
    if arguments.json {
        output::json(&deaths);
    } else {
        let cells = deaths.iter().map(|death| {
            let reasons = output::shortened(&death.reasons.join("; "), 120);
            let ran = format!("{:.1}s", death.wall_seconds);
            [death.task.clone(), output::moment(&death.ended), ran, death.outcome.clone(), reasons]
        });
        output::table(["TASK", "ENDED", "RAN", "OUTCOME", "REASON"], cells);
    }
    Ok(ExitCode::SUCCESS)
}
