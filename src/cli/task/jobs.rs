//! `brig task jobs`: the processes that `brig task exec --detach` has begun.

use crate::cli::output;
use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

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
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
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
