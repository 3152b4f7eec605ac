//! `brig worker …`: sandboxes that live for months, kept alive by systemd.

mod change;
mod look;

use crate::cli::output;
use crate::cli::task::run::{Pull, tell};
use crate::cli::task::screen::Screen;
use brig::error::Result;
use brig::task::{Store, open_store};
use brig::worker::Folder;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Keep named sandboxes alive as services
#[derive(Args)]
pub(super) struct Arguments {
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, global = true, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The folder with a file NAME.toml for each worker
    #[arg(long, global = true, env = "BRIG_WORKERS", value_name = "DIR", default_value = Folder::DEFAULT)]
    workers: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[command(defer = true)]
enum Verb {
    #[command(visible_alias = "list")]
    Ls(look::LsArguments),
    Show(look::ShowArguments),
    History(look::HistoryArguments),
    Diff(change::DiffArguments),
    Apply(change::ApplyArguments),
    Update(change::UpdateArguments),
    Run(RunArguments),
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    let store = open_store(arguments.store)?;
    let folder = Folder::new(arguments.workers);
    match arguments.verb {
        Verb::Ls(arguments) => look::ls(&folder, &store, &arguments),
        Verb::Show(arguments) => look::show(&folder, &store, &arguments),
        Verb::History(arguments) => look::history(&folder, &store, &arguments),
        Verb::Diff(arguments) => change::diff(&folder, &store, &arguments),
        Verb::Apply(arguments) => change::apply(&folder, &store, &arguments),
        Verb::Update(arguments) => change::update(&folder, &store, &arguments),
        Verb::Run(arguments) => run(&folder, &store, &arguments),
    }
}

/// Run a worker in the foreground, as its unit does
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig worker run search                               with /etc/brig/workers/search.toml
  brig worker run --workers . search                   try a file before it is installed

It reports to systemd (sd_notify): ready when the health check passes, alive while it passes. The exit status is 0 for
a wished end, 75 for the end of a command that is to run again (restart = \"always\"), and 78 for a failure after which
the worker stays down (restart = \"no\").")]
struct RunArguments {
    /// The worker
    name: String,
}

fn run(folder: &Folder, store: &Store, arguments: &RunArguments) -> Result<ExitCode> {
    let worker = folder.read(&arguments.name)?;
    let wish = worker.definition.image.as_ref();
    let fetched = wish.map_or(Ok(()), |wish| change::fetch_image(store, wish, Pull::Missing));
    let ended = fetched.and_then(|()| brig::task::run(store, &worker.definition, &mut Screen::new(false, false)));
    let status = match &ended {
        Ok(receipt) => {
            tell(receipt);
            worker.exit_status(receipt)
        }
        Err(error) => {
            output::error(error);
            worker.exit_status_of(error)
        }
    };
    Ok(ExitCode::from(status))
}
