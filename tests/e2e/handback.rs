//! A task's changes: the receipt's counts, the patch, and the user's tree only on request.

mod bases;
mod durable;
mod select;

use crate::support::{Lab, Run};
use std::path::Path;
use std::process::Command;

/// A script that makes changes of every kind, and plants files that could run later.
const WORK: &str = "echo two >>file && mkdir new && printf 'bin\\0ary' >new/blob && rm gone && printf '#!/bin/sh\\n' >tool && \
                    chmod +x tool && ln -s file link && mkdir -p .git/hooks && echo evil >.git/hooks/pre-commit && mkfifo fifo";

fn folder(lab: &Lab) -> std::path::PathBuf {
    lab.file("work/file", "one\n");
    lab.file("work/gone", "gone\n");
    lab.path().join("work")
}

fn work(lab: &Lab, folder: &Path) -> Run {
    let run = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh(WORK);
    run.ended_as("succeeded", 0);
    run
}

fn id(lab: &Lab) -> String {
    lab.ids().pop().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_receipt_counts_what_changed_and_names_what_could_run_later() {
    let lab = Lab::new();
    let run = work(&lab, &folder(&lab));
    let receipt = run.receipt();
    let changes = &receipt["changes"];
    // new, new/blob, tool, link; file; gone; .git, hooks, pre-commit; the fifo.
    let counts = ["added", "modified", "deleted", "in_git", "skipped"].map(|name| changes[name].as_u64().unwrap());
    assert_eq!(counts, [4, 1, 1, 3, 1], "{changes:#}");
    assert_eq!(changes["complete"], true);
    let runnable: Vec<_> =
        changes["runnable"].as_array().unwrap().iter().map(|each| each["path"].as_str().unwrap()).collect();
    assert_eq!(runnable, [".git/hooks/pre-commit", "tool"]);
    assert!(Path::new(changes["path"].as_str().unwrap()).join("changes.json").exists());
    assert!(receipt["steps"].as_array().unwrap().iter().any(|step| step["step"] == "collect"));
}

#[test]
fn the_patch_makes_a_copy_of_the_folder_as_the_agent_left_it() {
    let lab = Lab::new();
    let folder = folder(&lab);
    work(&lab, &folder);
    let diff = lab.brig(["task", "diff", &id(&lab), "--binary"]);
    diff.succeeded();
    assert!(diff.stderr.contains("3 changes in .git are not in the patch"), "{diff:#?}");
    let patch = lab.file("patch", &diff.stdout);
    let applied = Command::new("git").arg("apply").arg(&patch).current_dir(&folder).output().unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert_eq!(names(&folder), ["file", "link", "new", "tool"]);
    assert_eq!(read(folder.join("file")), "one\ntwo\n");
    assert_eq!(std::fs::read(folder.join("new/blob")).unwrap(), b"bin\0ary");
}

#[test]
fn skipped_paths_are_reported_wherever_changes_are_shown() {
    let lab = Lab::new();
    let folder = folder(&lab);
    let script = "truncate -s 2200M model.bin && mkfifo fifo && echo small >small";
    let run = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).plain().sh(script);
    let told = ["not taken: model.bin: a file may have 2G", "not taken: fifo: a FIFO is not a file"];
    let check = |run: &Run| {
        run.succeeded();
        told.iter().for_each(|line| assert!(run.stderr.contains(line), "{line}: {run:#?}"));
    };
    check(&run);
    let (id, into) = (id(&lab), lab.path().join("out.patch"));
    let into = into.to_str().unwrap();
    for words in
        [&["diff", &id][..], &["diff", &id, "--stat"], &["export", &id, "--patch", "-o", into], &["apply", &id]]
    {
        check(&lab.brig([&["task"][..], words].concat()));
    }
    let shown = lab.brig(["task", "show", &id]).stdout;
    assert!(shown.contains("model.bin: a file may have 2G") && shown.contains("fifo: a FIFO is not a file"), "{shown}");
}

