//! Checkpoints of running tasks: made, listed, forked from, returned to, and whole after a kill at any moment.

use crate::crash::{Random, SEED, descendants, kills, state};
use crate::support::{Lab, Started, eventually, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A kept task that runs until it is ended.
fn start(lab: &Lab, more: &[&str], script: &str) -> (Started, String) {
    let known = lab.ids();
    let task = lab.task().args(["--keep"]).args(more).start_sh(&format!("{script}; echo ready; sleep 300"));
    task.wait_for("ready");
    let id = lab.ids().into_iter().find(|id| !known.contains(id)).unwrap();
    (task, id)
}

fn exec(lab: &Lab, id: &str, script: &str) {
    lab.brig(["task", "exec", id, "--", "sh", "-c", script]).succeeded();
}

fn receipt(lab: &Lab, id: &str) -> Value {
    serde_json::from_str(&lab.brig(["task", "wait", "--json", id]).stdout).unwrap()
}

/// The receipt and the output of a fork of a checkpoint.
fn fork(lab: &Lab, id: &str, name: &str, script: &str) -> (Value, String) {
    let run = lab.brig(["task", "fork", id, "--from", name, "--", "sh", "-c", script]);
    let fork = run.succeeded().stdout.trim().to_owned();
    let receipt = receipt(lab, &fork);
    (receipt, lab.brig(["task", "logs", &fork]).succeeded().stdout.clone())
}

#[test]
fn files_return_to_a_checkpoint_and_forks_begin_with_it() {
    let lab = Lab::new();
    let work = lab.file("work/base", "base\n");
    let work = work.parent().unwrap().to_str().unwrap();
    let (task, id) = start(&lab, &["--dir", work], "echo one > file; echo one > ~/home; echo one > /tmp/passing");
    assert_eq!(lab.brig(["task", "checkpoint", &id]).succeeded().stdout, "1\n");
    exec(&lab, &id, "echo two > file; rm base; echo two > ~/home");
    assert_eq!(lab.brig(["task", "checkpoint", &id, "second"]).succeeded().stdout, "second\n");
    exec(&lab, &id, "echo three > file");
    let list: Value = serde_json::from_str(&lab.brig(["task", "checkpoints", "--json", &id]).stdout).unwrap();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["1", "second"]);
    assert!(list[0]["bytes"].as_u64().unwrap() < 4 << 20, "only what is in use is copied: {list:#}");
    let look = "cat file ~/home; ls base /tmp";
    let (forked, output) = fork(&lab, &id, "1", look);
    assert!(output.starts_with("one\none\n") && output.contains("base") && !output.contains("passing"), "{output}");
    assert_eq!(forked["parent"], serde_json::json!({ "task": id, "checkpoint": "1" }));
    let (_, output) = fork(&lab, &id, "second", look);
    assert!(output.starts_with("two\ntwo\n") && output.contains("'base'"), "{output}");
    let run = lab.brig(["task", "fork", &id, "--from", "1", "-n", "3", "--", "sh", "-c", "cat file; echo $$ > own"]);
    let forks: Vec<_> = run.succeeded().stdout.lines().map(str::to_owned).collect();
    assert_eq!(forks.len(), 3);
    assert!(forks.iter().all(|id| receipt(&lab, id)["outcome"] == "succeeded"));
    // What is wrong is refused while the task runs on.
    let refused = |words: &[&str], expected: &str| {
        lab.brig(words).refused(125, &[expected]);
    };
    refused(&["task", "checkpoint", &id, "second"], "a checkpoint `second` already");
    refused(&["task", "checkpoint", &id, "../x"], "is not a name of a checkpoint");
    refused(&["task", "rollback", &id, "other"], "has no checkpoint `other`");
    refused(&["task", "fork", &id, "--from", "../1"], "is not a name of a checkpoint");
    refused(&["task", "fork", &id], "it is running");
    let back = lab.brig(["task", "rollback", &id, "1", "--", "sh", "-c", look]).succeeded().stdout.trim().to_owned();
    task.finish().ended_as("cancelled", 130);
    let ended = receipt(&lab, &back);
    assert_eq!((&ended["outcome"], &ended["parent"]["checkpoint"]), (&"succeeded".into(), &"1".into()), "{ended:#}");
    assert!(lab.brig(["task", "logs", &back]).succeeded().stdout.starts_with("one\none\n"));
    refused(&["task", "checkpoint", &id], "it has ended");
    // The state before stays with the old task, as do its checkpoints.
    let run = lab.brig(["task", "resume", "--json", &id, "--", "cat", "file"]);
    assert!(run.ended_as("succeeded", 0).stderr.contains("three\n"), "{run:#?}");
    assert_eq!(run.receipt()["parent"], serde_json::json!({ "task": id, "checkpoint": null }));
    assert_eq!(fork(&lab, &id, "second", "cat file").1, "two\n");
    lab.brig(["task", "discard", &id]).succeeded();
    refused(&["task", "rollback", &id, "1"], "has no checkpoint `1`");
    lab.assert_clean();
}

