//! `brig agent`: presets, the key, the project's file, and the question at the end; homes in `home`, login files in
//! `login`, the real programs in `real`.

mod home;
pub mod install;
mod login;
mod real;

use crate::egress::world::World;
use crate::support::{Lab, Task, eventually_within, program_under_test};
use crate::terminal::Keyboard;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const KEY: &str = "s3cret-of-the-caller-0123456789";
/// A program that is the command of its arguments, without the one of the preset.
const SHELL: &str = "shift; exec \"$@\"";

/// Makes a program.
fn tool(path: &Path, script: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A lab with a project, and a program `claude` that is this script.
fn lab(script: &str) -> Lab {
    let lab = Lab::new();
    tool(&lab.path().join("bin/claude"), script);
    lab.file("project/file", "one\n");
    lab
}

fn folder(lab: &Lab) -> PathBuf {
    lab.path().join("project")
}

/// `brig agent claude` on the project of the lab, with these folders before the system's on the PATH.
fn agent<'lab>(lab: &'lab Lab, folders: &[PathBuf], flags: &[&str]) -> Task<'lab> {
    let own = lab.path().join("bin");
    let path = folders.iter().cloned().chain([own, "/usr/bin".into(), "/bin".into()]);
    let mut words = vec!["agent".to_owned(), "claude".to_owned(), "--dir".to_owned()];
    words.push(folder(lab).display().to_string());
    words.extend(flags.iter().map(|&flag| flag.to_owned()));
    let task = lab.command(words).env("PATH", std::env::join_paths(path).unwrap()).env("ANTHROPIC_API_KEY", KEY);
    task.env("XDG_CONFIG_HOME", lab.path().join("config"))
}

const NOTHING: [&str; 0] = [];

#[test]
fn the_key_is_a_placeholder_inside_and_the_first_questions_are_answered() {
    let lab = lab("echo \"arguments: $*\"; echo key: ${#ANTHROPIC_API_KEY}; grep -c hasTrustDialog ~/.claude.json");
    let run = agent(&lab, &[], &[]).run(["-p", "hello"]);
    run.succeeded();
    for words in ["arguments: --dangerously-skip-permissions -p hello\n", "key: 32\n", "\n1\n"] {
        assert!(run.stdout.contains(words), "`{words}`: {run:#?}");
    }
    assert!(
        run.stderr.contains("ANTHROPIC_API_KEY stays outside of the sandbox, and goes to api.anthropic.com:443 only")
    );
    assert!(run.stderr.contains("--dangerously-skip-permissions is set"), "{run:#?}");
    let run = agent(&lab, &[], &[]).weakened("agent-key").run(NOTHING);
    assert!(run.stdout.contains(&format!("key: {}\n", KEY.len())), "{run:#?}");
    let run = agent(&lab, &[], &["-e", "ANTHROPIC_API_KEY"]).run(NOTHING);
    assert!(run.stdout.contains(&format!("key: {}\n", KEY.len())), "{run:#?}");
    assert!(run.stderr.contains("ANTHROPIC_API_KEY is IN the sandbox"), "{run:#?}");
}

#[test]
fn unread_lines_about_refused_hosts_do_not_stop_the_wall_limit() {
    let lab = lab("head -c 300000 /dev/zero >&2 & sleep 1; getent hosts refused.test; sleep 300");
    let mut command = agent(&lab, &[], &["--wall", "3s", "--grace", "1s"]).command_for(NOTHING);
    let null = || std::process::Stdio::null();
    let mut child = command.stdin(null()).stdout(null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let shown = || {
        let text = lab.ids().pop().map(|id| lab.brig(["task", "show", "--json", &id]).stdout).unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()
    };
    eventually_within(30, "the limit ends the task", || shown()["outcome"] == "timeout");
    assert!(shown()["egress"].to_string().contains("\"refused.test\""), "{}", shown());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(124), "{text}");
}

#[test]
fn an_agent_without_a_key_and_one_that_is_not_installed_are_refused() {
    let lab = lab("true");
    agent(&lab, &[], &[]).env("ANTHROPIC_API_KEY", "").run(NOTHING).refused(125, &["none of ANTHROPIC_API_KEY"]);
    let codex = |words: &[&str]| lab.command(words).env("OPENAI_API_KEY", KEY).env("PATH", lab.path().join("bin"));
    codex(&["agent", "codex"]).run(NOTHING).refused(127, &["no program `codex`"]);
    lab.brig(["agent", "cluade"]).refused(125, &["unknown agent `cluade`"]);
    let flag = lab.brig(["agent", "claude", "-p", "hello"]);
    assert!(flag.status == Some(125) && flag.stderr.contains("brig agent claude -- -p"), "{flag:#?}");
    assert!(lab.ids().is_empty());
}

