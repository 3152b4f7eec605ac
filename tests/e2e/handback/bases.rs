//! The user edits a file while the agent runs. If git or a copy has the content at the start, both edits are merged.

use super::{folder, id, read};
use crate::support::{Lab, Run, Started, eventually_within};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BASE: &str = "1\n2\n3\n4\n5\n";

fn shell(at: &Path, script: &str) {
    let told = Command::new("sh").args(["-euc", script]).current_dir(at).output().unwrap();
    assert!(told.status.success(), "{script}: {}", String::from_utf8_lossy(&told.stderr));
}

/// Lines that make a file too large for a copy: its base is git's content.
fn many_lines() -> String {
    "x\n".repeat(600_000)
}

/// A folder with the committed file `file`. Its index entry is older than a second, so git does not check it again.
fn repository(lab: &Lab) -> PathBuf {
    let repository = lab.directory("work");
    lab.file("work/file", BASE);
    commit(&repository);
    repository
}

fn commit(at: &Path) {
    std::thread::sleep(Duration::from_millis(1100));
    shell(
        at,
        "test -e .git || git init -q -b main; git add -A; git -c user.name=t -c user.email=t@localhost commit -qm one",
    );
}

/// The agent's script, followed by a wait for the end.
fn waiting(script: &str) -> String {
    format!("{script}; trap 'exit 0' USR1; echo ready; sleep 90 & wait $!")
}

/// Runs `user` when the agent has run for a second.
fn work_beside(lab: &Lab, task: Started, user: impl FnOnce()) -> Run {
    task.wait_for("ready");
    let id = id(lab);
    eventually_within(40, "an event of the usage", || lab.brig(["task", "events", &id]).stdout.contains("\"usage\""));
    std::thread::sleep(Duration::from_millis(1500));
    user();
    lab.brig(["task", "kill", &id, "USR1"]).succeeded();
    let run = task.finish();
    run.ended_as("succeeded", 0);
    run
}

/// Lets the agent run a script in the folder, and the user write the file meanwhile.
fn write_beside(lab: &Lab, folder: &Path, script: &str, text: &str) -> Run {
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).start_sh(&waiting(script));
    work_beside(lab, task, || std::fs::write(folder.join("file"), text).unwrap())
}

/// Asserts the result of `diff` and `apply --merge` after the user's edit of line 1 and the agent's of line 5.
fn is_merged(lab: &Lab, folder: &Path, rest: &str) {
    let id = id(lab);
    let diff = lab.brig(["task", "diff", &id]);
    assert!(diff.succeeded().stdout.contains("-5\n+five\n") && !diff.stdout.contains("one"), "{diff:#?}");
    assert!(diff.stderr.contains("`file` has changed since"), "{diff:#?}");
    let refused = lab.brig(["task", "apply", &id]);
    assert!(refused.refused(125, &["`file` was changed"]).stderr.contains("--merge"), "{refused:#?}");
    lab.brig(["task", "apply", &id, "--merge"]).succeeded();
    assert!(read(folder.join("file")) == format!("one\n2\n3\n4\nfive\n{rest}"));
}

/// The same without a known base.
fn is_refused(lab: &Lab) {
    let id = id(lab);
    let diff = lab.brig(["task", "diff", &id]);
    assert!(diff.succeeded().stderr.contains("`file` was edited while the agent ran"), "{diff:#?}");
    let merge = lab.brig(["task", "apply", &id, "--merge"]);
    merge.refused(125, &["`file` was edited while the agent ran"]);
    assert!(merge.stderr.contains("at the start is not known") && merge.stderr.contains("git tracks"), "{merge:#?}");
}

#[test]
fn edits_of_different_lines_are_merged_with_the_content_that_git_has() {
    let lab = Lab::new();
    let (folder, rest) = (repository(&lab), many_lines());
    lab.file("work/file", format!("{BASE}{rest}"));
    commit(&folder);
    let run = write_beside(&lab, &folder, "sed -i s/5/five/ file", &format!("one\n2\n3\n4\n5\n{rest}"));
    assert_eq!(run.receipt()["changes"]["modified"], 1);
    is_merged(&lab, &folder, &rest);
}

