//! `brig image import`.

use super::{Common, Unpacking, show};
use brig::error::Result;
use brig::image::{Overrides, Reference, import};
use clap::Args;
use std::path::PathBuf;

/// Make an image of a root file system
#[derive(Args)]
#[command(after_help = "Examples:
  mmdebstrap bookworm | brig image import - debian:mine
  brig image import ./rootfs tool:1 --user 1000 --env LANG=C.UTF-8 -- /bin/bash -l")]
pub(super) struct Arguments {
    /// A tar, packed or not, or a folder; - is standard input
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The image's name
    #[arg(value_name = "REF")]
    name: Reference,
    /// The image's Cmd [default: /bin/sh]
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
    /// The image's Entrypoint
    #[arg(long, value_name = "COMMAND")]
    entrypoint: Option<String>,
    /// The image's User
    #[arg(long, short, value_name = "USER")]
    user: Option<String>,
    /// The image's WorkingDir
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
    /// A variable of the image's Env
    #[arg(long, short, value_name = "NAME=VALUE")]
    env: Vec<String>,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let how = Overrides {
        entrypoint: arguments.entrypoint.clone().map(|command| vec![command]),
        args: (!arguments.args.is_empty()).then(|| arguments.args.clone()),
        env: arguments.env.clone(),
        user: arguments.user.clone(),
        working_dir: arguments.workdir.clone(),
    };
    let progress = show::Progress::new(common);
    let options = arguments.unpacking.options();
    let record = import(&store, &arguments.path, &arguments.name, &how, &options, &|event| progress.event(event))?;
    if common.json { show::json(&record) } else { show::line(&record.digest.to_string()) }
}