#[test]
fn a_patch_that_lacks_a_file_is_no_success() {
    let lab = Lab::new();
    let folder = folder(&lab);
    // No copy of a binary file is kept.
    lab.file("work/image", "\0one");
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]);
    task.sh("echo x >>image; mkdir new; echo y >new/text").ended_as("succeeded", 0);
    lab.file("work/image", "\0the user's");
    let (id, into) = (id(&lab), lab.path().join("out.patch"));
    let diff = lab.brig(["task", "diff", &id]);
    assert_eq!(diff.status, Some(1), "{diff:#?}");
    assert!(diff.stderr.contains("`image` is not in the patch") && diff.stdout.contains("new/text"), "{diff:#?}");
    let export = lab.brig(["task", "export", &id, "--patch", "-o", into.to_str().unwrap()]);
    assert_eq!(export.status, Some(125), "{export:#?}");
    assert!(export.stderr.contains("`image`") && export.stderr.contains("brig task apply"), "{export:#?}");
    assert!(!into.exists(), "half a patch is worse than none");
}

#[test]
fn a_reader_that_wants_only_the_beginning_is_no_failure_and_a_full_disk_is() {
    let lab = Lab::new();
    let script = "i=0; while [ $i -lt 3000 ]; do echo $i >f$i; i=$((i + 1)); done; echo done";
    lab.task().sh(script).ended_as("succeeded", 0);
    let (id, store) = (id(&lab), lab.store());
    let shell = |line: &str| {
        let mut shell = Command::new("bash");
        let shell =
            shell.args(["-c", line]).env("BRIG", crate::support::program()).env("BRIG_STORE", &store).env("ID", &id);
        let out = shell.output().unwrap();
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (out, error) = shell(
        "$BRIG task diff $ID | head -n 1; echo ${PIPESTATUS[0]}; $BRIG task export $ID --patch | head -n 1; echo ${PIPESTATUS[0]}",
    );
    assert!(out.lines().filter(|line| *line == "0").count() == 2 && !error.contains("error:"), "{out} {error}");
    for words in [
        "show $ID",
        "show --json $ID",
        "ls",
        "ls --json",
        "events $ID",
        "logs $ID",
        "logs --stdout $ID",
        "logs --json $ID",
        "run --json --empty -- true",
        "run --explain --empty",
    ] {
        let (out, error) = shell(&format!("$BRIG task {words} > /dev/full; echo $?"));
        assert!(out == "125\n" && error.contains("E-DISK"), "{words}: {out} {error}");
    }
    // The reader is gone, and the exit status is still the command's.
    let line = "($BRIG task run --empty -- sh -c 'sleep 0.2; exit 3'; echo $? > $BRIG_STORE.status) 2>&1 | true; cat $BRIG_STORE.status";
    let (out, error) = shell(line);
    assert_eq!(out.trim(), "3", "{error}");
}

#[test]
fn the_paths_are_listed_with_the_reason_to_look_at_them() {
    let lab = Lab::new();
    work(&lab, &folder(&lab));
    let stat = lab.brig(["task", "diff", &id(&lab), "--stat"]);
    stat.succeeded();
    for line in ["modified  file", "deleted   gone", "added     new/blob", "added     tool"] {
        assert!(stat.stdout.contains(line), "{line}: {}", stat.stdout);
    }
    assert!(!stat.stdout.contains(".git"), "{}", stat.stdout);
    assert!(stat.stdout.lines().any(|line| line.contains("tool") && line.contains("executable")), "{}", stat.stdout);
}

#[test]
fn applying_changes_the_folder_and_never_its_git_directory() {
    let lab = Lab::new();
    let folder = folder(&lab);
    work(&lab, &folder);
    assert_eq!(names(&folder), ["file", "gone"], "the folder is not written before it is asked for");
    let dry = lab.brig(["task", "apply", &id(&lab), "--dry-run"]);
    dry.succeeded();
    assert_eq!(names(&folder), ["file", "gone"], "nor by --dry-run");
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
    assert_eq!(names(&folder), ["file", "link", "new", "tool"]);
    assert_eq!(read(folder.join("file")), "one\ntwo\n");
    let again = lab.brig(["task", "apply", &id(&lab)]);
    again.succeeded();
    assert!(again.stderr.contains(" 0 changed "), "{again:#?}");
}

#[test]
fn what_the_user_changed_meanwhile_is_overwritten_only_by_force() {
    let lab = Lab::new();
    let folder = folder(&lab);
    work(&lab, &folder);
    lab.file("work/file", "the user's\n");
    let refused = lab.brig(["task", "apply", &id(&lab)]);
    assert_eq!(refused.status, Some(125), "{refused:#?}");
    assert!(refused.stderr.contains("`file` was changed") && refused.stderr.contains("--force"), "{refused:#?}");
    assert_eq!(names(&folder), ["file", "gone"], "all or nothing");
    let dry = lab.brig(["task", "apply", &id(&lab), "--dry-run"]);
    assert_eq!(dry.status, Some(1), "{dry:#?}");
    assert!(dry.stdout.contains("conflict  file: was changed"), "{dry:#?}");
    lab.brig(["task", "apply", &id(&lab), "--force"]).succeeded();
    assert_eq!(read(folder.join("file")), "one\ntwo\n");
}

#[test]
fn force_makes_no_link_that_leads_out_of_the_folder() {
    let lab = Lab::new();
    let folder = folder(&lab);
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]);
    task.sh("echo two >>file; ln -s /etc/cron.d build; ln -s file inside").ended_as("succeeded", 0);
    lab.file("work/file", "the user's\n");
    let applied = lab.brig(["task", "apply", &id(&lab), "--force"]);
    assert!(applied.succeeded().stdout.contains("left out  build: the link may lead out of the tree"), "{applied:#?}");
    assert_eq!(names(&folder), ["file", "gone", "inside"]);
    assert_eq!(read(folder.join("file")), "one\ntwo\n");
}

