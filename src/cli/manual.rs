//! `docs/cli.md`, generated from the same table of verbs and flags as the help. Tests only: the test fails when the
//! page is old, and `BRIG_DOCS=write cargo test` writes it.

use super::Arguments;
use clap::{Command, CommandFactory};
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");

fn page() -> String {
    let mut root = Arguments::command().term_width(110);
    root.build();
    let mut text = String::from(
        "# The command line\n\nMade from the program's own help by `BRIG_DOCS=write cargo test --bin brig`; a test compares them.\n\
         What is understood wrongly ends with exit status 125 before anything is started.\n",
    );
    add(&root, &mut text);
    text
}

fn add(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    // The page must not depend on the environment of this process.
    let mut command = command.clone().mut_args(|argument| argument.hide_env_values(true));
    let help = command.render_long_help().to_string();
    let help: Vec<_> = help.lines().map(str::trim_end).collect();
    // Writing to a String cannot fail.
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        add(verb, text);
    }
}

#[test]
fn the_page_about_the_command_line_is_what_the_program_says() {
    let made = page();
    if std::env::var_os("BRIG_DOCS").is_some_and(|value| value == "write") {
        std::fs::write(PAGE, &made).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap_or_default();
    let differing = made.lines().zip(kept.lines()).find(|(new, old)| new != old);
    assert!(
        made == kept,
        "docs/cli.md is old: run `BRIG_DOCS=write cargo test --bin brig`; first difference: {differing:?}"
    );
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Arguments::command().debug_assert();
}
