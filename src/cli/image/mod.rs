//! `brig image …`. Here are `tag`, `rm` and `prune`: names of images, and the removal of unnamed ones.

mod archive;
mod inspection;
mod show;
mod transfer;

use crate::cli::output;
use brig::error::Result;
use brig::image::rootless::{self, Ids};
use brig::image::{LoadOptions, Overrides, Platform, Reference, Store, default_path};
use brig::sandbox::counted;
use clap::{Args, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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
    /// Where images are kept [env: BRIG_STORE] [default: /var/lib/brig as root, ~/.local/share/brig otherwise]
    #[arg(long, value_name = "DIR", global = true)]
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

/// The process in an image's configuration: `import` sets it for a new image, `unpack` overrides the image's.
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
#[command(defer = true)]
enum Verb {
    Pull(transfer::PullArguments),
    Push(transfer::PushArguments),
    Load(archive::LoadArguments),
    Ls(inspection::LsArguments),
    Inspect(inspection::InspectArguments),
    Tag(TagArguments),
    Rm(RmArguments),
    Prune(PruneArguments),
    Unpack(archive::UnpackArguments),
    Save(archive::SaveArguments),
    Import(archive::ImportArguments),
    Verify(inspection::VerifyArguments),
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Before the user namespace, where the default would be root's.
    let path = arguments.common.path()?;
    rootless::enter(&path, if arguments.common.subuid { Ids::Subordinate } else { Ids::Own })?;
    raise_descriptor_limit();
    let common = &Common { store: Some(path), ..arguments.common };
    match &arguments.verb {
        Verb::Pull(arguments) => transfer::run_pull(arguments, common),
        Verb::Push(arguments) => transfer::run_push(arguments, common),
        Verb::Load(arguments) => archive::run_load(arguments, common),
        Verb::Ls(arguments) => inspection::run_ls(arguments, common),
        Verb::Inspect(arguments) => inspection::run_inspect(arguments, common),
        Verb::Tag(arguments) => run_tag(arguments, common),
        Verb::Rm(arguments) => run_rm(arguments, common),
        Verb::Prune(arguments) => run_prune(arguments, common),
        Verb::Unpack(arguments) => archive::run_unpack(arguments, common),
        Verb::Save(arguments) => archive::run_save(arguments, common),
        Verb::Import(arguments) => archive::run_import(arguments, common),
        Verb::Verify(arguments) => inspection::run_verify(arguments, common),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// An image may have 500 layers. Each one that waits for those below needs two descriptors.
fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Without it only an image of many layers fails.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
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

/// Give an image another name
#[derive(Args)]
#[command(after_help = "Examples:
  brig image tag debian:12 registry.example/base:1")]
struct TagArguments {
    /// A name, a digest, or its first digits
    image: String,
    /// The new name
    name: Reference,
}

fn run_tag(arguments: &TagArguments, common: &Common) -> Result<()> {
    common.store()?.tag(&arguments.image, &arguments.name)
}

/// Remove names; an image without a name goes too, unless a sandbox uses it
#[derive(Args)]
#[command(after_help = "Examples:
  brig image rm tool:1
  brig image rm 3f2a91")]
struct RmArguments {
    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

fn run_rm(arguments: &RmArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    // A wrong name removes nothing.
    arguments.images.iter().try_for_each(|image| store.find_digest(image).map(drop))?;
    let mut all = Vec::new();
    for image in &arguments.images {
        let removed = store.remove(image)?;
        if !common.json {
            removed.untagged.iter().for_each(|name| output::line(&format!("untagged {name}")));
            removed.removed.iter().for_each(|digest| output::line(&format!("removed {digest}")));
        }
        all.push(removed);
    }
    if common.json {
        output::json(&all);
    }
    Ok(())
}

/// Remove images without a name, and layers and blobs without an image
#[derive(Args)]
#[command(after_help = "What a running sandbox uses stays.

Examples:
  brig image prune
  brig image prune --json | jq .bytes")]
struct PruneArguments {}

fn run_prune(_: &PruneArguments, common: &Common) -> Result<()> {
    let pruned = common.store()?.prune()?;
    if common.json {
        output::json(&pruned);
        return Ok(());
    }
    pruned.images.iter().for_each(|digest| output::line(&format!("removed {digest}")));
    pruned.in_use.iter().for_each(|digest| output::line(&format!("in use {digest}")));
    let layers = counted(pruned.layers, "layer", "layers");
    let blobs = counted(pruned.blobs, "blob", "blobs");
    let leftovers = counted(pruned.leftovers, "leftover", "leftovers");
    output::line(&format!("{layers}, {blobs} and {leftovers} removed: {}", show::bytes(pruned.bytes)));
    Ok(())
}
