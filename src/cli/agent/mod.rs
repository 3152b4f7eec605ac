//! `brig agent …`: a coding agent that is installed on this machine, in a sandbox, on a folder.

mod summary;

use super::task::flags::{AGENT, SettingFlags};
use super::task::run;
use super::task::screen::Screen;
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::{
    Agent, AgentFacts, AgentHome, AgentKey, Caller, Changed, Definition, KeyPlace, ProjectFile, Store, WorkspaceSource,
    installed, open_store, presets,
};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Run a coding agent of this machine in a sandbox on the current folder, and choose what becomes of its changes
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "\
brig agent [OPTIONS] NAME [OPTIONS] [-- ARGUMENTS…]
       brig agent [OPTIONS] --profile FILE -- COMMAND…
       brig agent ls | show NAME | trust [DIR]"
)]
#[command(after_help = "\
Examples:
  brig agent claude                                  your folder, copy-on-write; the key stays outside
  brig agent claude --allow @npm -- -p 'fix the tests'
  brig agent codex --memory 8G -- exec 'add a test'
  brig agent claude -- --continue                    the last session on this folder
  brig agent --profile ./my-agent.toml -- my-agent --auto
  brig agent ls                                      the agents, and whether they are installed

The flags are those of `brig task run`. Words after `--` are the agent's own. The folder is the current one unless --dir, --repo or
--empty is given. The key is taken from the usual variable, such as ANTHROPIC_API_KEY, or from the agent's own login, and never enters the
sandbox. Sessions and settings are in a volume for each agent and folder (docs/howto/agents.md).")]
pub(super) struct Arguments {
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    flags: SettingFlags<AGENT>,
    /// Go on from the files and the home of a task that was run with --keep, or @ for the newest task
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// Begin with an empty home, which is discarded at the end
    #[arg(long, conflicts_with_all = ["resume", "home"])]
    fresh_home: bool,
    /// The agent; with --profile the command
    #[arg(value_name = "NAME")]
    agent: Option<OsString>,
    /// The agent's own arguments
    #[arg(trailing_var_arg = true, value_name = "ARGUMENTS")]
    command: Vec<OsString>,
}

#[derive(Subcommand)]
#[command(defer = true)]
enum Verb {
    #[command(visible_alias = "list")]
    Ls(LsArguments),
    Show(ShowArguments),
    Trust(TrustArguments),
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    match arguments.verb {
        Some(Verb::Ls(arguments)) => ls(&arguments),
        Some(Verb::Show(arguments)) => show(&arguments),
        Some(Verb::Trust(arguments)) => trust(&arguments),
        None => {
            let store = open_store(arguments.store.clone())?;
            start(&store, arguments)
        }
    }
}

/// Advice for a flag that brig does not have: it may be the agent's.
pub(super) const FLAGS_OF_AGENT: &str =
    "the agent's own flags come after `--`: brig agent claude -- -p 'fix the tests'";

/// Runs the agent to its end, and asks what becomes of its changes.
fn start(store: &Store, arguments: Arguments) -> Result<ExitCode> {
    let Arguments { flags, agent, command, resume, fresh_home, .. } = arguments;
    let Some(name) = agent else {
        return Err(Error::new(Kind::Usage, "no agent is named")
            .hint("name one, such as `brig agent claude`; `brig agent ls` lists them"));
    };
    run::check_learn(&flags)?;
    let resumed = resume.as_ref().map(|word| find(store, word, &flags)).transpose()?;
    let workspace = resumed.as_ref().map(|id| store.record(id).map(|record| record.workspace)).transpose()?;
    let (agent, mut definition, facts) = define(&flags, workspace, &name, &command)?;
    let home = match &resumed {
        Some(id) => {
            definition = continued(store, id, definition)?;
            None
        }
        None => Some(agent.choose_home(fresh_home, &mut definition)),
    };
    if let Some(failed) = run::fetch_image(store, &definition, &flags)? {
        return Ok(failed);
    }
    let json = flags.has("--json");
    if flags.has("--explain") {
        let mut rows = vec![("agent".to_owned(), facts.program.display().to_string())];
        rows.extend(facts.keys.iter().map(|key| ("key".to_owned(), describe(key))));
        rows.extend(home.iter().map(|home| ("home".to_owned(), describe_home(home))));
        rows.extend(brig::task::explain(store, &definition)?);
        output::pairs(&rows, json);
        return Ok(ExitCode::SUCCESS);
    }
    let home = home.map(|home| brig::task::prepare_home(store, home, &mut definition)).transpose()?;
    introduce(&definition, &facts, home.as_ref());
    if flags.has("--detach") {
        return run::detached(store, &definition, flags.has("--interactive"), json);
    }
    let screen = Screen::new(json, definition.sandbox.terminal).showing_refusals();
    let receipt = run::foreground(store, &definition, screen)?;
    if flags.has("--learn") {
        summary::learn(&definition, &receipt);
    }
    if json {
        output::json(&receipt);
        return Ok(ExitCode::from(receipt.exit_status));
    }
    if definition.sandbox.terminal {
        tell!(""); // the agent may have left the cursor behind other text
    }
    run::tell(&receipt);
    summary::show(&receipt);
    summary::ask(store, &receipt)?;
    Ok(ExitCode::from(receipt.exit_status))
}

