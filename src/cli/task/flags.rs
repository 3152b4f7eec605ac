//! Flags that are made from the table of settings.

use super::run::Pull;
use brig::sandbox::Backend;
use brig::task::{GivenFlags, REMOTE_FLAGS, Setting, ValueKind, settings};
use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The flags of settings that were given, of one of the sets below.
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(in crate::cli) struct SettingFlags<const SET: u8>(pub(in crate::cli) GivenFlags);

/// All settings.
pub(super) const ALL: u8 = 0;
/// What a resumed task may have otherwise: limits, how the remote of its push is reached, and with which process it ends.
pub(super) const RESUMED: u8 = 1;
/// All settings of an agent: a command is always there.
pub(in crate::cli) const AGENT: u8 = 3;
/// All settings of the sandboxes of an MCP client: they run in the background, many at a time, without a command.
pub(in crate::cli) const MCP: u8 = 4;
/// Flags of one task at a time, of its caller's terminal, or of the server itself.
const NOT_OF_MCP: [&str; 12] = [
    "--artifacts-dir",
    "--detach",
    "--end-with",
    "--explain",
    "--hold",
    "--interactive",
    "--json",
    "--learn",
    "--name",
    "--no-tty",
    "--replace",
    "--tty",
];
/// Where the commits of an ended task go.
pub(super) const PUSHED: u8 = 2;

impl<const SET: u8> SettingFlags<SET> {
    /// The values of one flag.
    pub(in crate::cli) fn get(&self, flag: &str) -> Option<&[OsString]> {
        self.0.iter().find(|(given, _)| *given == flag).map(|(_, words)| words.as_slice())
    }

    pub(in crate::cli) fn has(&self, flag: &str) -> bool {
        self.get(flag).is_some()
    }

    fn settings() -> impl Iterator<Item = &'static Setting> {
        settings().iter().filter(|setting| match SET {
            ALL => !setting.flag.is_empty(),
            AGENT => !setting.flag.is_empty() && setting.flag != "--hold",
            MCP => !setting.flag.is_empty() && !NOT_OF_MCP.contains(&setting.flag),
            RESUMED => {
                let is_of_caller = setting.flag == "--end-with";
                is_of_caller || matches!(setting.kind, ValueKind::Limit(_)) || REMOTE_FLAGS.contains(&setting.flag)
            }
            _ => REMOTE_FLAGS.contains(&setting.flag) || setting.flag.starts_with("--push-"),
        })
    }
}

/// The flags of the short help, `-h`. `--help` has all of them.
const USUAL: [&str; 12] = [
    "--dir",
    "--repo",
    "--image",
    "--mount",
    "--allow",
    "--env",
    "--secret",
    "--memory",
    "--wall",
    "--detach",
    "--json",
    "--explain",
];

/// Where `brig agent` has other defaults.
fn description_of_agent(setting: &Setting) -> String {
    let words = setting.description();
    match setting.flag {
        "--dir" => words + " [default: the current folder]",
        "--empty" => words.replace(" (the default)", ""),
        "--network" => words.replace("[default: none]", "[default: egress]"),
        "--wall" | "--idle" | "--cpu-time" => words.replace(']', "; 24h at a terminal]"),
        _ => words,
    }
}