#[test]
fn an_empty_workspace_comes_out_whole_and_only_where_it_is_told() {
    let lab = Lab::new();
    lab.task().sh("mkdir -p a/b && echo x >a/b/c").ended_as("succeeded", 0);
    let nowhere = lab.brig(["task", "apply", &id(&lab)]);
    assert_eq!(nowhere.status, Some(125));
    assert!(nowhere.stderr.contains("--into DIR"), "{nowhere:#?}");
    let into = lab.directory("into");
    lab.brig(["task".as_ref(), "apply".as_ref(), id(&lab).as_ref(), "--into".as_ref(), into.as_os_str()]).succeeded();
    assert_eq!(read(into.join("a/b/c")), "x\n");
}

#[test]
fn a_task_that_changes_nothing_hands_back_nothing() {
    let lab = Lab::new();
    let run = lab.task().args(["--dir".as_ref(), folder(&lab).as_os_str()]).sh("cat file");
    run.ended_as("succeeded", 0);
    assert!(run.receipt()["changes"]["path"].is_null());
    let diff = lab.brig(["task", "diff", &id(&lab)]);
    diff.succeeded();
    assert_eq!(diff.stdout, "");
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
}

#[test]
fn a_task_that_was_ended_by_a_limit_still_hands_back_its_work() {
    let lab = Lab::new();
    let run = lab.task().args(["--wall", "1s"]).sh("echo half >work && sleep 60");
    run.ended_as("timeout", 124);
    assert_eq!(run.receipt()["changes"]["added"], 1);
    assert!(lab.brig(["task", "diff", &id(&lab)]).stdout.contains("+half"));
}

/// A repository with one commit on `main`.
fn repository(lab: &Lab) -> std::path::PathBuf {
    let repository = lab.directory("repository");
    lab.file("repository/file", "one\n");
    let script = "git init -q -b main && git add -A && git -c user.name=t -c user.email=t@localhost commit -qm one";
    assert!(Command::new("sh").args(["-c", script]).current_dir(&repository).status().unwrap().success());
    repository
}

#[test]
fn a_repository_that_the_agent_breaks_changes_no_outcome_but_success() {
    let lab = Lab::new();
    let repository = repository(&lab);
    let check = |limits: &[&str], end: &str, outcome: &str, status: i32| {
        let task = lab
            .task()
            .args(["--push-branch", "agent/x"])
            .args(limits)
            .args(["--repo".as_ref(), repository.as_os_str()]);
        let run = task.sh(&format!("echo bad >.git/HEAD; {end}"));
        run.ended_as(outcome, status);
        let receipt = run.receipt();
        assert_eq!((&receipt["push"]["state"], &receipt["error"]["code"]), (&"failed".into(), &"E-WORKSPACE".into()));
        assert!(receipt["push"]["error"].as_str().unwrap().contains("`HEAD` is not a reference"), "{receipt:#}");
        assert_eq!(receipt["retryable"], outcome == "push_failed", "{receipt:#}");
    };
    check(&[], "exit 7", "failed", 7);
    check(&["--wall", "1s"], "sleep 60", "timeout", 124);
    check(&[], "exit 0", "push_failed", 125);
    // stderr reports it too.
    let task = lab.task().plain().args(["--push-branch", "agent/x", "--repo"]).args([&repository]);
    let run = task.sh("echo bad >.git/HEAD; exit 7");
    assert!(run.status == Some(7) && run.stderr.contains("`HEAD` is not a reference"), "{run:#?}");
}

