//! `brig agent ls` and `brig agent show`.

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::{installed, presets};
use clap::Args;
use std::io::Write;
use std::process::ExitCode;

/// List the agents, and where their programs are
#[derive(Args)]
pub(super) struct LsArguments {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Print the preset of an agent; a copy at ~/.config/brig/agents/NAME.toml replaces it
#[derive(Args)]
#[command(after_help = "\
Example:
  brig agent show claude > ~/.config/brig/agents/claude.toml     then change that file

What would be in force for a run: brig agent NAME --explain")]
pub(super) struct ShowArguments {
    /// The agent
    name: String,
}

pub(super) fn ls(arguments: &LsArguments) -> Result<ExitCode> {
    let find = |program: &str| installed(program).map(|place| place.display().to_string());
    let all = presets()?;
    if arguments.json {
        let rows: Vec<_> = all
            .iter()
            .map(|each| {
                let file = each.file.as_ref().map(|path| path.display().to_string());
                serde_json::json!({ "name": each.name, "title": each.title, "program": find(&each.program), "preset": file })
            })
            .collect();
        output::json(&rows);
        return Ok(ExitCode::SUCCESS);
    }
    let rows = all.iter().map(|each| {
        let preset = each.file.as_ref().map_or_else(|| "brig".to_owned(), |path| path.display().to_string());
        let program = find(&each.program).unwrap_or_else(|| "not installed".to_owned());
        [each.name.clone(), each.title.clone(), program, preset]
    });
    output::table(["NAME", "AGENT", "PROGRAM", "PRESET"], rows);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(arguments: &ShowArguments) -> Result<ExitCode> {
    let Some(preset) = presets()?.into_iter().find(|each| each.name == arguments.name) else {
        return Err(Error::new(Kind::Usage, format!("unknown agent `{}`", arguments.name.escape_debug()))
            .hint("`brig agent ls` lists the agents"));
    };
    let mut out = output::Patient(std::io::stdout().lock());
    out.write_all(preset.text.as_bytes()).map_err(|cause| {
        Error::os(Kind::Disk, cause).doing("print the preset").hint("make room where the output goes")
    })?;
    Ok(ExitCode::SUCCESS)
}
