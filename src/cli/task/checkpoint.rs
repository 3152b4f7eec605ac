//! `brig task checkpoint` and `checkpoints`.

use crate::cli::output;
use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Copy the files of a running task as they are now, to fork from or to return to
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task checkpoint k3f                   prints the name: the first free number
  brig task checkpoint k3f before-tests

The task was run with --keep or --keep-on-failure. Its processes stand still meanwhile. A checkpoint has the workspace, the home and the
changes of the root, not /tmp, and no processes. A task has at most 16, which take at most twice its disk limit together. They stay until the task is
discarded.")]
pub(super) struct CheckpointArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The name of the checkpoint [default: the first free number]
    name: Option<String>,
    /// Print the checkpoint as JSON
    #[arg(long)]
    json: bool,
}

/// List the checkpoints of a task, oldest first
#[derive(Args)]
pub(super) struct CheckpointsArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn checkpoint(store: &Store, arguments: &CheckpointArguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    let made = store.reach(&id)?.checkpoint(arguments.name.as_deref())?;
    if arguments.json {
        output::json(&made);
    } else {
        output::lines([made.name]);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn checkpoints(store: &Store, arguments: &CheckpointsArguments) -> Result<ExitCode> {
    let found = store.checkpoints(&store.find(&arguments.id)?)?;
    if arguments.json {
        output::json(&found);
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["NAME", "CREATED", "SIZE"],
        found.into_iter().map(|each| [each.name, each.created, output::approximate(each.bytes)]),
    );
    Ok(ExitCode::SUCCESS)
}