fn id(flag: &'static str) -> &'static str {
    flag.trim_start_matches('-')
}

/// The argument of a setting. `is_whole`: with the flags that it needs or excludes.
fn argument(setting: &'static Setting, is_whole: bool) -> Arg {
    let parser: ValueParser = match setting.kind {
        ValueKind::Variable => value_parser!(OsString),
        ValueKind::Path => value_parser!(PathBuf),
        ValueKind::Number => value_parser!(NonZeroU32).into(),
        ValueKind::Count => value_parser!(u32).range(1..).into(),
        ValueKind::Time => ValueParser::new(humantime::parse_duration),
        ValueKind::Addresses => value_parser!(IpAddr).into(),
        ValueKind::Backend => value_parser!(Backend).into(),
        ValueKind::Pull => value_parser!(Pull).into(),
        _ => value_parser!(String),
    };
    let argument = Arg::new(id(setting.flag)).long(id(setting.flag)).help(setting.description());
    let argument = match setting.kind {
        ValueKind::Switch(_) => argument.action(ArgAction::SetTrue),
        _ => argument
            .action(if setting.kind.is_list() { ArgAction::Append } else { ArgAction::Set })
            .value_name(setting.form)
            .value_parser(parser)
            .allow_hyphen_values(matches!(setting.kind, ValueKind::Limit(_)))
            .hide_possible_values(true),
    };
    let argument = argument.short(setting.short).help_heading(setting.group);
    if !is_whole {
        return argument;
    }
    let argument = argument.hide_short_help(!USUAL.contains(&setting.flag));
    let argument = argument.conflicts_with_all(setting.excludes.iter().copied().map(id));
    let argument = setting.needs.into_iter().fold(argument, |argument, flag| argument.requires(id(flag)));
    match setting.flag {
        "--tty" => argument.overrides_with("no-tty"),
        "--allow-degraded" => argument.value_delimiter(','),
        _ => argument,
    }
}

impl<const SET: u8> Args for SettingFlags<SET> {
    fn augment_args(command: Command) -> Command {
        let arguments = Self::settings().map(|setting| {
            let argument = argument(setting, [ALL, AGENT, MCP].contains(&SET));
            if SET == AGENT { argument.help(description_of_agent(setting)) } else { argument }
        });
        arguments.fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const SET: u8> FromArgMatches for SettingFlags<SET> {
    /// A switch has the value that it means.
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |setting: &&Setting| matches.value_source(id(setting.flag)) == Some(ValueSource::CommandLine);
        let words = |setting: &'static Setting| match setting.kind {
            ValueKind::Switch(is_on) => vec![is_on.to_string().into()],
            _ => matches.get_raw(id(setting.flag)).into_iter().flatten().map(OsString::from).collect(),
        };
        Ok(SettingFlags(Self::settings().filter(is_given).map(|setting| (setting.flag, words(setting))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::task::Direct;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    /// The long flags of a help text, and the headings.
    fn parts(help: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
        let flag = |line: &'_ str| line.trim_start().starts_with('-').then(|| line.find("--")).flatten();
        let flags = help.lines().filter_map(|line| line[flag(line)?..].split([' ', ',']).next());
        let heads = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
        (flags.collect(), heads.collect())
    }

    #[test]
    fn help_of_an_agent_has_the_defaults_of_an_agent() {
        let mut command = SettingFlags::<AGENT>::augment_args(Command::new("brig agent")).term_width(400);
        let help = command.render_long_help().to_string();
        let line = |flag: &str| help.lines().skip_while(|line| !line.trim_start().starts_with(flag)).nth(1).unwrap();
        assert!(line("--dir").ends_with("[default: the current folder]"), "{help}");
        assert!(line("--network").ends_with("[default: egress]"), "{help}");
        assert!(!line("--empty").contains("default"), "{help}");
        for (flag, task) in [("--wall", "2h"), ("--idle", "30m"), ("--cpu-time", "4h")] {
            assert!(line(flag).ends_with(&format!("[default: {task}; 24h at a terminal]")), "{help}");
        }
    }

    #[test]
    fn the_short_help_has_the_usual_flags_and_the_long_one_all_in_groups() {
        let mut command = Direct::command();
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        let usual: BTreeSet<_> = USUAL.into_iter().chain(["--help"]).collect();
        assert_eq!(parts(&short).0, usual, "{short}");
        let (flags, heads) = parts(&long);
        for setting in settings().iter().filter(|setting| !setting.flag.is_empty()) {
            assert!(flags.contains(setting.flag), "{}", setting.flag);
            assert!(setting.group.is_some(), "{} has no group", setting.flag);
        }
        assert!(heads.len() > 8, "{heads:?}");
    }
}
