//! The command line: selects the verb, parses its arguments, calls the library, prints the result.
//!
//! stdout is data, stderr is messages. Related verbs share a file. `cli/oci` parses the OCI verbs (runc's names at the
//! top level): it must be quick and accept what Docker, containerd and Podman pass. clap parses all others. A verb that
//! needs more than a few lines lacks a function in the library.

/// Writes one message line to standard error with one write(2). Ignores a closed reader: `eprintln!` would panic and
/// change the exit status.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = std::io::stderr().write_all(format!("{}\n", format_args!($($words)*)).as_bytes());
    }};
}

mod agent;
mod console;
mod doctor;
mod engine;
mod hints;
mod image;
#[cfg(test)]
mod manual;
mod mcp;
mod oci;
mod output;
mod task;
mod verbs;
mod volume;
mod worker;

use brig::error::{Error, Kind, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// brig runs untrusted coding agents in sandboxes on bare Linux: no daemon, one binary.
#[derive(Parser)]
#[command(name = "brig", version, max_term_width = 110, disable_help_subcommand = true)]
#[command(after_help = "\
Short: `brig run --image NAME COMMAND` is `brig task run --image NAME COMMAND`.

`brig VERB --help` has the flags of a verb.

Examples:
  brig agent claude                      an agent on your folder, copy-on-write; its key stays outside
  brig task run --dir . make test        a command on a copy-on-write view of your folder
  brig task ls                           tasks and how they ended; `@` is the newest one
  brig task diff @                       what the newest one changed
  brig worker ls                         sandboxes that live for months
  brig doctor                            what this machine can enforce")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[command(defer = true)]
enum Verb {
    Agent(Box<agent::Arguments>),
    /// Run agents in sandboxes, and see what came of it
    Task(task::Arguments),
    Worker(worker::Arguments),
    Doctor(doctor::Arguments),
    Image(Box<image::Arguments>),
    Engine(engine::Arguments),
    Mcp(Box<mcp::Arguments>),
    Volume(Box<volume::Arguments>),
}

/// Runs the verb that the command line names and returns its exit status.
pub fn main() -> ExitCode {
    brig::container::expect_children();
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(status) = brig::sandbox::as_visitor(&words) {
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    if let Some(rest) = task::short_form(&words) {
        return task::run_directly(rest);
    }
    if let Some(status) = oci::main() {
        return status;
    }
    let words = match words.as_slice() {
        // `brig help task run` is `brig task run --help`.
        [own, help, verbs @ ..] if help == "help" => [std::slice::from_ref(own), verbs, &["--help".into()]].concat(),
        _ => words,
    };
    if let [_, task, run, rest @ ..] = words.as_slice()
        && task == "task"
        && run == "run"
    {
        brig::sandbox::begin_ahead();
        return task::run_directly(rest);
    }
    if let [_, agent, first, ..] = words.as_slice()
        && agent == "agent"
        && !["ls", "list", "show", "trust", "--help", "-h"].iter().any(|verb| first == verb)
    {
        brig::sandbox::begin_ahead();
    }
    let json = wants_json(&words);
    let arguments = match parse(&words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let mut verb = words.iter().skip(1).take_while(|word| !word.as_encoded_bytes().starts_with(b"-"));
            let verb = [verb.next(), verb.next()].into_iter().flatten().map(|word| word.to_string_lossy());
            return usage(&error, json, &verb.collect::<Vec<_>>().join(" "));
        }
    };
    let done = match arguments.verb {
        Verb::Agent(arguments) => agent::main(*arguments),
        Verb::Task(arguments) => task::main(arguments),
        Verb::Worker(arguments) => worker::main(arguments),
        Verb::Doctor(arguments) => doctor::main(arguments),
        Verb::Image(arguments) => image::run(&arguments),
        Verb::Engine(arguments) => engine::main(arguments),
        Verb::Mcp(arguments) => mcp::main(*arguments),
        Verb::Volume(arguments) => volume::main(*arguments),
    };
    ended(done, json)
}

/// Parses the command line. A verb's flags are made when it is parsed: to make all takes longer than most commands. Only
/// a help and an error need all, and the text with the verbs in groups.
fn parse(words: &[std::ffi::OsString]) -> std::result::Result<Arguments, clap::Error> {
    Arguments::try_parse_from(words).or_else(|_| {
        let mut command = Arguments::command();
        command.build();
        let mut command = verbs::grouped(command);
        let mut matches = command.try_get_matches_from_mut(words)?;
        Arguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    })
}

/// Whether a command line asks for JSON. Words after `exec` of a task may belong to another program.
fn wants_json(words: &[std::ffi::OsString]) -> bool {
    let is_exec = words.get(2).is_some_and(|verb| verb == "exec");
    !is_exec && words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Help and version go to stdout with 0; a mistake goes to stderr with 125, since 2 could be the command's status.
fn usage(error: &clap::Error, json: bool, verb: &str) -> ExitCode {
    // If both streams are closed there is nothing to do.
    let _ = error.print();
    let hint = advice(error, verb);
    if let Some(hint) = &hint {
        tell!("hint:  {hint}");
    }
    if json && error.use_stderr() {
        let text = error.to_string();
        // A missing argument is named in a later line.
        let words: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        let words = words.join(" ");
        output::json_error(Kind::Usage.code(), words.strip_prefix("error: ").unwrap_or(&words), hint.as_deref());
    }
    if error.use_stderr() { ExitCode::from(Kind::Usage.exit_status()) } else { ExitCode::SUCCESS }
}

/// Advice that clap does not have.
fn advice(error: &clap::Error, verb: &str) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    use std::error::Error as _;
    if let Some(cause) = error.source().and_then(|cause| cause.downcast_ref::<Error>()) {
        return cause.advice().map(str::to_owned);
    }
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let hint = match error.kind() {
        ErrorKind::UnknownArgument if verb.starts_with("agent") => Some(agent::FLAGS_OF_AGENT),
        ErrorKind::UnknownArgument => word(ContextKind::InvalidArg).and_then(|flag| hints::of_flag(verb, flag)),
        ErrorKind::InvalidSubcommand => word(ContextKind::InvalidSubcommand).and_then(hints::of_verb),
        _ => None,
    };
    hint.map(str::to_owned)
}

/// The exit status of a verb. Prints its error, with `json` also on standard output. Lost output is a failure.
fn ended(done: Result<ExitCode>, json: bool) -> ExitCode {
    let status = match done {
        Ok(status) => status,
        Err(error) => {
            if json {
                output::json_error(error.kind().code(), &error.to_string(), error.advice());
            }
            return failed(&error);
        }
    };
    output::refused().map_or(status, |error| failed(&error))
}

/// Prints an error and returns its exit status.
fn failed(error: &Error) -> ExitCode {
    output::error(error);
    ExitCode::from(error.kind().exit_status())
}