#[test]
fn a_link_of_the_workspace_on_the_path_shows_no_file_of_the_caller() {
    let lab = lab("echo of the lab");
    lab.file("private/node_modules/keys/secret", "of the caller\n");
    tool(&lab.path().join("private/node_modules/keys/tool"), "cat \"$(dirname \"$0\")/secret\"");
    let bin = folder(&lab).join("bin");
    std::fs::create_dir(&bin).unwrap();
    symlink(lab.path().join("private/node_modules/keys/tool"), bin.join("claude")).unwrap();
    let run = agent(&lab, std::slice::from_ref(&bin), &[]).run(NOTHING);
    assert!(run.stdout.contains("of the lab") && !run.stdout.contains("of the caller"), "{run:#?}");
    let run = agent(&lab, &[bin], &[]).weakened("agent-path").run(NOTHING);
    assert!(run.stdout.contains("of the caller"), "{run:#?}");
}

#[test]
fn a_projects_file_only_narrows_until_the_caller_trusts_it() {
    // The first argument is the preset's own.
    let lab = lab("shift; cat \"$1/secret\"; ls -a");
    let private = lab.file("private/secret", "of the caller\n").parent().unwrap().display().to_string();
    let text = format!("hide = [\"file\"]\nread_only = [\"{private}\"]\n[limits]\nmemory = \"64G\"\n");
    let file = lab.file("project/.brig.toml", &text);
    let run = |task: Task<'_>| task.args(["--memory", "1G"]).run([&private]);
    let narrowed = run(agent(&lab, &[], &[]));
    assert!(!narrowed.stdout.contains("of the caller") && !narrowed.stdout.contains("\nfile\n"), "{narrowed:#?}");
    let words = "is not trusted, so these keys are not in force: ";
    assert!(narrowed.stderr.contains(words) && narrowed.stderr.contains("brig agent trust"), "{narrowed:#?}");
    assert!(run(agent(&lab, &[], &[]).weakened("agent-project")).stdout.contains("of the caller"));
    let trust = |flags: &[&str]| trust(&lab, flags);
    trust(&[]);
    let trusted = run(agent(&lab, &[], &[]));
    assert!(trusted.stdout.contains("of the caller") && !trusted.stdout.contains("\nfile\n"), "{trusted:#?}");
    std::fs::write(&file, format!("{text}# changed\n")).unwrap();
    assert!(!run(agent(&lab, &[], &[])).stdout.contains("of the caller"), "a change ends the trust");
    trust(&[]);
    trust(&["--revoke"]);
    assert!(!run(agent(&lab, &[], &[])).stdout.contains("of the caller"));
    std::fs::remove_file(&file).unwrap();
    symlink(lab.path().join("private/secret"), &file).unwrap();
    run(agent(&lab, &[], &[])).refused(125, &[".brig.toml"]);
}

/// `brig agent trust` for the project of the lab.
fn trust(lab: &Lab, flags: &[&str]) {
    let folder = folder(lab).display().to_string();
    let words = ["agent", "trust", &folder].iter().chain(flags).map(ToString::to_string).collect::<Vec<_>>();
    let mut command = Command::new(program_under_test());
    command.args(words).env("XDG_CONFIG_HOME", lab.path().join("config"));
    assert!(command.output().unwrap().status.success());
}

#[test]
fn what_a_run_learned_is_in_force_once_the_caller_trusts_it() {
    let Some(lab) = Lab::root().map(|_| lab(SHELL)) else { return };
    let Some(mut world) = World::new(&lab) else { return };
    let address = world.address.to_string();
    let mut server = Command::new("/usr/bin/python3");
    server.args(["-m", "http.server", "80", "--bind", &address, "--directory"]).arg(lab.directory("www"));
    world.also(&mut server, 80);
    let (resolver, near) = (format!("{address}:5353"), format!("{address}:80"));
    let task = |flags: &[&str]| agent(&lab, &[], flags).args(["--resolver", &resolver, "--allow", &near]);
    let run = |task: Task<'_>| task.sh("curl -sS -f -m 9 -o /dev/null http://a.test/ && echo reached; true");
    assert_eq!(run(task(&[])).stdout, "");
    let learned = run(task(&["--learn"]));
    assert!(learned.stdout == "reached\n" && learned.stderr.contains("brig agent trust"), "{learned:#?}");
    let text = std::fs::read_to_string(folder(&lab).join(".brig.toml")).unwrap();
    assert!(text.contains("\"a.test:80\""), "{text}");
    let untrusted = run(task(&[]));
    assert_eq!(untrusted.stdout, "", "{untrusted:#?}");
    assert!(untrusted.stderr.contains("keys are not in force: network"), "{untrusted:#?}");
    assert_eq!(run(task(&[]).weakened("agent-project")).stdout, "reached\n");
    trust(&lab, &[]);
    let trusted = run(task(&[]));
    assert_eq!(trusted.stdout, "reached\n", "{trusted:#?}");
}

