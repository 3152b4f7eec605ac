//! `brig task resume`, `rollback`, `fork` and `discard`: the use of a kept workspace. `checkpoint` and `checkpoints`:
//! its copies.

use super::flags::{RESUMED, SettingFlags};
use super::run::{detached, tell};
use super::screen::Screen;
use crate::cli::{console, output};
use brig::error::Result;
use brig::task::{Changed, Fork, Status, Store};
use clap::Args;
use rustix::termios::isatty;
use std::ffi::OsString;
use std::process::ExitCode;

/// Go on from the workspace of a task that was run with --keep, in a new sandbox; or let a paused task go on
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task resume k3f                        the same command once more
  brig task resume k3f -- ./agent.sh --continue
  brig task resume -d --memory 8G k3f         in the background, with more memory

The workspace, the home and the changes of the root move to the new task, whose id is printed; /tmp begins empty. The profile is the same.
Limits can be lowered or raised. Another --disk or --inodes copies the files to a disk of that size, and is refused if they do not fit. A profile that has not changed is read again for variables and secrets. A task that was to push its commits pushes again when the new command has succeeded; forks do not push: `brig task push`. A task that is paused and running goes on as with `brig task unpause`.")]
pub(super) struct ResumeArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    #[command(flatten)]
    changes: Changes,
    /// Run in the background: print the new task's id and return
    #[arg(short, long)]
    detach: bool,
    /// Print the receipt as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Begin tasks in the background, each with a copy of a kept workspace or of a checkpoint
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task fork k3f -n 4 -- ./agent.sh      four attempts from the same state; prints their ids
  brig task fork k3f --from before-tests     from a checkpoint, also while the task runs
  brig task fork k3f --memory 1G -- make test")]
pub(super) struct ForkArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// How many
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    number: u32,
    /// The checkpoint to begin with [default: the last state of an ended task]
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    #[command(flatten)]
    changes: Changes,
}

/// End a task, and begin it again in the background with the files of a checkpoint
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task rollback k3f before-tests
  brig task rollback k3f 1 --memory 8G -- ./agent.sh --continue

The processes end first; a task that has ended may be rolled back too. The new task's id is printed. Its workspace, home and root are those of
the checkpoint, and its command is the same or the one that is given. The files as they were before stay with the old task until it is discarded.")]
pub(super) struct RollbackArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The checkpoint, as `brig task checkpoints` names it
    name: String,
    #[command(flatten)]
    changes: Changes,
}

#[derive(Args)]
struct Changes {
    /// Set a variable, or pass on the caller's own; values of the task before are in no record
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<OsString>,
    /// Give a secret as in `brig task run`; those of the task before must be given again
    #[arg(long = "secret", value_name = "NAME=SOURCE")]
    secrets: Vec<String>,
    #[command(flatten)]
    limits: SettingFlags<RESUMED>,
    /// The command and its arguments [default: those of the task before]
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Give kept workspaces up
#[derive(Args)]
pub(super) struct DiscardArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

impl Changes {
    fn take(self) -> Result<Changed> {
        let command = (!self.command.is_empty()).then_some(self.command);
        let secrets = self.secrets.into_iter().map(OsString::from).collect();
        let flags = [("--env", self.environment), ("--secret", secrets)].into_iter().chain(self.limits.0).collect();
        Changed::new(command, flags)
    }
}

pub(super) fn resume(store: &Store, arguments: ResumeArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if store.status(&id)? == Status::Running && arguments.changes.command.is_empty() {
        let live = store.reach(&id)?;
        if live.stats()?.paused {
            live.unpause()?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut definition = store.continued(&id, arguments.changes.take()?, None)?;
    if arguments.detach {
        return detached(store, &definition, false, arguments.json);
    }
    definition.sandbox.terminal = !arguments.json && isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout());
    let raw = if definition.sandbox.terminal { Some(console::Raw::enter()?) } else { None };
    let receipt = brig::task::run(store, &definition, &mut Screen::new(arguments.json, definition.sandbox.terminal));
    drop(raw);
    let receipt = receipt?;
    if arguments.json {
        output::json(&receipt)
    } else {
        tell(&receipt)
    }
    Ok(ExitCode::from(receipt.exit_status))
}

pub(super) fn fork(store: &Store, arguments: ForkArguments) -> Result<ExitCode> {
    brig::task::check_number(arguments.number)?;
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let fork = Fork { checkpoint: arguments.from, keeps_name: false };
    let definition = store.continued(&id, arguments.changes.take()?, Some(fork))?;
    for _ in 0..arguments.number {
        output::lines([brig::task::run_detached(store, &definition, false)?]);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rollback(store: &Store, arguments: RollbackArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let fork = Fork { checkpoint: Some(arguments.name), keeps_name: true };
    // Whatever is wrong is refused while the task still runs.
    let definition = store.continued(&id, arguments.changes.take()?, Some(fork))?;
    if store.status(&id)? == Status::Running {
        store.reach(&id).and_then(|live| live.stop(None)).or_else(|error| match store.status(&id)? {
            Status::Running => Err(error),
            _ => Ok(()), // it ended by itself
        })?;
        store.wait(&id, None)?;
    }
    output::lines([brig::task::run_detached(store, &definition, false)?]);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn discard(store: &Store, arguments: &DiscardArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    for id in store.find_all(&arguments.ids)? {
        store.discard(&id)?;
    }
    Ok(ExitCode::SUCCESS)
}

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
