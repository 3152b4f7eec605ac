//! Coding agents by name. [`Agent::open`] reads the preset, [`project()`] the project's file; then the caller sets
//! flags. [`Agent::complete`] adds program and keys, and [`Agent::choose_home`] the home. These make and run nothing.
//! [`prepare_home`] makes the home's volume.
//!
//! Never: a key or a login file in the sandbox, a host that neither the preset nor the caller names.

mod home;
mod keys;
mod login;
mod presets;
mod project;
mod runtime;
mod search;

use super::definition::AgentTable;
use super::definition::{Definition, WorkspaceSource, hosted};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Backend, NetworkMode, WORKSPACE};
pub use home::{AgentHome, prepare_home};
pub use keys::{AgentKey, KeyPlace};
pub use login::AgentLogin;
pub use presets::{PresetSummary, presets};
pub use project::{ProjectFile, learn, project, trust, untrust};
use runtime::Runtime;
use search::SearchPath;
pub use search::installed;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A session at a terminal waits for a person, also without output.
const SESSION: Duration = Duration::from_secs(24 * 3600);

/// A preset, read into a definition.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its word on the command line, or the profile's path.
    pub name: String,
    table: AgentTable,
    /// The caller gave the whole command; the table names none.
    is_own_command: bool,
}

/// The caller's side of a task.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Looks a variable up.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The words after the agent's name.
    pub arguments: &'a [OsString],
}

impl std::fmt::Debug for Caller<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Caller").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// What a person should know before the agent starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its name for a person.
    pub title: String,
    /// The program's path inside.
    pub program: PathBuf,
    /// The keys.
    pub keys: Vec<AgentKey>,
    /// What switches off the agent's own questions.
    pub unattended: Option<String>,
}

impl Agent {
    /// The defaults of an agent: egress for its provider, and a person's time for a session at a terminal. Preset,
    /// project's file and flags change them. A hosted machine has its own times.
    pub fn definition(is_session: bool) -> Result<Definition> {
        let mut definition = Definition::new(Vec::new());
        definition.sandbox.network.mode = NetworkMode::Egress;
        if is_session && hosted::rules()?.is_none() {
            let limits = &mut definition.sandbox.limits;
            (limits.wall, limits.idle, limits.cpu_time) = (SESSION, SESSION, SESSION);
        }
        Ok(definition)
    }

    /// Reads a preset into the definition.
    pub fn open(name: &str, definition: &mut Definition) -> Result<Agent> {
        let table = presets::read(name, definition)?;
        Ok(Agent { name: name.to_owned(), table, is_own_command: false })
    }

    /// Reads a profile, with or without `[agent]`, for the caller's command.
    pub fn of_profile(profile: &Path, command: &OsString, definition: &mut Definition) -> Result<Agent> {
        let table = super::definition::profile::read_preset(profile, definition)?;
        let name = profile.display().to_string();
        let own = || AgentTable { program: command.to_string_lossy().into_owned(), ..AgentTable::default() };
        Ok(Agent {
            name,
            is_own_command: true,
            table: AgentTable { program: own().program, ..table.unwrap_or_else(own) },
        })
    }

    /// Adds command, program, runtime, keys and their hosts.
    pub fn complete(&self, caller: &Caller<'_>, definition: &mut Definition) -> Result<AgentFacts> {
        let program = show_program(&self.table, caller, definition)?;
        let keys = keys::add(&self.name, &self.table, caller, definition)?;
        // Also where a key of a variable is used: the file is a person's account.
        let known = presets::built_in();
        login::hide(login::files(known.iter().chain([&self.table]), caller), definition)?;
        let mut command: Vec<OsString> = self.seed(&program, definition);
        command.push(program.clone().into_os_string());
        if !self.is_own_command {
            for argument in &self.table.arguments {
                command.push(keys.fill(argument)?.into());
            }
        }
        command.extend(caller.arguments.iter().cloned());
        definition.sandbox.command = command;
        for name in &self.table.pass {
            add_variable(definition, name, (caller.variable)(name));
        }
        for (name, text) in &self.table.variables {
            add_variable(definition, name, Some(keys.fill(text)?.into()));
        }
        let unattended =
            Some(&self.table.unattended).filter(|words| !words.is_empty() && !self.is_own_command).cloned();
        let title = match self.is_own_command || self.table.title.is_empty() {
            true => self.table.program.clone(),
            false => self.table.title.clone(),
        };
        Ok(AgentFacts { title, program, keys: keys.into_facts(), unattended })
    }