#[test]
fn checkpoint_is_one_moment_of_a_task_that_writes() {
    let lab = Lab::new();
    // Two files with one number, each replaced as a whole, the second last: no moment has a newer second one.
    let script = "i=0; (while :; do i=$((i+1)); echo $i > new; mv new first; echo $i > ~/new; mv ~/new ~/second; done) & sleep 0.2";
    let (task, id) = start(&lab, &[], script);
    for name in ["a", "b", "c", "d"] {
        lab.brig(["task", "checkpoint", &id, name]).succeeded();
        let (_, output) = fork(&lab, &id, name, "cat first ~/second");
        let numbers: Vec<i64> = output.lines().map(|line| line.parse().unwrap()).collect();
        assert!((0..=1).contains(&(numbers[0] - numbers[1])), "{output}");
    }
    // A paused task stays paused, and goes on after it.
    lab.brig(["task", "pause", &id]).succeeded();
    lab.brig(["task", "checkpoint", &id, "paused"]).succeeded();
    let stats: Value = serde_json::from_str(&lab.brig(["task", "stats", "--json", &id]).stdout).unwrap();
    assert!(stats.to_string().contains("\"paused\":true"), "{stats:#}");
    lab.brig(["task", "unpause", &id]).succeeded();
    exec(&lab, &id, "one=$(cat first); sleep 0.2; test $one != $(cat first)");
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    lab.assert_clean();
}

#[test]
fn checkpoint_leaves_the_files_of_the_running_task_as_they_are() {
    let lab = Lab::new();
    let closed = "echo x > closed; chmod 000 closed; mkdir -p shut/inner; echo in > shut/inner/file; chmod 000 shut/inner; chmod 000 shut";
    let (task, id) = start(&lab, &[], closed);
    lab.brig(["task", "checkpoint", &id, "a"]).succeeded();
    let look = "stat -c '%a %n' closed shut; chmod 700 shut; stat -c '%a %n' shut/inner; chmod 700 shut/inner; cat shut/inner/file";
    let expected = "0 closed\n0 shut\n0 shut/inner\nin\n";
    assert_eq!(lab.brig(["task", "exec", &id, "--", "sh", "-c", look]).succeeded().stdout, expected);
    // Folders that are saved from memory are open to their owner again.
    let forked = if is_root() { expected.to_owned() } else { expected.replace("0 shut", "700 shut") };
    assert_eq!(fork(&lab, &id, "a", look).1, forked);
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    lab.assert_clean();
}

#[test]
fn root_of_an_image_returns_to_a_checkpoint_and_keeps_its_layers() {
    let Some(lab) = Lab::root() else { return };
    crate::support::Image::new(&lab, "layered").load();
    let image = ["--pull", "never", "--image", "layered:1", "--user", "root"];
    let (task, id) = start(&lab, &image, "echo one > /etc/state; rm /etc/group");
    lab.brig(["task", "checkpoint", &id, "a"]).succeeded();
    exec(&lab, &id, "echo two > /etc/state");
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    // The disk has another task now; the checkpoint still needs the layers.
    lab.brig(["task", "resume", "--json", &id, "--", "true"]).ended_as("succeeded", 0);
    let newest = lab.ids().pop().unwrap();
    lab.brig(["task", "discard", &newest]).succeeded();
    lab.brig(["image", "rm", "layered:1"]).succeeded();
    assert!(lab.brig(["image", "prune"]).succeeded().stdout.contains("in use"));
    assert_eq!(fork(&lab, &id, "a", "cat /etc/state; ls /etc/group 2>/dev/null").1, "one\n");
    lab.brig(["task", "prune", "--workspaces", "--keep", "0"]).succeeded();
    assert!(lab.brig(["image", "prune"]).succeeded().stdout.contains("removed"));
}

#[test]
fn checkpoints_have_a_bound_and_a_task_without_a_lasting_disk_has_none() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; sleep 300");
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    lab.brig(["task", "checkpoint", &id]).refused(125, &["its files end with it"]);
    assert_eq!(lab.brig(["task", "checkpoints", "--json", &id]).succeeded().stdout.trim(), "[]");
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    let (task, id) = start(&lab, &[], "true");
    for _ in 0..16 {
        lab.brig(["task", "checkpoint", &id]).succeeded();
    }
    lab.brig(["task", "checkpoint", &id]).refused(125, &["16 checkpoints"]);
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    let (task, id) = start(&lab, &["--disk", "32M"], "head -c 24M /dev/urandom > data");
    lab.brig(["task", "checkpoint", &id]).succeeded();
    lab.brig(["task", "checkpoint", &id]).succeeded();
    lab.brig(["task", "checkpoint", &id]).refused(125, &["2 times its disk limit"]);
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    lab.assert_clean();
}

