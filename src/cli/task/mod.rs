//! `brig task …`: run an agent on a workspace and look at what came of it.

mod list;
mod logs;
mod remove;
mod run;
mod show;

use brig::error::Result;
use brig::task::Store;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Arguments {
    /// Where tasks are kept [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, global = true, env = "BRIG_STORE", value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Arguments),
    #[command(visible_alias = "list")]
    Ls(list::Arguments),
    Show(show::Arguments),
    Logs(logs::Arguments),
    Rm(remove::Arguments),
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    let store = open_store(arguments.store)?;
    match arguments.verb {
        Verb::Run(arguments) => run::main(&store, arguments),
        Verb::Ls(arguments) => list::main(&store, &arguments),
        Verb::Show(arguments) => show::main(&store, &arguments),
        Verb::Logs(arguments) => logs::main(&store, &arguments),
        Verb::Rm(arguments) => remove::main(&store, &arguments),
    }
}

/// The store that the command line names, or the user's own.
pub(super) fn open_store(named: Option<PathBuf>) -> Result<Store> {
    Ok(Store::at(named.map_or_else(Store::default_path, Ok)?))
}
