//! runc's command line at the top level, for Docker, containerd, Podman and CRI-O: takes what they pass, and prints
//! what they parse, as runc does.
//!
//! Global options come before the verb. A verb has a table of options; related verbs share a file. Without clap: it
//! would cost as much as the rest of this path.

mod about;
mod arguments;
mod checkpoint;
#[cfg(test)]
pub(super) mod commands;
mod create;
mod exec;
mod help;
mod log;
mod look;
mod run;
pub(super) mod signal;
mod update;

use arguments::{Arguments, End, Flag, parse, switch, usage, value};
use brig::container::{ContainerId, Containers};
use brig::error::{Error, Kind, Result};
use log::Log;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Options before the verb.
const GLOBAL: [Flag; 12] = [
    value("root", None, "directory of the containers' records"),
    value("log", None, "file for errors, instead of stderr"),
    value("log-format", None, "text or json"),
    value("log-level", None, "accepted and ignored"),
    value("rootless", None, "accepted: whether we are is found out"),
    value("criu", None, "accepted and ignored"),
    value("cgroup-manager", None, "cgroupfs, systemd or disabled"),
    value("annotation", None, "KEY=VALUE for every container, where an engine passes none; may be repeated"),
    switch("debug", None, "write what is done to the log, and warnings to its file"),
    switch("systemd-cgroup", None, "let systemd make the cgroup"),
    switch("version", Some('v'), "print the version"),
    HELP,
];

/// The option that every verb has.
const HELP: Flag = switch("help", Some('h'), "print this text");

/// The inputs of every verb.
struct Context {
    containers: Containers,
    log: Log,
    systemd_cgroup: bool,
    no_cgroup: bool,
    /// Annotations for a new container.
    annotations: Vec<(String, String)>,
    /// The program's name on this call, for messages.
    name: String,
}

impl Context {
    /// The container of the only positional word.
    fn id(&self, arguments: &Arguments) -> Result<ContainerId> {
        id(arguments.id()?)
    }
}

fn id(word: &OsStr) -> Result<ContainerId> {
    ContainerId::new(&word.to_string_lossy())
}

/// A verb: its name, options, end of options, and function.
struct Verb {
    name: &'static str,
    about: &'static str,
    flags: &'static [Flag],
    end: End,
    run: fn(&Context, Arguments) -> Result<ExitCode>,
    /// Whether a process of brig enters the container for a while.
    enters: bool,
    /// The exit status of an error before the container's process runs.
    failure: u8,
}

/// A verb without a process in the container and without a command line behind its options.
const fn verb(
    name: &'static str,
    about: &'static str,
    flags: &'static [Flag],
    run: fn(&Context, Arguments) -> Result<ExitCode>,
) -> Verb {
    Verb { name, about, flags, end: End::Never, run, enters: false, failure: 1 }
}

const VERBS: [Verb; 17] = [
    create::CREATE,
    create::START,
    run::RUN,
    exec::EXEC,
    look::STATE,
    look::LIST,
    look::PS,
    signal::KILL,
    signal::DELETE,
    update::PAUSE,
    update::RESUME,
    update::UPDATE,
    update::EVENTS,
    about::SPEC,
    about::FEATURES,
    checkpoint::CHECKPOINT,
    checkpoint::RESTORE,
];

/// The verbs with their descriptions, for the help of the whole program.
pub(super) fn verbs() -> impl Iterator<Item = (&'static str, &'static str)> {
    VERBS.iter().map(|verb| (verb.name, verb.about))
}

/// Runs an OCI verb if the command line has one, or if the program has another runtime's name. `None`: not an OCI verb.
pub(super) fn main() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let name = words.next().and_then(|word| Path::new(&word).file_name().map(OsStr::to_os_string)).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let words: Vec<OsString> = words.collect();
    let stands_in = matches!(name.as_str(), "runc" | "crun");
    let globals = parse(words.iter().cloned(), &GLOBAL, End::After(1));
    let verb = match &globals {
        Ok(globals) => globals.positional.first().and_then(|word| VERBS.iter().find(|verb| word == verb.name)),
        Err(_) => None,
    };
    match (verb, globals) {
        (Some(verb), Ok(globals)) => Some(run(verb, globals, name)),
        (None, Ok(globals)) if globals.is_on("version") && globals.positional.is_empty() => {
            Some(about::print_version(&name))
        }
        (None, Err(error)) if words.first().is_some_and(is_global) => Some(mistaken(&name, &error)),
        (None, _) if !stands_in => None,
        (_, Ok(globals)) => Some(no_verb(&name, globals.positional.first())),
        (None, Err(error)) | (Some(_), Err(error)) => Some(mistaken(&name, &error)),
    }
}

