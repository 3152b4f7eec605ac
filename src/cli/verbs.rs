//! The verbs of `brig --help` in groups: those of clap, and the OCI runtime's.

use super::oci;
use clap::Command;
use std::fmt::Write;

/// The groups, in the order of the help.
const GROUPS: [(&str, &[&str]); 3] = [
    ("Agents and tasks", &["agent", "task", "worker", "mcp"]),
    ("Images and volumes", &["image", "volume"]),
    ("Machine", &["doctor", "engine"]),
];
/// The group of runc's verbs.
const OCI: &str = "OCI runtime, for Docker, containerd, Podman and CRI-O, with runc's options (docs/oci.md)";
/// A verb that no group lists.
const OTHER: &str = "Other";
/// The width of a line, and that of the column with the verbs.
const WIDTH: usize = 100;
const COLUMN: usize = 14;

/// The command with its verbs in groups.
pub(super) fn grouped(command: Command) -> Command {
    let about = |verb: &Command| verb.get_about().map(ToString::to_string).unwrap_or_default();
    let all: Vec<_> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| (verb.get_name().to_owned(), about(verb)))
        .collect();
    let group_of =
        |name: &str| GROUPS.iter().find(|(_, names)| names.contains(&name)).map_or(OTHER, |(group, _)| group);
    let mut text = String::new();
    for group in GROUPS.iter().map(|(group, _)| *group).chain([OTHER]) {
        add(&mut text, group, all.iter().filter(|(name, _)| group_of(name) == group).cloned());
    }
    add(&mut text, OCI, oci::verbs().map(|(name, about)| (name.to_owned(), about.to_owned())));
    // The text becomes a template: a brace would begin a placeholder.
    let text = text.replace(['{', '}'], "");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}"
    ))
}

fn add(text: &mut String, group: &str, verbs: impl Iterator<Item = (String, String)>) {
    let rows: String = verbs.map(|(name, about)| row(&name, &about)).collect();
    if !rows.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{group}:\n{rows}\n");
    }
}

/// A verb and its description, in lines of at most `WIDTH` letters.
fn row(name: &str, about: &str) -> String {
    let mut row = format!("  {name:<COLUMN$}");
    let mut used = row.len();
    for word in about.split(' ') {
        if used + word.len() > WIDTH {
            row = format!("{}\n  {:COLUMN$}", row.trim_end(), "");
            used = 2 + COLUMN;
        }
        row += word;
        row.push(' ');
        used += word.len() + 1;
    }
    format!("{}\n", row.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_has_every_verb_once_in_its_group() {
        let mut command = crate::cli::Arguments::command();
        command.build();
        let mut command = grouped(command);
        let help = command.render_long_help().to_string();
        let lines: Vec<_> = help.lines().collect();
        let at = |line: &str| {
            let found: Vec<_> = (0..lines.len()).filter(|&at| lines[at] == line).collect();
            assert_eq!(found.len(), 1, "`{line}` in {help}");
            found[0]
        };
        let heads: Vec<_> = GROUPS.iter().map(|(group, _)| *group).chain([OCI, "Options"]).collect();
        let heads: Vec<_> = heads.iter().map(|head| at(&format!("{head}:"))).collect();
        assert!(heads.is_sorted() && !lines.contains(&"Other:"), "{help}");
        let named = |name: &str| {
            let rows = || (0..lines.len()).filter(|&at| lines[at].starts_with(&format!("  {name} ")));
            rows().map(|at| heads.iter().filter(|head| **head < at).count()).collect::<Vec<_>>()
        };
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let group = GROUPS.iter().position(|(_, names)| names.contains(&verb.get_name())).unwrap();
            assert_eq!(named(verb.get_name()), [group + 1], "{} in {help}", verb.get_name());
        }
        for (name, _) in oci::verbs() {
            assert_eq!(named(name), [GROUPS.len() + 1], "{name} in {help}");
        }
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{help}");
    }
}