#[test]
fn work_that_cannot_be_collected_changes_no_outcome_but_success() {
    let lab = Lab::new();
    for (status, outcome) in [(7, "failed"), (0, "push_failed")] {
        let task = lab.task().start_sh(&format!("echo x >file; echo ready; sleep 1; exit {status}"));
        task.wait_for("ready");
        // Another file is in the place of the copies.
        std::fs::create_dir_all(lab.store().join("tasks").join(id(&lab)).join("changes/files")).unwrap();
        let run = task.finish();
        run.ended_as(outcome, if status == 0 { 125 } else { status });
        let error = run.receipt()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains("collect the work"), "{error}");
    }
}

#[test]
fn a_repository_gets_the_work_and_not_the_history() {
    let lab = Lab::new();
    let repository = repository(&lab);
    // By a relative path, and applied from elsewhere.
    let script = "echo two >>file && git -c user.name=a -c user.email=a@localhost commit -qam two";
    let mut run = lab.task().args(["--repo", "repository"]).command_for(["sh", "-c", script]);
    assert!(run.current_dir(lab.path()).output().unwrap().status.success());
    let stat = lab.brig(["task", "diff", &id(&lab), "--stat"]);
    assert_eq!(stat.stdout.lines().skip(1).collect::<Vec<_>>(), ["modified  file"]);
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
    assert_eq!(read(repository.join("file")), "one\ntwo\n");
    let log = Command::new("git").args(["log", "--oneline"]).current_dir(&repository).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&log.stdout).lines().count(), 1);
}