/// The definition of the command line: the preset or profile, then the project's file, then the flags.
fn define(
    flags: &SettingFlags<AGENT>,
    workspace: Option<WorkspaceSource>,
    name: &OsString,
    words: &[OsString],
) -> Result<(Agent, Definition, AgentFacts)> {
    let terminal = run::has_terminal(flags, false)?;
    let mut definition = Agent::definition(terminal)?;
    definition.sandbox.terminal = terminal;
    let agent = match flags.get("--profile").and_then(|words| words.last()) {
        Some(profile) => Agent::of_profile(Path::new(profile), name, &mut definition)?,
        None => Agent::open(&name.to_string_lossy(), &mut definition)?,
    };
    if let Some(workspace) = workspace {
        definition.workspace = workspace;
    } else if !flags.has("--repo") && !flags.has("--empty") {
        let folder = flags.get("--dir").and_then(|words| words.last()).map_or_else(|| ".".into(), PathBuf::from);
        let folder = std::path::absolute(&folder)
            .map_err(|cause| Error::os(Kind::Usage, cause).doing(format!("find `{}`", folder.display())))?;
        definition.workspace = WorkspaceSource::Directory(folder);
    }
    if let Some(file) = brig::task::project(&mut definition)? {
        print_ignored(&file);
    }
    brig::task::set_flags(&flags.0, &mut definition)?;
    let caller = Caller { variable: &|name| std::env::var_os(name), arguments: words };
    let facts = agent.complete(&caller, &mut definition)?;
    Ok((agent, definition, facts))
}

/// The task that is resumed. Its network, mounts and limits stay: a flag about them would have no effect.
fn find(store: &Store, word: &str, flags: &SettingFlags<AGENT>) -> Result<String> {
    const FREE: [&str; 7] = ["--profile", "--json", "--tty", "--no-tty", "--detach", "--env", "--secret"];
    if let Some((flag, _)) = flags.0.iter().find(|(flag, _)| !FREE.contains(flag)) {
        return Err(Error::new(Kind::Usage, format!("{flag} is as it was for the task that is resumed"))
            .hint(format!("leave {flag} out, or begin a new task")));
    }
    brig::task::reap(store)?;
    store.find(word)
}

/// The definition that goes on from a task: its files, its network and its mounts, with this command and these keys.
fn continued(store: &Store, id: &str, given: Definition) -> Result<Definition> {
    let sandbox = given.sandbox;
    let changed = Changed {
        command: Some(sandbox.command),
        environment: sandbox.environment,
        secrets: given.secrets,
        ..Changed::default()
    };
    let mut definition = store.continued(id, changed, None)?;
    definition.sandbox.terminal = sandbox.terminal;
    Ok(definition)
}

fn describe(key: &AgentKey) -> String {
    let AgentKey { variable, host, place, login } = key;
    if let Some(login) = login.as_ref().filter(|_| *place == KeyPlace::Outside) {
        let valid = login.remaining.map(|time| {
            // In minutes: the seconds would only distract.
            let time = Duration::from_secs(time.as_secs() / 60 * 60);
            format!("; its token is valid for {}", humantime::format_duration(time))
        });
        let path = login.path.display();
        return format!(
            "the login of {path} stays outside of the sandbox, and goes to {host} only{}",
            valid.unwrap_or_default()
        );
    }
    match place {
        KeyPlace::Outside => format!("{variable} stays outside of the sandbox, and goes to {host} only"),
        KeyPlace::Inside => format!("{variable} is IN the sandbox, as the flags say; {host} is allowed"),
        KeyPlace::Missing => format!("{variable} is not set; {host} is allowed"),
    }
}

fn describe_home(home: &AgentHome) -> String {
    match home {
        AgentHome::Given(volume) => format!("the volume `{volume}`"),
        AgentHome::Persistent { volume, .. } => {
            format!("the volume `{volume}`: sessions and settings persist; --fresh-home begins without them")
        }
        AgentHome::Temporary { reason } if reason.is_empty() => "empty, and discarded at the end".to_owned(),
        AgentHome::Temporary { reason } => format!("empty, and discarded at the end: {reason}"),
    }
}

/// What a person should know before the agent starts.
fn introduce(definition: &Definition, facts: &AgentFacts, home: Option<&AgentHome>) {
    let place = match &definition.workspace {
        WorkspaceSource::Directory(folder) => format!(" on {} (copy-on-write)", folder.display()),
        _ => String::new(),
    };
    tell!("brig: {}", output::escaped(&format!("{} in a sandbox{place}", facts.title)));
    facts.keys.iter().for_each(|key| tell!("brig: {}", output::escaped(&describe(key))));
    home.iter().for_each(|home| tell!("brig: {}", output::escaped(&format!("its home is {}", describe_home(home)))));
    if let Some(words) = &facts.unattended {
        tell!(
            "brig: {}",
            output::escaped(&format!("{words} is set: the agent does not ask, because brig contains it"))
        );
    }
}

/// List the agents, and where their programs are
#[derive(Args)]
struct LsArguments {
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
struct ShowArguments {
    /// The agent
    name: String,
}

fn ls(arguments: &LsArguments) -> Result<ExitCode> {
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

fn show(arguments: &ShowArguments) -> Result<ExitCode> {
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

/// Let a project's .brig.toml, as it is now, give agents more than their preset does
#[derive(Args)]
#[command(after_help = "\
Without trust the file can only narrow: hide files, deny hosts, lower limits. The trust ends when the file changes. Read it first.")]
struct TrustArguments {
    /// The project's folder
    #[arg(default_value = ".", value_name = "DIR")]
    folder: PathBuf,
    /// End the trust
    #[arg(long)]
    revoke: bool,
}

fn trust(arguments: &TrustArguments) -> Result<ExitCode> {
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
fn print_ignored(file: &ProjectFile) {
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
