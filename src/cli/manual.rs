//! `docs/cli.md`, man pages and completions, generated from the same table of verbs and flags as the help. Tests only.
//!
//! `docs/cli.md` is kept: a test fails when the page is old, and `BRIG_DOCS=write cargo test` writes it. rootfs/release
//! makes man pages and completions: `BRIG_PAGES=DIR cargo test --bin brig -- man_pages` writes them into DIR.

use super::{Arguments, oci};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::fmt::Write;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");

fn page() -> String {
    let mut root = Arguments::command().term_width(110);
    root.build();
    let root = super::verbs::grouped(root);
    let mut text = String::from(
        "# The command line\n\nMade from the program's own help by `BRIG_DOCS=write cargo test --bin brig`; a test compares them.\n\
         A wrong command line ends with exit status 125 before anything is started. OCI verbs end as with runc: with 1,\nand `exec` without arguments with 255.\n",
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

/// The whole program, with the verbs that clap does not parse.
fn whole() -> Command {
    let root = Arguments::command().args(oci::commands::globals()).subcommands(oci::commands::all());
    let mut root = root.disable_help_subcommand(true);
    root.build();
    without_environment(root)
}

/// The same help for each environment of this process.
fn without_environment(command: Command) -> Command {
    command.mut_args(|argument| argument.hide_env_values(true)).mut_subcommands(without_environment)
}

/// Writes `man/brig….1` and `completions/brig.bash`, `_brig`, `brig.fish`.
fn write_pages(folder: &Path) -> std::io::Result<()> {
    let [man, completions] = ["man", "completions"].map(|name| folder.join(name));
    std::fs::create_dir_all(&man)?;
    std::fs::create_dir_all(&completions)?;
    add_man_page(&whole(), &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut whole(), "brig", &completions)?;
    }
    Ok(())
}

fn add_man_page(command: &Command, folder: &Path) -> std::io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        add_man_page(verb, folder)?;
    }
    // The synopsis is that of the help: `[OPTIONS]`, not each of 70.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let source = concat!("brig ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command.clone().override_usage(usage))
        .source(source)
        .manual("brig")
        .generate_to(folder)
        .map(drop)
}

#[test]
fn man_pages_and_completions_have_every_verb() {
    let kept = std::env::var_os("BRIG_PAGES");
    let scratch = tempfile::tempdir().unwrap();
    let folder = kept.as_deref().map_or(scratch.path(), Path::new);
    write_pages(folder).unwrap();
    let bash = std::fs::read_to_string(folder.join("completions/brig.bash")).unwrap();
    for verb in ["brig", "brig-task-run", "brig-image-pull", "brig-doctor", "brig-create", "brig-exec"] {
        let page = std::fs::read_to_string(folder.join(format!("man/{verb}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{verb}.1: {page}");
        assert!(bash.contains(&format!("\n        {})", verb.replace('-', "__subcmd__"))), "completions: no `{verb}`");
    }
    for name in ["completions/_brig", "completions/brig.fish"] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(text.contains("checkpoints") && text.contains("bundle"), "{name}: {text}");
    }
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

/// The commands of `brig` in the blocks of a page, as words after `brig`. A further line follows `\` or begins with `> `.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    let mut block = None;
    for line in page.lines() {
        let line = line.trim_start();
        let is_inside = block.is_some_and(|language| ["", "console", "sh"].contains(&language));
        if let Some(language) = line.strip_prefix("```") {
            block = block.is_none().then_some(language);
        } else if is_inside && lines.last().is_some_and(|line| line.ends_with('\\')) {
            let first = lines.pop().unwrap();
            lines.push(format!("{} {}", first.trim_end_matches('\\'), line.trim_start_matches("> ")));
        } else if is_inside && (block != Some("console") || line.starts_with(['$', '>'])) {
            lines.push(line.to_owned());
        }
    }
    lines.iter().filter_map(|line| first_command(line)).collect()
}

/// The first command of brig in a line of shell.
fn first_command(line: &str) -> Option<Vec<String>> {
    let at = line.find("brig ").filter(|at| {
        let before = &line[..*at];
        ["", "$ ", "> ", ">   "].contains(&before)
            || ["$(", "| ", "&& ", "do ", "sudo "].iter().any(|end| before.ends_with(end))
    })?;
    let is_output = line.starts_with("brig: ");
    let words = shlex::split(&line[at..]).filter(|_| !is_output)?;
    let is_end = |word: &str| ["|", ">", ">>", "<", "&&", "&", "||"].contains(&word);
    let end = words.iter().position(|word| is_end(word) || word.ends_with(';')).unwrap_or(words.len());
    let last = words.get(end).and_then(|word| word.strip_suffix(';')).map(str::to_owned);
    Some(words[1..end].iter().cloned().chain(last).collect())
}

#[test]
fn the_commands_of_all_pages_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.to_owned(), root.join("docs"), root.join("docs/howto")];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
    let of_oci: Vec<_> = oci::commands::all().map(|verb| verb.get_name().to_owned()).collect();
    let program = whole();
    let (mut number, mut mistakes) = (0, Vec::new());
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "md") && !file.ends_with("docs/cli.md")) {
        for words in commands(&std::fs::read_to_string(&file).unwrap()) {
            number += 1;
            let os: Vec<_> = ["brig".to_owned()].into_iter().chain(words.clone()).map(Into::into).collect();
            let mut line: Vec<_> = vec!["brig".to_owned()];
            line.extend(super::task::short_form(&os).map(|_| "task".to_owned()));
            line.extend(words);
            // Their operands are not in the definition for clap.
            if of_oci.contains(&line[1]) {
                continue;
            }
            if let Err(error) = program.clone().try_get_matches_from(&line)
                && error.use_stderr()
            {
                mistakes.push(format!("{}: {line:?}: {error}", file.display()));
            }
        }
    }
    assert!(number > 150 && mistakes.is_empty(), "{number} commands; {}", mistakes.join("\n"));
}