#[test]
fn edits_of_the_same_line_are_refused_and_the_patch_has_the_agents() {
    let lab = Lab::new();
    let folder = repository(&lab);
    write_beside(&lab, &folder, "sed -i s/5/five/ file", "1\n2\n3\n4\nsix\n");
    let id = id(&lab);
    assert!(lab.brig(["task", "diff", &id]).succeeded().stdout.contains("-5\n+five\n"));
    lab.brig(["task", "apply", &id, "--merge"]).refused(125, &["`file` was changed in the same lines"]);
    assert_eq!(read(folder.join("file")), "1\n2\n3\n4\nsix\n");
}

#[test]
fn a_file_that_the_user_removed_meanwhile_does_not_come_back() {
    let lab = Lab::new();
    let folder = repository(&lab);
    let script = waiting("sed -i s/5/five/ file; touch -c other; echo new > new; sed -i s/a/b/ untracked");
    lab.file("work/other", "other\n");
    commit(&folder);
    lab.file("work/untracked", "a\n");
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).start_sh(&script);
    let run = work_beside(&lab, task, || {
        ["file", "other", "untracked"].iter().for_each(|name| std::fs::remove_file(folder.join(name)).unwrap());
    });
    // `other` was only opened, and git does not track `untracked`.
    let changes = &run.receipt()["changes"];
    assert!(changes["modified"] == 1 && changes["added"] == 2, "{changes:#}");
    let id = id(&lab);
    let diff = lab.brig(["task", "diff", &id]);
    assert!(diff.succeeded().stdout.contains("-5\n+five\n"), "{diff:#?}");
    lab.brig(["task", "apply", &id]).refused(125, &["`file` is gone"]);
    lab.brig(["task", "apply", &id, "--merge"]).refused(125, &["`file` is gone"]);
    assert!(!folder.join("file").exists() && !folder.join("new").exists());
    lab.brig(["task", "apply", &id, "--force"]).succeeded();
    assert_eq!([read(folder.join("file")), read(folder.join("untracked"))], ["1\n2\n3\n4\nfive\n", "b\n"]);
    assert!(!folder.join("other").exists());
}

#[test]
fn a_commit_of_the_user_while_the_agent_runs_changes_no_base() {
    let lab = Lab::new();
    let folder = repository(&lab);
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).start_sh(&waiting("sed -i s/5/five/ file"));
    work_beside(&lab, task, || {
        lab.file("work/file", "one\n2\n3\n4\n5\n");
        commit(&folder);
    });
    is_merged(&lab, &folder, "");
}

#[test]
fn a_file_that_was_not_committed_at_the_start_is_merged_with_its_copy() {
    let lab = Lab::new();
    let folder = repository(&lab);
    lab.file("work/file", "1\n2\n3\ndirty\n5\n");
    std::thread::sleep(Duration::from_millis(200));
    // The user reverts the edit too: with git's content as base, that would be lost.
    write_beside(&lab, &folder, "sed -i s/1/one/ file", "1\n2\n3\n4\n5\n");
    lab.brig(["task", "apply", &id(&lab), "--merge"]).succeeded();
    assert_eq!(read(folder.join("file")), "one\n2\n3\n4\n5\n");
}

#[test]
fn a_large_file_that_was_not_committed_has_no_base() {
    let lab = Lab::new();
    let folder = repository(&lab);
    let rest = many_lines();
    lab.file("work/file", format!("{BASE}{rest}"));
    std::thread::sleep(Duration::from_millis(200));
    write_beside(&lab, &folder, "sed -i s/5/five/ file", &format!("one\n{rest}"));
    is_refused(&lab);
}

#[test]
fn a_file_that_git_does_not_track_has_no_base_and_no_later_edit_makes_one() {
    let lab = Lab::new();
    let folder = folder(&lab);
    lab.file("work/file", BASE);
    write_beside(&lab, &folder, "sed -i s/5/five/ file", "one\n2\n3\n4\n5\n");
    is_refused(&lab);
    // The user's file at the end of the task is not the agent's base.
    lab.file("work/file", "one\ntwo\n3\n4\n5\n");
    lab.brig(["task", "apply", &id(&lab), "--merge"]).refused(125, &["`file` was edited while the agent ran"]);
    assert_eq!(read(folder.join("file")), "one\ntwo\n3\n4\n5\n");
}

