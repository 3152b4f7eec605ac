//! `brig task ls` and `jobs`: tasks, and the processes that `brig task exec --detach` has begun.

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
pub(super) struct LsArguments {
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

pub(super) fn ls(store: &Store, arguments: &LsArguments) -> Result<ExitCode> {
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

/// List the jobs of a task, which `brig task exec --detach` has begun
#[derive(Args)]
#[command(after_help = "\
Examples:
  job=$(brig task exec -d k3f -- make test)
  brig task jobs k3f
  brig task logs -f k3f --job $job
  brig task wait k3f --job $job
  brig task stop k3f --job $job

A task has at most 16 jobs at a time. The logs of its jobs have at most as many bytes together as --output-bytes.")]
pub(super) struct JobsArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn jobs(store: &Store, arguments: &JobsArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let jobs = store.jobs(&store.find(&arguments.id)?)?;
    if arguments.json {
        output::json(&jobs);
        return Ok(ExitCode::SUCCESS);
    }
    let cells = jobs.iter().map(|job| {
        [
            job.id.clone(),
            job.state.word().to_owned(),
            job.exit_status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            output::moment(&job.started),
            output::shortened(&job.command.join(" "), 60),
        ]
    });
    output::table(["JOB", "STATE", "STATUS", "STARTED", "COMMAND"], cells);
    Ok(ExitCode::SUCCESS)
}
