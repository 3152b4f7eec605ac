//! `brig task events`

use crate::cli::output;
use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Print the events of a task, one JSON object a line
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task events -f k3f | jq -r 'select(.event == \"limit\")'
  brig task events --since 120 k3f

Each line has `v` (1), `seq`, `time`, `task` and `event`: state, output (with its `text`), limit, usage, egress, progress,
exec, left_out or ended.")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print what comes, too, until the task has ended
    #[arg(short, long)]
    follow: bool,
    /// Leave out those with a lower number
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    since: u64,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let mut events = store.events(&id)?;
    while let Some(found) = events.available()? {
        let is_empty = found.is_empty();
        for (event, _) in found.into_iter().filter(|(event, _)| event.seq >= arguments.since) {
            if !output::json_line(&event) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if is_empty && !arguments.follow {
            break;
        }
        if is_empty {
            events.wait()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
