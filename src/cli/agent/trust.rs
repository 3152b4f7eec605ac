//! `brig agent trust`: the caller's consent to a project's file.

use crate::cli::output;
use brig::error::Result;
use brig::task::ProjectFile;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Let a project's .brig.toml, as it is now, give agents more than their preset does
#[derive(Args)]
#[command(after_help = "\
Without trust the file can only narrow: hide files, deny hosts, lower limits. The trust ends when the file changes. Read it first.")]
pub(super) struct Arguments {
    /// The project's folder
    #[arg(default_value = ".", value_name = "DIR")]
    folder: PathBuf,
    /// End the trust
    #[arg(long)]
    revoke: bool,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.revoke {
        let words = if brig::task::untrust(&arguments.folder)? { "is not trusted any more" } else { "was not trusted" };
        tell!("brig: the file of {} {words}", output::escaped(&arguments.folder.display().to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    let (path, text) = brig::task::trust(&arguments.folder)?;
    output::lines(text.lines().map(output::escaped));
    tell!("brig: {} is trusted as it is now", output::escaped(&path.display().to_string()));
    Ok(ExitCode::SUCCESS)
}

/// What of a project's file is not in force.
pub(super) fn print_ignored(file: &ProjectFile) {
    if file.ignored.is_empty() {
        return;
    }
    let folder = file.path.parent().unwrap_or(&file.path).display();
    let line = format!(
        "{} is not trusted, so these keys are not in force: {}. Read it, then: brig agent trust {folder}",
        file.path.display(),
        file.ignored.join(", ")
    );
    tell!("brig: {}", output::escaped(&line));
}
