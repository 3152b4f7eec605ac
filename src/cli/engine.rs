//! `brig engine`: brig as the runtime of Docker, Podman, containerd and CRI-O, with protections for every container.

use super::output;
use brig::engine::{self, Edit, Engine, Setup};
use brig::error::{Error, Kind, Result};
use brig::task::Definition;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Register brig with Docker, Podman, containerd or CRI-O
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig engine setup podman --user --default        `podman run` uses brig
  brig engine setup docker --profile agent.toml    `docker run --runtime brig` has the profile's protections
  brig engine check docker                         what is in force, seen from inside of a container
  brig engine setup docker --remove                the engine's configuration as it was")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[command(defer = true)]
enum Verb {
    Setup(SetupArguments),
    Check(CheckArguments),
    /// Look at this process from inside of a container; `check` runs it there
    #[command(hide = true)]
    Probe {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Write brig into an engine's configuration
#[derive(Args)]
struct SetupArguments {
    /// podman, docker, containerd or cri-o
    #[arg(value_parser = parse_engine)]
    engine: Engine,
    /// The caller's own configuration, not the machine's
    #[arg(long)]
    user: bool,
    /// Filter, Landlock, disk cap and egress rules for every container: those of a task with this profile
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// A folder in which each container leaves its receipt
    #[arg(long, value_name = "DIR")]
    receipts: Option<PathBuf>,
    /// Use brig for containers that name no runtime (for containerd, set default_runtime_name yourself)
    #[arg(long)]
    default: bool,
    /// The runtime's program [default: this one]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Show the changes and make none
    #[arg(long)]
    dry_run: bool,
    /// Undo the setup: the file is as it was
    #[arg(long, conflicts_with_all = ["profile", "receipts", "default", "program"])]
    remove: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run a container through the engine, and say what is in force inside
#[derive(Args)]
struct CheckArguments {
    /// podman, docker or containerd
    #[arg(value_parser = parse_engine)]
    engine: Engine,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_engine(word: &str) -> std::result::Result<Engine, String> {
    let words = || Engine::ALL.iter().map(|engine| engine.word()).collect::<Vec<_>>().join(", ");
    Engine::of_word(word).ok_or_else(|| format!("the engines are {}", words()))
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    match arguments.verb {
        Verb::Setup(arguments) => set_up(arguments),
        Verb::Check(arguments) => check(&arguments),
        Verb::Probe { json } => {
            let inside = engine::probe()?;
            if json {
                output::json(&inside)
            } else {
                output::lines([format!("{inside:?}")])
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn set_up(arguments: SetupArguments) -> Result<ExitCode> {
    let engine = arguments.engine;
    let edits = if arguments.remove {
        engine::remove(engine, arguments.user)?
    } else {
        let profile = arguments.profile.map(|path| {
            let mut definition = Definition::new(Vec::new());
            brig::task::read_profile(&path, &mut definition).map(|()| definition)
        });
        let annotations = engine::annotations(profile.transpose()?.as_ref(), arguments.receipts.as_deref())?;
        let program = match arguments.program {
            Some(program) if program.is_absolute() && program.is_file() => program,
            Some(other) => {
                let words = format!("`{}` of --program is not the absolute path of a file", other.display());
                return Err(Error::new(Kind::Usage, words).hint("name the installed brig, such as /usr/local/bin/brig"));
            }
            None => std::env::current_exe()
                .map_err(|cause| Error::new(Kind::NotFound, cause.to_string()).hint("name it with --program"))?,
        };
        let user = arguments.user;
        engine::setup(&Setup { engine, for_user: user, program, annotations, is_default: arguments.default })?
    };
    if !arguments.dry_run {
        let way = match engine {
            Engine::Docker | Engine::Podman => "run it as root, or add --user for your own engine",
            Engine::Containerd | Engine::Crio => "run it as root",
        };
        let may_write = arguments.user || rustix::process::geteuid().is_root();
        engine::apply(&edits).map_err(|error| if may_write { error } else { error.hint(way) })?;
    }
    if arguments.json {
        let paths: Vec<_> = edits.iter().map(|edit| edit.path.display().to_string()).collect();
        output::json(&serde_json::json!({"engine": engine.word(), "changed": paths, "dry_run": arguments.dry_run}));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.dry_run {
        output::lines(edits.iter().flat_map(shown));
    } else if edits.is_empty() {
        tell!("nothing to change: {} is set up so already", engine.word());
    } else {
        output::lines(edits.iter().map(|edit| output::escaped(&format!("changed {}", edit.path.display()))));
        tell!("{}", next(engine, arguments.user, arguments.remove));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the caller does next.
fn next(engine: Engine, for_user: bool, is_removed: bool) -> String {
    let (load, check) = match (engine, for_user) {
        (Engine::Podman, _) => ("podman reads it at its next call", "; try `brig engine check podman`"),
        (Engine::Docker, false) => {
            ("reload it with `systemctl reload docker`, or restart dockerd", "; then `brig engine check docker`")
        }
        (Engine::Docker, true) => ("run `systemctl --user restart docker`", "; then `brig engine check docker`"),
        (Engine::Containerd, _) => ("restart containerd", "; then make a RuntimeClass with the handler `brig`"),
        (Engine::Crio, _) => ("restart crio", "; then make a RuntimeClass with the handler `brig`"),
    };
    if is_removed { load.to_owned() } else { format!("{load}{check}") }
}

/// The file as it would be.
fn shown(edit: &Edit) -> Vec<String> {
    let path = edit.path.display();
    let head = if edit.after.is_some() { format!("# {path}:") } else { format!("# {path} is removed") };
    let text = String::from_utf8_lossy(edit.after.as_deref().unwrap_or_default()).into_owned();
    std::iter::once(head.as_str()).chain(text.lines()).map(output::escaped).collect()
}

fn check(arguments: &CheckArguments) -> Result<ExitCode> {
    let findings = engine::check(arguments.engine)?;
    if arguments.json {
        output::json(&findings);
    } else {
        let state = |finding: &engine::Finding| match (finding.in_force, &finding.wanted) {
            (true, _) => "in force",
            (false, Some(_)) => "MISSING",
            (false, None) => "off",
        };
        let rows = findings.iter().map(|each| {
            let wanted = each.wanted.as_deref().map_or_else(|| "-".to_owned(), output::escaped);
            [each.annotation.clone(), wanted, state(each).to_owned(), output::escaped(&each.found)]
        });
        output::table(["ANNOTATION", "WANTED", "STATE", "FOUND INSIDE"], rows);
    }
    let is_missing = findings.iter().any(|each| each.wanted.is_some() && !each.in_force);
    Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_of_a_user_is_restarted_by_that_user() {
        assert_eq!(next(Engine::Docker, true, true), "run `systemctl --user restart docker`");
        assert!(next(Engine::Docker, false, false).starts_with("reload it with `systemctl reload docker`"));
    }
}
