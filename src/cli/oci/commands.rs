//! The OCI verbs as commands of clap, for man pages and completions. Tests only: the program itself parses without clap.

use super::arguments::{Flag, Takes};
use super::{GLOBAL, VERBS, help};
use clap::{Arg, ArgAction, Command};

/// Each verb with its options and its text.
pub(in crate::cli) fn all() -> impl Iterator<Item = Command> {
    VERBS.iter().map(|verb| {
        let about = format!("OCI runtime: {}", verb.about);
        let usage = format!("brig [GLOBAL OPTIONS] {} [OPTIONS] {}", verb.name, help::words_of(verb));
        let command = Command::new(verb.name).about(about).override_usage(usage.trim_end().to_owned());
        let command = command.after_help(help::text_of(verb)).disable_help_flag(true);
        command.args(verb.flags.iter().chain(&[super::HELP]).map(argument))
    })
}

/// The options before the verb, except those that clap has itself.
pub(in crate::cli) fn globals() -> impl Iterator<Item = Arg> {
    GLOBAL
        .iter()
        .filter(|flag| !["version", "help"].contains(&flag.name))
        .map(|flag| argument(flag).help_heading("Options of OCI verbs"))
}

fn argument(flag: &Flag) -> Arg {
    let argument = Arg::new(flag.name).long(flag.name).help(flag.help);
    let argument = match flag.short {
        Some(short) => argument.short(short),
        None => argument,
    };
    match flag.takes {
        Takes::Value => argument.value_name("VALUE"),
        Takes::Nothing => argument.action(ArgAction::SetTrue),
    }
}
