//! `brig doctor`: what this machine can do, and what any run left on it.

use super::output;
use brig::doctor::State;
use brig::error::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check what this machine can do, or list what runs have left on it
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig doctor             every check with its remedy; exit 1 if something is missing
  brig doctor --leaks     prints nothing and exits 0 if nothing was left")]
pub(super) struct Arguments {
    /// List cgroups, disk images, loop devices and tasks that no running task owns; exit 1 if there are any
    #[arg(long)]
    leaks: bool,
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    if arguments.leaks {
        let store = brig::task::open_store(arguments.store)?;
        let leaks = brig::task::leaks(&store)?;
        if arguments.json {
            output::json(&leaks);
        } else {
            output::lines(leaks.iter().map(|leak| output::escaped(&format!("{}  {}", leak.kind, leak.path.display()))));
        }
        return Ok(if leaks.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let checks = brig::doctor::examine();
    if arguments.json {
        output::json(&checks);
    } else {
        let cells = checks.iter().map(|check| {
            let word = match check.state {
                State::Good => "ok",
                State::Weaker => "weaker",
                State::Missing => "MISSING",
            };
            [check.name.to_owned(), word.to_owned(), check.found.clone()]
        });
        output::table(["CHECK", "STATE", "FOUND"], cells);
        let remedies = checks.iter().filter_map(|check| Some((check, check.remedy.as_ref()?)));
        output::lines(
            remedies.map(|(check, remedy)| format!("\n{}: {}\n  {}", check.name, output::escaped(remedy), check.see)),
        );
    }
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