#[test]
fn a_file_that_the_agent_leaves_as_it_was_is_no_change() {
    let lab = Lab::new();
    let folder = repository(&lab);
    lab.file("work/other", "x\n");
    let script = "sed -i s/absent/x/ file; echo y >>other";
    let run = write_beside(&lab, &folder, script, "one\n2\n3\n4\n5\n");
    assert_eq!(run.receipt()["changes"]["modified"], 1, "{run:#?}");
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
    assert_eq!((read(folder.join("file")), read(folder.join("other"))), ("one\n2\n3\n4\n5\n".into(), "x\ny\n".into()));
}

#[test]
fn a_worktree_has_its_bases_in_its_repository() {
    let lab = Lab::new();
    let (main, rest) = (repository(&lab), many_lines());
    shell(&main, "git worktree add -q ../tree -b side");
    let tree = lab.path().join("tree");
    lab.file("tree/file", format!("{BASE}{rest}"));
    commit(&tree);
    write_beside(&lab, &tree, "sed -i s/5/five/ file", &format!("one\n2\n3\n4\n5\n{rest}"));
    is_merged(&lab, &tree, &rest);
}

#[test]
fn a_kept_workspace_has_no_base_of_its_next_task() {
    let Some(lab) = Lab::root() else { return };
    let folder = repository(&lab);
    let words = ["--keep", "--dir", folder.to_str().unwrap()];
    lab.task().args(words).sh("sed -i s/5/five/ file").ended_as("succeeded", 0);
    let first = id(&lab);
    // The agent's file in the kept workspace does not have this edit.
    lab.file("work/file", "1\ntwo\n3\n4\n5\n");
    std::thread::sleep(Duration::from_millis(200));
    let script = waiting("sed -i s/five/fuenf/ file");
    let task = lab.start(["task", "resume", "--json", &first, "--", "sh", "-c", &script]);
    work_beside(&lab, task, || std::fs::write(folder.join("file"), "one\ntwo\n3\n4\n5\n").unwrap());
    is_refused(&lab);
}

#[test]
fn an_edit_between_two_tasks_of_a_workspace_is_not_overwritten() {
    let Some(lab) = Lab::root() else { return };
    let folder = folder(&lab);
    let names = ["file", "gone", "new"];
    lab.file("work/file", BASE);
    let script = "sed -i s/3/three/ file; echo x > gone; echo x > new";
    lab.task().args(["--keep", "--dir", folder.to_str().unwrap()]).sh(script).ended_as("succeeded", 0);
    names.iter().for_each(|name| std::fs::write(folder.join(name), "one\n2\n3\n4\n5\n").unwrap());
    let go_on = |verb: &str, from: &str, script: &str| {
        lab.brig(["task", verb, from, "--", "sh", "-c", script]).succeeded();
        let last = id(&lab);
        lab.brig(["task", "wait", &last]).succeeded();
        let apply = lab.brig(["task", "apply", &last]);
        apply.refused(125, &["`file` was edited while the agent ran", "`gone` was edited", "`new` was edited"]);
        names.iter().for_each(|name| assert_eq!(read(folder.join(name)), "one\n2\n3\n4\n5\n", "{name}"));
        last
    };
    let first = id(&lab);
    go_on("fork", &first, "sed -i s/5/five/ file; rm gone");
    let second = go_on("resume", &first, "sed -i s/5/five/ file; rm gone");
    // The record of the second task has the user's edits as its bases.
    go_on("resume", &second, "sed -i s/4/four/ file; echo y > new");
}

#[test]
fn what_was_applied_between_two_tasks_of_a_workspace_is_no_edit() {
    let Some(lab) = Lab::root() else { return };
    let folder = folder(&lab);
    lab.file("work/file", BASE);
    let (mut words, mut last);
    words = vec!["run", "--keep", "--dir", folder.to_str().unwrap()];
    // The second task leaves the file alone: only the first one's record has it.
    for script in [
        "sed -i s/3/three/ file; rm gone; ln -s a link; echo x > new",
        "echo y >> new",
        "sed -i s/5/five/ file; echo z >> new; ln -sf b link",
    ] {
        lab.brig([&["task"], &*words, &["--json", "--", "sh", "-c", script]].concat()).ended_as("succeeded", 0);
        last = id(&lab);
        lab.brig(["task", "apply", &last]).succeeded();
        words = vec!["resume", &last];
    }
    assert_eq!([read(folder.join("file")), read(folder.join("new"))], ["1\n2\nthree\n4\nfive\n", "x\ny\nz\n"]);
}
