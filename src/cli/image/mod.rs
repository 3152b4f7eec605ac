//! `brig image …`: one file a verb.

mod import;
mod inspect;
mod load;
mod ls;
mod prune;
mod pull;
mod push;
mod registry;
mod rm;
mod save;
mod show;
mod tag;
mod unpack;
mod verify;

use brig::error::Result;
use brig::image::rootless::{self, Ids};
use brig::image::{LoadOptions, Overrides, Platform, Store, default_path};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Get, keep and unpack images
#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Args)]
struct Common {
    /// Where images are kept [default: /var/lib/brig as root, ~/.local/share/brig otherwise]
    #[arg(long, env = "BRIG_STORE", value_name = "DIR", global = true)]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Without root: give files of a new store the owners that images say, by way of /etc/subuid
    #[arg(long, global = true)]
    subuid: bool,
    /// Print nothing but errors and data
    #[arg(long, short, global = true)]
    quiet: bool,
}

/// How images are unpacked.
#[derive(Args)]
struct Unpacking {
    /// Which image of several, as OS/ARCHITECTURE[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    /// Raise a limit of an image against bombs: bytes=N, entries=N, depth=N, paths=N or ratio=N
    #[arg(long, value_name = "LIMIT=N", value_parser = limit)]
    limit: Vec<(String, u64)>,
    /// Wait until everything is on disk
    #[arg(long)]
    sync: bool,
}

/// What an image's process is: said of a new image by `import`, instead of what an image says by `unpack`.
#[derive(Args)]
struct Process {
    /// The Cmd: the command, or the entrypoint's arguments
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
    /// The Entrypoint
    #[arg(long, value_name = "COMMAND")]
    entrypoint: Option<String>,
    /// The User, as USER[:GROUP]
    #[arg(long, short, value_name = "USER")]
    user: Option<String>,
    /// The WorkingDir
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
    /// A variable of the Env
    #[arg(long, short, value_name = "NAME=VALUE")]
    env: Vec<String>,
}

impl Process {
    fn overrides(&self) -> Overrides {
        Overrides {
            entrypoint: self.entrypoint.clone().map(|command| vec![command]),
            args: (!self.args.is_empty()).then(|| self.args.clone()),
            env: self.env.clone(),
            user: self.user.clone(),
            working_dir: self.workdir.clone(),
        }
    }
}

#[derive(Subcommand)]
enum Verb {
    Pull(pull::Arguments),
    Push(push::Arguments),
    Load(load::Arguments),
    Ls(ls::Arguments),
    Inspect(inspect::Arguments),
    Tag(tag::Arguments),
    Rm(rm::Arguments),
    Prune(prune::Arguments),
    Unpack(unpack::Arguments),
    Save(save::Arguments),
    Import(import::Arguments),
    Verify(verify::Arguments),
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Found before we are root in a namespace, where the default would be another.
    let path = arguments.common.path()?;
    rootless::enter(&path, if arguments.common.subuid { Ids::Subordinate } else { Ids::Own })?;
    let common = &Common { store: Some(path), ..arguments.common };
    match &arguments.verb {
        Verb::Pull(arguments) => pull::run(arguments, common),
        Verb::Push(arguments) => push::run(arguments, common),
        Verb::Load(arguments) => load::run(arguments, common),
        Verb::Ls(arguments) => ls::run(arguments, common),
        Verb::Inspect(arguments) => inspect::run(arguments, common),
        Verb::Tag(arguments) => tag::run(arguments, common),
        Verb::Rm(arguments) => rm::run(arguments, common),
        Verb::Prune(arguments) => prune::run(arguments, common),
        Verb::Unpack(arguments) => unpack::run(arguments, common),
        Verb::Save(arguments) => save::run(arguments, common),
        Verb::Import(arguments) => import::run(arguments, common),
        Verb::Verify(arguments) => verify::run(arguments, common),
    }?;
    Ok(ExitCode::SUCCESS)
}

impl Common {
    fn path(&self) -> Result<PathBuf> {
        self.store.clone().map_or_else(default_path, Ok)
    }

    fn store(&self) -> Result<Store> {
        Store::open(&self.path()?)
    }
}

impl Unpacking {
    fn options(&self) -> LoadOptions {
        let mut options = LoadOptions { platform: self.platform.clone(), sync: self.sync, ..LoadOptions::default() };
        for (name, number) in &self.limit {
            match name.as_str() {
                "bytes" => options.limits.bytes = *number,
                "entries" => options.limits.entries = *number,
                "paths" => options.limits.paths = *number,
                "depth" => options.limits.depth = usize::try_from(*number).unwrap_or(usize::MAX),
                _ => options.limits.ratio = *number,
            }
        }
        options
    }
}

fn limit(text: &str) -> Result<(String, u64), String> {
    let (name, number) = text.split_once('=').ok_or("write it as NAME=NUMBER")?;
    if !matches!(name, "bytes" | "entries" | "depth" | "paths" | "ratio") {
        return Err("the limits are bytes, entries, depth, paths and ratio".into());
    }
    number.parse().map(|number| (name.to_owned(), number)).map_err(|_| "not a number".into())
}