    /// A shell makes the agent's files before the program starts.
    fn seed(&self, program: &Path, definition: &Definition) -> Vec<OsString> {
        const SCRIPT: &str = r#"while [ "$1" != -- ]; do
    if ! [ -e "$HOME/$1" ]; then mkdir -p "$(dirname "$HOME/$1")" && printf %s "$2" > "$HOME/$1"; fi
    shift 2
done
shift
exec "$@""#;
        if self.table.files.is_empty() || self.is_own_command {
            return Vec::new();
        }
        let name = program.file_name().unwrap_or(program.as_os_str());
        let mut words: Vec<OsString> = vec!["sh".into(), "-c".into(), SCRIPT.into(), name.to_owned()];
        let folder = match &definition.workspace {
            WorkspaceSource::Directory(folder) => std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone()),
            _ => PathBuf::from(WORKSPACE),
        };
        // JSON without the quotes around it.
        let folder = serde_json::json!(folder.to_string_lossy()).to_string();
        let fill = |content: &str| content.replace("{folder}", folder.trim_matches('"'));
        words.extend(self.table.files.iter().flat_map(|(path, content)| [path.into(), fill(content).into()]));
        words.push("--".into());
        words
    }
}

/// Unless a flag has set it.
fn add_variable(definition: &mut Definition, name: &str, value: Option<OsString>) {
    let environment = &mut definition.sandbox.environment;
    if let (Some(value), false) = (value, environment.iter().any(|(given, _)| given.to_str() == Some(name))) {
        environment.push((name.into(), value));
    }
}

fn wrong(cause: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Profile, cause.into()).hint(hint.into())
}

/// PATH inside, after the program's folders.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Shows the agent's installed program inside, read-only, with its runtime. An image or another root has its own.
/// Returns the program's path inside.
fn show_program(table: &AgentTable, caller: &Caller<'_>, definition: &mut Definition) -> Result<PathBuf> {
    let sandbox = &definition.sandbox;
    if definition.image.is_some() || sandbox.rootfs.is_some() || sandbox.backend == Backend::Local {
        return Ok(PathBuf::from(&table.program));
    }
    let workspace = match &definition.workspace {
        WorkspaceSource::Directory(folder) => std::fs::canonicalize(folder).ok(),
        _ => None,
    };
    if table.program.contains('/') {
        // A path of the sandbox, such as one in the workspace.
        return Ok(PathBuf::from(&table.program));
    }
    let search = SearchPath::new((caller.variable)("PATH"), workspace.as_deref());
    let found = search.find(&table.program).ok_or_else(|| missing_program(table, &search))?;
    let mut runtime = Runtime::new(&search, (caller.variable)("HOME").map(PathBuf::from));
    let command = runtime.add_program(&found)?;
    runtime.show(definition, SEARCH_PATH);
    Ok(command)
}

fn missing_program(table: &AgentTable, search: &SearchPath) -> Error {
    let why = match search.find_skipped(&table.program) {
        Some(path) => format!(
            "the PATH has `{}` only at `{}`: a program of the workspace itself is not shown",
            table.program,
            path.display()
        ),
        None => format!("the PATH has no program `{}`", table.program),
    };
    let hint = match table.install.as_str() {
        "" => "install it, or use a root with it: --image REF".to_owned(),
        install => format!("install it ({install}), or use a root with it: --image REF"),
    };
    wrong(why, hint).of_kind(Kind::CommandNotFound)
}
