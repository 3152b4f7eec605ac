//! `brig worker …`: sandboxes that live for months, kept alive by systemd.

mod change;
mod look;
mod run;

use brig::error::Result;
use brig::task::open_store;
use brig::worker::Folder;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Keep named sandboxes alive as services
#[derive(Args)]
pub(super) struct Arguments {
    /// Where tasks are kept [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, global = true, env = "BRIG_STORE", value_name = "DIR")]
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
    Run(run::Arguments),
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
        Verb::Run(arguments) => run::main(&folder, &store, &arguments),
    }
}
