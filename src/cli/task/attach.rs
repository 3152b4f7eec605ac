//! `brig task attach`: a running task's output as it comes, and its input.

use crate::cli::console::Streams;
use crate::cli::terminal::Raw;
use brig::error::Result;
use brig::task::{From, Left, Store};
use clap::Args;
use rustix::termios::isatty;
use std::process::ExitCode;

/// Show a running task's output as it comes, pass input on, and exit as it does
#[derive(Args)]
#[command(after_help = "\
Ctrl-P Ctrl-Q leaves a task that has a terminal, Ctrl-C one that has none; it goes on in the background. Input is passed
on to a task that was begun with a terminal or with --interactive.")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Begin with the first byte of its output, not with what comes now
    #[arg(long)]
    replay: bool,
    /// Pass no input on
    #[arg(long)]
    no_input: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    let live = store.reach(&id)?;
    let output = store.follow_log(&id, if arguments.replay { From::Start } else { From::Now })?;
    let has_terminal = live.has_terminal()?;
    let is_console = has_terminal && isatty(rustix::stdio::stdin()) && !arguments.no_input;
    let mut streams = Streams::new(!arguments.no_input, is_console)?;
    let raw = if is_console { Some(Raw::enter()?) } else { None };
    let left = live.attach(output, &mut streams);
    drop(raw);
    match left? {
        Left::Detached => {
            tell!("brig: left the task {id}, which goes on");
            Ok(ExitCode::SUCCESS)
        }
        Left::Ended(_) => {
            let receipt = store.wait(&id, None)?;
            Ok(receipt.map_or(ExitCode::FAILURE, |receipt| ExitCode::from(receipt.exit_status)))
        }
    }
}