#[test]
fn a_callers_preset_replaces_the_built_in_one_unless_others_may_write_it() {
    let lab = lab("echo \"own: $*\"");
    let text = "[agent]\nprogram = \"claude\"\narguments = [\"--mine\"]\n";
    let file = lab.file("config/brig/agents/claude.toml", text);
    let run = agent(&lab, &[], &[]).run(["x"]);
    assert!(run.stdout.contains("own: --mine x\n"), "{run:#?}");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    agent(&lab, &[], &[]).run(NOTHING).refused(125, &["others may write it"]);
    std::fs::remove_file(&file).unwrap();
    let profile = lab.file("p.toml", "[env]\nA = \"b\"\n").display().to_string();
    let path = lab.path().join("bin");
    let words = ["agent", "--profile", &profile, "--empty"];
    let run = lab.command(words).env("PATH", path).run(["claude", "--flag"]);
    assert!(run.stdout.contains("own: --flag\n"), "{run:#?}");
}

#[test]
fn what_a_profile_or_a_flag_has_given_is_not_replaced_by_the_default_of_an_agent() {
    let lab = lab("");
    let profile = |text: &str| lab.file("own.toml", text).display().to_string();
    let explain = |words: &[&str]| lab.brig(["agent", "--profile"].iter().chain(words));
    let rules = profile("[network]\nallow = [\"a.test\"]\n");
    let refused = "there are egress rules, but the network is not `egress`";
    explain(&[&rules, "--network", "none", "--explain", "--", "true"]).refused(125, &[refused]);
    let limits = profile("[network]\nmode = \"none\"\n[limits]\nwall = \"2h\"\n");
    let shown = explain(&[&limits, "--explain", "--", "true"]);
    let row = |name: &str| shown.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row("network").contains("none") && row("wall").contains("2h"), "{shown:#?}");
}

#[test]
fn the_list_and_every_preset_are_shown() {
    let lab = lab("true");
    let list = lab.brig(["agent", "ls"]).succeeded().stdout.clone();
    for name in ["aider", "claude", "codex", "gemini", "goose", "mini-swe-agent", "opencode", "qwen"] {
        assert!(list.contains(&format!("\n{name} ")), "{list}");
        assert!(lab.brig(["agent", "show", name]).succeeded().stdout.contains("[agent]\n"));
    }
    let explained = agent(&lab, &[], &["--explain"]).run(NOTHING);
    for words in ["ANTHROPIC_API_KEY to api.anthropic.com:443", "egress to api.anthropic.com:443\n", "/bin/claude at "]
    {
        assert!(explained.succeeded().stdout.contains(words), "`{words}`: {explained:#?}");
    }
}

#[test]
fn at_a_terminal_the_changes_are_shown_applied_kept_or_discarded() {
    let lab = lab("echo two >> file; echo new > new; mkdir -p .vscode; echo '{}' > .vscode/tasks.json");
    let begin = || {
        let mut keyboard = Keyboard::start(agent(&lab, &[], &[]).command_for(NOTHING));
        keyboard.wait_for("apply? [y/n/diff/keep]");
        keyboard.wait_for("could run later: .vscode/tasks.json");
        keyboard.press("diff\r");
        keyboard.wait_for("+two");
        keyboard
    };
    let content = || std::fs::read_to_string(folder(&lab).join("file")).unwrap();
    for (answer, words, records) in [("n", "are discarded", 0), ("keep", "are kept", 1), ("\x04", "are kept", 2)] {
        let mut keyboard = begin();
        keyboard.press(&format!("{answer}{}", if answer == "\x04" { "" } else { "\r" }));
        assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
        keyboard.wait_for(words);
        assert_eq!((content().as_str(), lab.ids().len()), ("one\n", records), "{answer:?}");
    }
    // More than the changes is not discarded with them.
    let mut keyboard = Keyboard::start(agent(&lab, &[], &["--artifact", "new"]).command_for(NOTHING));
    keyboard.wait_for("apply? [y/n/diff/keep]");
    keyboard.press("n\r");
    keyboard.wait_for("has artifacts, commits or a kept workspace");
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    let task = lab.store().join("tasks").join(lab.ids().pop().unwrap());
    assert_eq!(std::fs::read_to_string(task.join("artifacts/new")).unwrap(), "new\n");
    let mut keyboard = begin();
    keyboard.press("y\r");
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    assert_eq!(content(), "one\ntwo\n");
    // An agent can leave the terminal in any state: what brig shows comes after a reset.
    let screen = keyboard.screen();
    let place = |words: &str| screen.find(words).unwrap_or_else(|| panic!("{words:?} in {screen:?}"));
    assert!(place("\x1b\\\x1b[!p") < place("\x1b[J") && place("\x1b[J") < place("changes: "), "{screen:?}");
}
