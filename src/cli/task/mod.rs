//! `brig task …`: run an agent on a workspace and look at what came of it.

mod apply;
mod copy;
mod diff;
mod exec;
mod export;
pub(super) mod flags;
mod list;
mod logs;
mod prune;
pub(super) mod refusals;
mod resume;
pub(super) mod run;
pub(super) mod screen;
mod show;
mod stats;
mod stop;

use brig::error::Result;
use brig::task::{Store, open_store};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Arguments {
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, global = true, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[command(defer = true)]
#[allow(clippy::large_enum_variant, reason = "there is one, and it is used at once")]
enum Verb {
    Run(Box<run::Arguments>),
    #[command(visible_alias = "list")]
    Ls(list::LsArguments),
    Show(show::Arguments),
    Logs(logs::LogsArguments),
    Events(logs::EventsArguments),
    Attach(exec::AttachArguments),
    Wait(stop::WaitArguments),
    Stop(stop::StopArguments),
    Kill(stop::KillArguments),
    Pause(stop::PauseArguments),
    Unpause(stop::UnpauseArguments),
    Allow(stop::AllowArguments),
    Deny(stop::DenyArguments),
    Resume(resume::ResumeArguments),
    Checkpoint(resume::CheckpointArguments),
    Checkpoints(resume::CheckpointsArguments),
    Rollback(resume::RollbackArguments),
    Fork(resume::ForkArguments),
    Discard(resume::DiscardArguments),
    Prune(prune::PruneArguments),
    Push(export::PushArguments),
    Exec(exec::ExecArguments),
    Jobs(list::JobsArguments),
    Cp(copy::Arguments),
    Stats(stats::StatsArguments),
    Top(stats::TopArguments),
    Diff(diff::Arguments),
    Apply(apply::Arguments),
    Export(export::ExportArguments),
    Revoke(stop::RevokeArguments),
    Rm(prune::RmArguments),
}

// The same verb for a command line that begins with `task run`: building the parser for every verb costs a tenth of a sandbox's whole start. No doc
// comment, since clap would show it in the place of the verb's own first line.
#[derive(Parser)]
#[command(name = "brig task run", max_term_width = 110)]
struct Direct {
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    store: Option<PathBuf>,
    #[command(flatten)]
    run: run::Arguments,
}

/// What follows `brig run` if it is the short form of `brig task run`: `run` is runc's verb, which knows no `--image`.
pub(super) fn short_form(words: &[OsString]) -> Option<&[OsString]> {
    let [_, run, rest @ ..] = words else { return None };
    let is_image = |word: &OsString| word == "--image" || word.as_encoded_bytes().starts_with(b"--image=");
    let flags = rest.iter().take_while(|word| *word != "--");
    (run == "run" && flags.into_iter().any(is_image)).then_some(rest)
}

/// Runs `brig task run` with what follows these words.
pub(super) fn run_directly(rest: &[OsString]) -> ExitCode {
    let words = std::iter::once(OsString::from("brig task run")).chain(rest.iter().cloned());
    match Direct::try_parse_from(words) {
        Ok(Direct { store, run }) => {
            let json = run.json();
            super::ended(open_store(store).and_then(|store| run::main(&store, run)), json)
        }
        Err(error) => super::usage(&error, super::wants_json(rest), "task run"),
    }
}

/// Says on standard error what is in no diff, patch or tree, because it was not taken out of the workspace.
fn tell_not_taken(store: &Store, id: &str) -> Result<()> {
    let lines = store.receipt(id)?.map(|receipt| run::not_taken(&receipt)).unwrap_or_default();
    lines.iter().for_each(|line| tell!("brig: {}", super::output::escaped(line)));
    Ok(())
}

/// `brig task diff ID`.
pub(super) fn diff(store: &Store, id: &str) -> Result<ExitCode> {
    diff::main(store, &diff::Arguments::of(id))
}

/// `brig task apply ID`.
pub(super) fn apply(store: &Store, id: &str) -> Result<ExitCode> {
    apply::main(store, &apply::Arguments::of(id))
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    let store = open_store(arguments.store)?;
    match arguments.verb {
        Verb::Run(arguments) => run::main(&store, *arguments),
        Verb::Ls(arguments) => list::ls(&store, &arguments),
        Verb::Show(arguments) => show::main(&store, &arguments),
        Verb::Logs(arguments) => logs::logs(&store, &arguments),
        Verb::Events(arguments) => logs::events(&store, &arguments),
        Verb::Attach(arguments) => exec::attach(&store, &arguments),
        Verb::Wait(arguments) => stop::wait(&store, &arguments),
        Verb::Stop(arguments) => stop::stop(&store, &arguments),
        Verb::Kill(arguments) => stop::kill(&store, &arguments),
        Verb::Pause(arguments) => stop::pause(&store, &arguments),
        Verb::Unpause(arguments) => stop::unpause(&store, &arguments),
        Verb::Allow(arguments) => stop::allow(&store, &arguments),
        Verb::Deny(arguments) => stop::deny(&store, &arguments),
        Verb::Resume(arguments) => resume::resume(&store, arguments),
        Verb::Checkpoint(arguments) => resume::checkpoint(&store, &arguments),
        Verb::Checkpoints(arguments) => resume::checkpoints(&store, &arguments),
        Verb::Rollback(arguments) => resume::rollback(&store, arguments),
        Verb::Fork(arguments) => resume::fork(&store, arguments),
        Verb::Discard(arguments) => resume::discard(&store, &arguments),
        Verb::Prune(arguments) => prune::prune(&store, &arguments),
        Verb::Push(arguments) => export::push(&store, arguments),
        Verb::Exec(arguments) => exec::exec(&store, arguments),
        Verb::Jobs(arguments) => list::jobs(&store, &arguments),
        Verb::Cp(arguments) => copy::main(&store, &arguments),
        Verb::Stats(arguments) => stats::stats(&store, &arguments),
        Verb::Top(arguments) => stats::top(&store, &arguments),
        Verb::Diff(arguments) => diff::main(&store, &arguments),
        Verb::Export(arguments) => export::export(&store, &arguments),
        Verb::Apply(arguments) => apply::main(&store, &arguments),
        Verb::Revoke(arguments) => stop::revoke(&store, &arguments),
        Verb::Rm(arguments) => prune::remove(&store, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(words: &[&str]) -> Result<run::Arguments, clap::Error> {
        Direct::try_parse_from(["brig task run"].iter().chain(words)).map(|direct| direct.run)
    }

    #[test]
    fn a_command_needs_no_dashes_and_keeps_its_own_flags() {
        let with = parse(&["--dir", ".", "--", "make", "-j4", "--json", "--", "x"]).unwrap();
        assert_eq!(parse(&["--dir", ".", "make", "-j4", "--json", "--", "x"]).unwrap(), with);
        assert!(!with.json() && with.command.len() == 5);
        assert!(parse(&["--dirr", ".", "make"]).is_err(), "a flag before the command is brig's");
        let exec = |words: &[&str]| {
            let all = ["brig", "task", "exec"].iter().chain(words);
            match super::super::Arguments::try_parse_from(all).map(|arguments| arguments.verb) {
                Ok(super::super::Verb::Task(Arguments { verb: Verb::Exec(exec), .. })) => format!("{:?}", exec.words()),
                other => panic!("{:?}", other.err().map(|error| error.to_string())),
            }
        };
        assert_eq!(exec(&["-e", "A=b", "k3f", "ls", "-e", "x"]), exec(&["k3f", "-e", "A=b", "--", "ls", "-e", "x"]));
    }

    #[test]
    fn the_error_of_a_setting_names_its_flag_and_its_value_and_is_a_mistake_of_the_command_line() {
        let store = Store::at("/nowhere".into());
        let mut settings: Vec<(String, &str)> = [
            ("--artifact-bytes", "foo"),
            ("--network", "foo"),
            ("--allow", "a b"),
            ("--deny", "a b"),
            ("--resolver", "foo"),
            ("--publish", "foo"),
            ("--network-rate", "foo"),
            ("--network-bytes", "foo"),
            ("--events", "ftp://foo"),
            ("--allow-degraded", "foo"),
            ("--backend", "foo"),
            ("--ech", "foo"),
            ("--grace", "foo"),
            ("--pull", "foo"),
        ]
        .map(|(flag, value)| (flag.to_owned(), value))
        .into();
        settings.extend(
            brig::sandbox::LimitName::ALL.iter().map(|name| (format!("--{}", name.word().replace('_', "-")), "foo")),
        );
        for (flag, value) in settings {
            let text = match parse(&["--empty", &flag, value, "true"]) {
                Err(error) => error.to_string(),
                Ok(arguments) => {
                    let error = run::main(&store, arguments).unwrap_err();
                    assert_eq!(error.kind(), brig::error::Kind::Usage, "{flag}: {error}");
                    error.to_string()
                }
            };
            assert!(text.contains(&flag) && text.contains(value), "{flag}: {text}");
        }
        // What may be a secret is not shown.
        for flag in ["--secret", "--git-credential", "--git-ssh-key"] {
            let words = ["--repo", "/nowhere", flag, "hunter2", "true"];
            let error = run::main(&store, parse(&words).unwrap()).unwrap_err();
            assert_eq!(error.kind(), brig::error::Kind::Usage, "{flag}: {error}");
            assert!(error.to_string().contains(flag), "{error}");
        }
    }

    #[test]
    fn the_help_of_run_begins_with_what_the_verb_does() {
        let verb = run::Arguments::augment_args(clap::Command::new("run"));
        let (mut direct, first) = (Direct::command(), verb.get_about().unwrap().to_string());
        assert!(first.starts_with("Run a command in a fresh sandbox"), "{first}");
        for help in [direct.render_help(), direct.render_long_help()] {
            assert!(help.to_string().starts_with(&first), "{help}");
        }
    }

    /// `--help` and what clap adds are in no row.
    #[test]
    fn every_flag_has_a_rule_for_hosted_mode() {
        let mut verbs = Arguments::augment_args(clap::Command::new("task"));
        verbs.build();
        let verbs = std::iter::once(&verbs).chain(verbs.get_subcommands());
        let mut seen = 0;
        for (verb, argument) in verbs.flat_map(|verb| verb.get_arguments().map(move |argument| (verb, argument))) {
            let name = match (argument.get_long(), argument.get_id().as_str()) {
                (Some("help"), _) | (None, "id" | "ids" | "command") => continue,
                (Some(long), _) => format!("--{long}"),
                (None, id) => format!("<{} {id}>", verb.get_name()),
            };
            seen += 1;
            let rule = brig::task::hosted_rule_of_flag(&name);
            assert!(rule.is_some(), "`{name}` has no rule: add it to ROWS of src/task/definition/hosted/table.rs");
        }
        assert!(seen > 80, "{seen} flags");
    }
}
