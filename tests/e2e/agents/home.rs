//! The home of an agent: a volume for each agent and project, or a temporary one.

use super::{NOTHING, SHELL, agent, folder, lab};
use crate::support::{Image, Lab, Run, is_root};

const PERSISTS: &str = "brig: its home is the volume `claude-";
const TEMPORARY: &str = "brig: its home is empty, and discarded at the end";

fn run(lab: &Lab, flags: &[&str], script: &str) -> Run {
    let run = agent(lab, &[], flags).sh(script);
    run.succeeded();
    run
}

#[test]
fn a_home_persists_for_its_agent_and_its_project() {
    let lab = lab(SHELL);
    let other = lab.file("other/file", "two\n").parent().unwrap().display().to_string();
    let write = "grep -c skipDangerous ~/.claude/settings.json; echo mine > ~/.claude/settings.json";
    let first = run(&lab, &[], write);
    assert_eq!(first.stdout, "1\n", "the preset makes the first files: {first:#?}");
    assert!(first.stderr.contains(PERSISTS), "{first:#?}");
    let again = run(&lab, &[], "cat ~/.claude/settings.json");
    assert_eq!(again.stdout, "mine\n", "the preset overwrites nothing: {again:#?}");
    let fresh = run(&lab, &["--fresh-home"], write);
    assert!(fresh.stdout == "1\n" && fresh.stderr.contains(TEMPORARY), "{fresh:#?}");
    // The last --dir would be refused, so that this one is in another command line.
    let path = std::env::join_paths([lab.path().join("bin"), "/usr/bin".into(), "/bin".into()]).unwrap();
    let elsewhere = |words: &[&str]| lab.command(words).env("PATH", &path).env("ANTHROPIC_API_KEY", super::KEY);
    let run_elsewhere = elsewhere(&["agent", "claude", "--dir", &other]).sh(write);
    assert_eq!(run_elsewhere.stdout, "1\n", "another project has another home: {run_elsewhere:#?}");
    let empty = elsewhere(&["agent", "claude", "--empty"]).sh("true");
    assert!(empty.stderr.contains(TEMPORARY), "{empty:#?}");
    assert_eq!(run(&lab, &[], "cat ~/.claude/settings.json").stdout, "mine\n");
    let list = lab.brig(["volume", "ls"]).succeeded().stdout.clone();
    assert_eq!(list.lines().count(), 3, "{list}");
    for project in [folder(&lab).display().to_string(), other] {
        assert!(list.contains(&format!("claude on {project}")), "{list}");
    }
    let explained = agent(&lab, &[], &["--explain"]).run(NOTHING).stdout;
    assert!(explained.contains("the volume `claude-"), "{explained}");
    // Only root's volumes need what the disk limit needs.
    let degraded = run(&lab, &["--allow-degraded", "disk"], "true");
    let expected = if is_root() { TEMPORARY } else { PERSISTS };
    assert!(degraded.stderr.contains(expected), "{degraded:#?}");
    let both = agent(&lab, &[], &["--fresh-home", "--home", "me"]).run(NOTHING);
    assert!(both.status == Some(125) && both.stderr.contains("--fresh-home"), "{both:#?}");
}

#[test]
fn a_second_agent_on_a_project_at_the_same_time_has_a_temporary_home() {
    let lab = lab(SHELL);
    let first = agent(&lab, &[], &[]).start_sh("echo first > ~/who; echo begun; sleep 30");
    first.wait_for("begun");
    let second = run(&lab, &[], "cat ~/who; echo second > ~/who; cat ~/who");
    let id = lab.ids().into_iter().min().unwrap();
    assert_eq!(second.stdout, "second\n", "{second:#?}");
    for words in [TEMPORARY, "in use by the task"] {
        assert!(second.stderr.contains(words), "`{words}`, {id}: {second:#?}");
    }
    first.signal(rustix::process::Signal::TERM);
    first.finish();
    assert_eq!(run(&lab, &[], "cat ~/who").stdout, "first\n");
}

#[test]
fn root_inside_of_an_ordinary_user_has_a_temporary_home() {
    let Some(lab) = Lab::user().map(|_| lab(SHELL)) else { return };
    Image::new(&lab, "tool").load();
    let explained = agent(&lab, &[], &["--image", "tool:1", "--root-inside", "--explain"]).run(NOTHING);
    assert!(explained.stdout.contains("is root inside has many"), "{explained:#?}");
}