#[test]
fn many_names_of_one_file_are_one_file_in_the_store_and_in_the_folder() {
    let lab = Lab::new();
    let folder = folder(&lab);
    let task = lab.task().args(["--disk", "64M", "--dir"]).args([&folder]);
    let run = task.sh("head -c 20000000 /dev/urandom >a; i=0; while [ $i -lt 50 ]; do ln a n$i; i=$((i+1)); done");
    run.ended_as("succeeded", 0);
    assert_eq!(run.receipt()["changes"]["added"], 51, "{run:#?}");
    let taken = |path: &Path| {
        let told = Command::new("du").args(["-sm"]).arg(path).output().unwrap();
        String::from_utf8(told.stdout).unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert!(taken(&lab.store().join("tasks")) < 64, "the store has {} MiB", taken(&lab.store()));
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
    assert!(names(&folder).len() == 53 && taken(&folder) < 64, "the folder has {} MiB", taken(&folder));
}

#[test]
fn a_renamed_folder_leaves_its_ignored_files_behind() {
    let lab = Lab::new();
    let folder = lab.path().join("project");
    std::fs::create_dir_all(folder.join("src/cache/deep")).unwrap();
    std::fs::create_dir(folder.join(".git")).unwrap();
    for (name, text) in [(".gitignore", "cache\n"), ("src/a", "a"), ("src/cache/deep/b", "b")] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let run = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh("mv src lib");
    run.ended_as("succeeded", 0);
    lab.brig(["task", "apply", "@"]).succeeded();
    assert!(folder.join("lib/a").exists() && !folder.join("src/a").exists() && !folder.join("lib/cache").exists());
    assert!(folder.join("src/cache/deep/b").exists());
}

#[test]
fn a_signal_during_an_apply_leaves_the_tree_as_it_was() {
    let lab = Lab::new();
    let folder = lab.path().join("project");
    std::fs::create_dir(&folder).unwrap();
    (0..4000).for_each(|number| std::fs::write(folder.join(format!("f{number}")), "old").unwrap());
    let run = lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh("for f in f*; do echo new >$f; done");
    run.ended_as("succeeded", 0);
    let apply = lab.start(["task", "apply", "@"]);
    let staging = folder.join(".brig-apply");
    crate::support::eventually("files are staged", || staging.join("new-100").exists());
    apply.signal(rustix::process::Signal::INT);
    apply.finish().refused(125, &["a signal ended it"]);
    assert!(!staging.exists());
    assert!((0..4000).all(|number| std::fs::read(folder.join(format!("f{number}"))).unwrap() == b"old"));
    lab.brig(["task", "apply", "@"]).succeeded();
    assert_eq!(std::fs::read(folder.join("f7")).unwrap(), b"new\n");
}

#[test]
fn what_git_ignores_stays_out_of_changes_and_store_and_comes_out_when_named() {
    let lab = Lab::new();
    let folder = repository(&lab);
    lab.file("repository/.gitignore", "target/\n");
    let script = "mkdir target; head -c 3000000 /dev/urandom >target/big; echo report >target/report";
    let task = || lab.task().args(["--dir".as_ref(), folder.as_os_str()]);
    let run = task().args(["--artifact", "target/report"]).sh(script);
    let receipt = run.ended_as("succeeded", 0).receipt();
    assert_eq!((&receipt["changes"]["added"], &receipt["changes"]["ignored"]), (&0.into(), &1.into()), "{receipt:#}");
    assert_eq!(receipt["artifacts"]["files"][0]["path"], "target/report");
    let diff = lab.brig(["task", "diff", &id(&lab), "--stat"]);
    assert!(diff.succeeded().stderr.contains("git ignores it: target (1 in all"), "{diff:#?}");
    assert!(!diff.stdout.contains("target"), "{diff:#?}");
    let run = task().args(["--ignored"]).sh(script);
    assert_eq!(run.ended_as("succeeded", 0).receipt()["changes"]["added"], 3);
}

#[test]
fn changes_go_to_the_folder_that_the_task_worked_on_and_to_no_other_of_its_name() {
    let lab = Lab::new();
    let folder = folder(&lab);
    work(&lab, &folder);
    let moved = lab.path().join("moved");
    std::fs::rename(&folder, &moved).unwrap();
    self::folder(&lab);
    let refused = lab.brig(["task", "apply", &id(&lab)]);
    assert!(refused.refused(125, &["another folder"]).stderr.contains("--into DIR"), "{refused:#?}");
    assert_eq!(names(&folder), ["file", "gone"]);
    // The patch is made from what was kept, and without the check from whatever has the name: this folder has the same files.
    let diff = || ["task".to_owned(), "diff".to_owned(), id(&lab)];
    let (whole, weak) = (lab.brig(diff()), lab.weakened("changes-folder", diff()));
    assert!(
        whole.succeeded().stdout.contains("+two") && whole.stderr.contains("`file` has changed since"),
        "{whole:#?}"
    );
    assert!(
        weak.succeeded().stdout.contains("+two") && !weak.stderr.contains("has changed since"),
        "the control: {weak:#?}"
    );
    let into = ["task".as_ref(), "apply".as_ref(), "--into".as_ref(), moved.as_os_str()];
    lab.brig(into.into_iter().chain([id(&lab).as_ref()])).succeeded();
    assert_eq!(read(moved.join("file")), "one\ntwo\n");
    // Without the check the changes go to another folder at that path.
    lab.weakened("changes-folder", ["task", "apply", &id(&lab)]).succeeded();
    assert_eq!(read(folder.join("file")), "one\ntwo\n");
}

#[test]
fn what_the_user_edited_meanwhile_is_in_the_patch_and_a_merge_joins_both() {
    let lab = Lab::new();
    let folder = folder(&lab);
    lab.file("work/file", "1\n2\n3\n4\n5\n");
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]);
    task.sh("sed -i s/5/five/ file").ended_as("succeeded", 0);
    let id = id(&lab);
    lab.file("work/file", "one\n2\n3\n4\n5\n");
    let diff = lab.brig(["task", "diff", &id]);
    assert!(diff.succeeded().stdout.contains("-5\n+five\n"), "{diff:#?}");
    assert!(diff.stderr.contains("`file` has changed since"), "{diff:#?}");
    let refused = lab.brig(["task", "apply", &id]);
    refused.refused(125, &["`file` was changed"]);
    assert!(refused.stderr.contains("--merge") && refused.stderr.contains("--into DIR"), "{refused:#?}");
    let dry = lab.brig(["task", "apply", &id, "--merge", "--dry-run"]);
    assert!(dry.succeeded().stdout.contains("merge     file"), "{dry:#?}");
    lab.brig(["task", "apply", &id, "--merge"]).succeeded();
    assert_eq!(read(folder.join("file")), "one\n2\n3\n4\nfive\n");
    lab.file("work/file", "1\n2\n3\n4\nsix\n");
    lab.brig(["task", "apply", &id, "--merge"]).refused(125, &["in the same lines"]);
    assert_eq!(read(folder.join("file")), "1\n2\n3\n4\nsix\n");
}