/// Kills a process at a random moment of `most`, with all its children.
pub fn kill_tree(pid: i32, random: &mut Random, most: Duration) {
    std::thread::sleep(random.below(most));
    stop(pid);
    for pid in descendants(pid) {
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
}

/// Stops a process, then its children: a child that is made meanwhile would survive.
fn stop(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP);
    eventually("it has stopped", || state(pid).is_none_or(|state| "TtZX".contains(state)));
    descendants(pid).into_iter().skip(1).for_each(stop);
}

/// The disk image of a task with kept files.
fn image(lab: &Lab, id: &str) -> PathBuf {
    lab.store().join("tasks").join(id).join("workspace.img")
}

/// Waits for the end of a killed supervisor, and finds the task that has the files of `holder` now.
#[track_caller]
pub fn find_holder(lab: &Lab, holder: &mut String) {
    eventually("no supervisor runs", || lab.brig(["task", "ls", "--json"]).stdout.matches("\"running\"").count() == 0);
    lab.reap();
    if !image(lab, holder).exists() {
        let found = lab.ids().into_iter().rev().find(|id| image(lab, id).exists());
        *holder = found.unwrap_or_else(|| panic!("a task has the files"));
    }
}

#[test]
fn killed_supervisor_leaves_no_checkpoint_or_a_whole_one() {
    let lab = Lab::new();
    let kills = kills(30);
    let script = "head -c 12M /dev/urandom > data; sha256sum data > sum";
    let (task, id) = start(&lab, &[], script);
    let began = Instant::now();
    lab.brig(["task", "checkpoint", &id]).succeeded();
    let mut whole = began.elapsed().mul_f64(1.2);
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    let (mut random, mut made) = (Random(SEED), 0);
    for _ in 0..kills {
        let (task, id) = start(&lab, &[], script);
        let checkpoint = lab.start(["task", "checkpoint", &id, "a"]);
        std::thread::sleep(random.below(whole));
        task.signal(Signal::KILL);
        checkpoint.finish();
        task.finish();
        lab.reap();
        let left: Vec<_> = std::fs::read_dir(lab.store().join("tasks").join(&id).join("checkpoints"))
            .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
            .unwrap_or_default();
        assert!(left.is_empty() || left == ["a.img"], "{left:?}");
        // On a busy machine a checkpoint takes another time: the moments move to both sides of its end.
        whole = whole.mul_f64(if left.is_empty() { 1.4 } else { 0.7 });
        if !left.is_empty() {
            made += 1;
            let (ended, output) = fork(&lab, &id, "a", "sha256sum -c sum");
            assert_eq!((&ended["outcome"], output.as_str()), (&"succeeded".into(), "data: OK\n"), "{ended:#}");
        }
        // An ordinary user's last state was in memory.
        if is_root() {
            let run = lab.brig(["task", "resume", "--json", &id, "--", "sha256sum", "-c", "sum"]);
            run.ended_as("succeeded", 0);
        }
        lab.brig(["task", "prune", "--keep", "0"]).succeeded();
    }
    assert!(made > 0 && made < kills, "kills on both sides of the end: {made}");
    lab.assert_reaped();
}

#[test]
fn kill_at_any_moment_of_a_fork_a_rollback_and_a_resume_loses_nothing() {
    let Some(lab) = Lab::root() else { return };
    let kills = kills(30);
    let script = "head -c 6M /dev/urandom > data; sha256sum data > sum";
    let (task, id) = start(&lab, &[], script);
    lab.brig(["task", "checkpoint", &id, "a"]).succeeded();
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    let check = ["--", "sha256sum", "-c", "sum"];
    let began = Instant::now();
    let fork = lab.brig([&["task", "fork", &id, "--from", "a"], &check[..]].concat());
    receipt(&lab, fork.succeeded().stdout.trim());
    let whole = began.elapsed();
    let mut random = Random(SEED);
    let image = |id: &str| image(&lab, id);
    let mut holder = id.clone();
    for round in 0..kills {
        let words = match round % 3 {
            0 => vec!["task", "fork", &id, "--from", "a"],
            1 => vec!["task", "rollback", &id, "a"],
            _ => vec!["task", "resume", &holder],
        };
        let begun = lab.start(words.into_iter().chain(check));
        kill_tree(begun.pid(), &mut random, whole);
        begun.finish();
        find_holder(&lab, &mut holder);
        // Each disk that has its name is whole.
        for other in lab.ids().into_iter().filter(|other| *other != id && *other != holder) {
            if image(&other).exists() {
                lab.brig([&["task", "resume", "--json", &other], &check[..]].concat()).ended_as("succeeded", 0);
                lab.brig(["task", "rm", &lab.ids().pop().unwrap()]).succeeded();
            }
            lab.brig(["task", "rm", &other]).succeeded();
        }
    }
    for words in [vec!["task", "resume", "--json", &holder], vec!["task", "fork", &id, "--from", "a"]] {
        lab.brig(words.into_iter().chain(check)).succeeded();
    }
    receipt(&lab, &lab.ids().pop().unwrap());
    lab.assert_reaped();
}
