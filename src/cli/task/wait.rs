//! `brig task wait`: until a task has ended, with its exit status.

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

/// Wait for the end of a task and exit as it did
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task wait k3f && brig task diff k3f
  brig task wait --timeout 10m --json k3f | jq .outcome")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Give up after this time, with exit status 124; the task goes on
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Wait for a job of `brig task exec --detach` and exit as it did
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Print the receipt, or the record of the job, as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    if let Some(job) = &arguments.job {
        return wait_for_job(store, &id, job, arguments);
    }
    let Some(receipt) = store.wait(&id, arguments.timeout)? else {
        output::error(&Error::new(Kind::State, "it has not ended in time").doing(format!("wait for the task `{id}`")));
        return Ok(ExitCode::from(124));
    };
    if arguments.json {
        output::json(&receipt);
    } else {
        tell!("brig: task {id} {}", receipt.outcome.word());
    }
    Ok(ExitCode::from(receipt.exit_status))
}

fn wait_for_job(store: &Store, id: &str, job: &str, arguments: &Arguments) -> Result<ExitCode> {
    let Some(record) = store.wait_for_job(id, job, arguments.timeout)? else {
        let error = Error::new(Kind::State, "it has not ended in time");
        output::error(&error.doing(format!("wait for the job `{job}` of the task `{id}`")));
        return Ok(ExitCode::from(124));
    };
    if arguments.json {
        output::json(&record);
    } else {
        let limit = record.limit_words().map_or_else(String::new, |words| format!(": it was killed at {words}"));
        tell!("brig: job {} {}{limit}", record.id, record.state.word());
    }
    Ok(record.exit_status.map_or(ExitCode::from(125), ExitCode::from))
}