/// Whether a word is an option that only a runtime's caller writes first, such as `--root=DIR`.
fn is_global(word: &OsString) -> bool {
    let word = word.to_string_lossy();
    let name = word.strip_prefix("--").map(|word| word.split('=').next().unwrap_or(word));
    name.is_some_and(|name| GLOBAL.iter().any(|flag| flag.name == name && !matches!(name, "help" | "version")))
}

fn run(verb: &Verb, globals: Arguments, name: String) -> ExitCode {
    let protected = if verb.enters { brig::container::protect_own_executable() } else { Ok(()) };
    let log = match protected.and_then(|()| open_log(&globals)) {
        Ok(log) => log,
        Err(error) => {
            Log::plain().error(&error.engine_text());
            return ExitCode::FAILURE;
        }
    };
    let rest = globals.rest.iter().cloned();
    let arguments = match parse(rest, verb.flags, verb.end) {
        Ok(arguments) => arguments,
        Err(error) if globals.rest.iter().any(|word| word == "--help" || word == "-h") => {
            let _ = error;
            return help::of_verb(&name, verb);
        }
        Err(error) => {
            log.error(&error.engine_text());
            hint(&log, verb, &error);
            return ExitCode::FAILURE; // also of `exec`, as runc's
        }
    };
    let done = context(&globals, log, name).and_then(|context| {
        (verb.run)(&context, arguments).inspect_err(|error| {
            context.log.error(&error.engine_text());
            hint(&context.log, verb, error);
        })
    });
    done.unwrap_or(ExitCode::from(verb.failure))
}

/// A hint below runc's message for a user. An engine passes a log, and needs no hint.
fn hint(log: &Log, verb: &Verb, error: &Error) {
    let is_person = rustix::termios::isatty(rustix::stdio::stderr()) || error.kind() == Kind::Usage;
    if let Some(hint) = crate::cli::hints::of_oci_verb(verb.name).filter(|_| is_person && !log.has_file()) {
        tell!("hint:  {hint}");
    }
}

fn open_log(globals: &Arguments) -> Result<Log> {
    let format = globals.text("log-format")?;
    let path = match globals.text("log")? {
        // crun's spelling.
        Some(path) if path.starts_with("file:") => Some(std::path::PathBuf::from(&path["file:".len()..])),
        Some(path) if path.starts_with("journald:") || path.starts_with("syslog:") || path.is_empty() => None,
        _ => globals.path("log")?,
    };
    Log::open(path, format.as_deref(), globals.is_on("debug"))
}

fn context(globals: &Arguments, log: Log, name: String) -> Result<Context> {
    let root = globals.path("root")?;
    if root.as_deref() == Some(Path::new("/")) {
        let error = usage("option --root: the root directory itself cannot hold the records");
        log.error(&error.engine_text());
        return Err(error);
    }
    let manager = globals.text("cgroup-manager")?;
    if let Some(other) = manager.as_deref().filter(|word| !["cgroupfs", "systemd", "disabled"].contains(word)) {
        let error = usage(format!("option --cgroup-manager: `{other}` is not one of cgroupfs, systemd, disabled"));
        log.error(&error.engine_text());
        return Err(error);
    }
    let annotations =
        globals.all("annotation").and_then(annotations).inspect_err(|error| log.error(&error.engine_text()))?;
    Ok(Context {
        containers: Containers::new(root),
        log,
        systemd_cgroup: globals.is_on("systemd-cgroup") || manager.as_deref() == Some("systemd"),
        no_cgroup: manager.as_deref() == Some("disabled"),
        annotations,
        name,
    })
}

/// `KEY=VALUE` each.
fn annotations(given: Vec<String>) -> Result<Vec<(String, String)>> {
    let pair = |word: &String| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    let pairs = given
        .iter()
        .map(|word| pair(word).ok_or_else(|| usage(format!("option --annotation: `{word}` is not KEY=VALUE"))));
    pairs.collect()
}

fn mistaken(name: &str, error: &Error) -> ExitCode {
    println!("Incorrect Usage.\n");
    help::print(name);
    Log::plain().error(&error.engine_text());
    ExitCode::FAILURE
}

fn no_verb(name: &str, verb: Option<&OsString>) -> ExitCode {
    help::print(name);
    match verb {
        Some(verb) if verb != "help" => {
            Log::plain().error(&format!("No help topic for '{}'", verb.to_string_lossy().escape_debug()));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
