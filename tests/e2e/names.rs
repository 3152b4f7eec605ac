//! Names and labels of tasks.

use crate::support::{Lab, eventually, is_root};
use serde_json::Value;

#[track_caller]
fn begin(lab: &Lab, arguments: &[&str]) -> String {
    let run = lab.task().plain().args(["--detach"]).args(arguments).sh("echo ready; sleep 300");
    run.succeeded().stdout.trim().to_owned()
}

#[track_caller]
fn rows(lab: &Lab, filters: &[&str]) -> Vec<Value> {
    let filters = filters.iter().flat_map(|filter| ["--filter", filter]);
    let list = lab.brig(["task", "ls", "--json"].into_iter().chain(filters));
    serde_json::from_str(&list.succeeded().stdout).unwrap()
}

#[track_caller]
fn ids(lab: &Lab, filters: &[&str]) -> Vec<String> {
    rows(lab, filters).iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_verb_takes_a_name() {
    let lab = Lab::new();
    let id = begin(&lab, &["--name", "agent-1", "--label", "team=search"]);
    eventually("its output is there", || lab.brig(["task", "logs", "agent-1"]).succeeded().stdout == "ready\n");
    assert_eq!(lab.brig(["task", "exec", "agent-1", "--", "echo", "in"]).succeeded().stdout, "in\n");
    let file = lab.file("file", "content");
    lab.brig(["task", "cp", file.to_str().unwrap(), "agent-1:/tmp/"]).succeeded();
    assert_eq!(lab.brig(["task", "exec", "agent-1", "--", "cat", "/tmp/file"]).succeeded().stdout, "content");
    lab.brig(["task", "pause", "agent-1"]).succeeded();
    lab.brig(["task", "unpause", "agent-1"]).succeeded();
    assert!(lab.brig(["task", "stats", "agent-1"]).succeeded().stdout.contains(&id));
    lab.brig(["task", "top", "agent-1"]).succeeded();
    lab.brig(["task", "stop", "agent-1"]).succeeded();
    let receipt = lab.brig(["task", "wait", "--json", "agent-1"]).receipt();
    assert_eq!((&receipt["id"], &receipt["name"]), (&id.as_str().into(), &"agent-1".into()));
    assert_eq!(receipt["labels"], serde_json::json!({ "team": "search" }));
    let events = lab.brig(["task", "events", "agent-1"]).succeeded().stdout.clone();
    let first: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!((&first["name"], &first["labels"]["team"]), (&"agent-1".into(), &"search".into()));
    let shown = lab.brig(["task", "show", "agent-1"]).succeeded().stdout.clone();
    assert!(shown.contains("agent-1") && shown.contains("team=search"), "{shown}");
    assert!(lab.brig(["task", "ls"]).succeeded().stdout.contains("agent-1"));
    lab.brig(["task", "diff", "agent-1"]).succeeded();
    lab.brig(["task", "rm", "agent-1"]).succeeded();
    lab.brig(["task", "show", "agent-1"]).refused(125, &["unknown task `agent-1`"]);
}

#[test]
fn a_name_belongs_to_one_running_task() {
    let lab = Lab::new();
    let first = begin(&lab, &["--name", "one"]);
    let refused = lab.task().plain().args(["--name", "one"]).sh("true");
    refused.refused(125, &["the name `one` is in use by the running task", &first]);
    lab.task().plain().args(["--detach", "--name", "one"]).sh("true").refused(125, &["in use", &first]);
    assert_eq!(lab.ids(), [first.as_str()], "nothing was begun");
    lab.brig(["task", "stop", "one"]).succeeded();
    lab.task().args(["--name", "one"]).sh("true").ended_as("succeeded", 0);
    let second = lab.ids().pop().unwrap();
    let shown = lab.brig(["task", "show", "--json", "one"]).receipt();
    assert_eq!(shown["id"], second.as_str(), "the name leads to the task that had it last");
    assert_eq!(ids(&lab, &["name=one"]), [first, second]);
}

#[test]
fn of_tasks_that_begin_at_once_with_one_name_one_begins() {
    let lab = Lab::new();
    let started: Vec<_> =
        (0..6).map(|_| lab.start(["task", "run", "-d", "--name", "race", "--", "sleep", "300"])).collect();
    let runs: Vec<_> = started.into_iter().map(|each| each.finish()).collect();
    let won: Vec<_> = runs.iter().filter(|run| run.status == Some(0)).collect();
    assert_eq!(won.len(), 1, "{runs:#?}");
    assert_eq!(ids(&lab, &["status=running"]), [won[0].stdout.trim()]);
    lab.brig(["task", "kill", "race"]).succeeded();
    lab.brig(["task", "wait", "race"]);
}

#[test]
fn replace_ends_and_removes_the_holder_of_the_name() {
    let lab = Lab::new();
    let first = begin(&lab, &["--name", "worker"]);
    // A task that is refused ends no other.
    lab.task()
        .plain()
        .args(["--name", "worker", "--replace", "--dir", "/nowhere"])
        .sh("true")
        .refused(125, &["/nowhere"]);
    assert_eq!(ids(&lab, &["status=running"]), [first.as_str()]);
    let second = begin(&lab, &["--name", "worker", "--replace", "--grace", "100ms"]);
    assert_eq!(lab.ids(), [second.as_str()]);
    // A supervisor that was killed leaves a name that is free, and remains that are removed.
    let record = std::fs::read(lab.store().join("tasks").join(&second).join("record.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let supervisor = rustix::process::Pid::from_raw(record["supervisor"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    eventually("its supervisor is gone", || {
        !std::path::Path::new(&format!("/proc/{}", supervisor.as_raw_nonzero())).exists()
    });
    let third = begin(&lab, &["--name", "worker", "--replace"]);
    assert_eq!(lab.ids(), [third.as_str()]);
    lab.brig(["task", "kill", "worker"]).succeeded();
    lab.brig(["task", "wait", "worker"]);
    // An ended holder is removed too.
    lab.task().args(["--name", "worker", "--replace"]).sh("true").ended_as("succeeded", 0);
    assert_eq!(lab.ids().len(), 1);
    assert_ne!(lab.ids()[0], third);
}

#[test]
fn tasks_are_filtered_by_label_status_and_name() {
    let lab = Lab::new();
    lab.task().args(["--label", "team=search", "--label", "nightly=", "--name", "a"]).sh("true").succeeded();
    lab.task().args(["--label", "team=ads", "--name", "b"]).sh("exit 3");
    lab.task().sh("true").succeeded();
    let all = lab.ids();
    let index = |picked: &[usize]| picked.iter().map(|&at| all[at].clone()).collect::<Vec<_>>();
    for (filters, expected) in [
        (&["label=team"][..], &[0, 1][..]),
        (&["label=team=ads"], &[1]),
        (&["label=team", "status=succeeded"], &[0]),
        (&["status=ended"], &[0, 1, 2]),
        (&["status=failed"], &[1]),
        (&["status=running"], &[]),
        (&["name=a"], &[0]),
        (&["name=a", "label=team=ads"], &[]),
        (&["label=nightly"], &[0]),
    ] {
        assert_eq!(ids(&lab, filters), index(expected), "{filters:?}");
        // The same from the records: the index is a cache.
        let _ = std::fs::remove_file(lab.store().join("index"));
        assert_eq!(ids(&lab, filters), index(expected), "{filters:?}");
    }
    lab.brig(["task", "ls", "--filter", "color=red"]).refused(125, &["`color=red` is not a filter"]);
    lab.brig(["task", "ls", "--filter", "status=odd"]).refused(125, &["`odd` is not a status"]);
    let pruned = |words: &[&str]| {
        lab.brig(["task", "prune"].iter().chain(words)).succeeded();
        lab.ids()
    };
    assert_eq!(pruned(&["--label", "team", "--older-than", "1h"]), index(&[0, 1, 2]));
    assert_eq!(pruned(&["--label", "team=ads", "--older-than", "0s"]), index(&[0, 2]));
    assert_eq!(pruned(&["--label", "team", "--dry-run"]), index(&[0, 2]));
    assert_eq!(pruned(&["--label", "team"]), index(&[2]));
    lab.brig(["task", "prune"]).refused(125, &["no flag chooses"]);
}

#[test]
fn wrong_names_and_labels_are_refused_and_nothing_is_made() {
    let lab = Lab::new();
    let long = "x".repeat(64);
    for (flag, value) in [
        ("--name", "a/b"),
        ("--name", "../x"),
        ("--name", ".lock"),
        ("--name", "@"),
        ("--name", ""),
        ("--name", &long),
        ("--label", "plain"),
        ("--label", "=x"),
        ("--label", "a=\u{1b}[2J"),
    ] {
        lab.task().plain().args([flag, value]).sh("true").refused(125, &[flag]);
    }
    let labels: Vec<_> = (0..65).flat_map(|index| ["--label".to_owned(), format!("k{index}=v")]).collect();
    lab.task().plain().args(labels).sh("true").refused(125, &["too many labels"]);
    lab.task().plain().args(["--replace"]).sh("true").refused(125, &["--replace"]);
    assert!(!lab.store().exists());
}

#[test]
fn a_profile_has_a_name_and_labels_and_explain_shows_them() {
    let lab = Lab::new();
    let profile = lab.file("p.toml", "name = \"nightly\"\n[labels]\nteam = \"search\"\n\"a.b/c\" = \"1\"\n");
    let profile = profile.to_str().unwrap();
    let explained = lab.task().plain().args(["--explain", "--profile", profile, "--label", "team=ads"]).sh("true");
    for words in ["nightly", "team=ads", "a.b/c=1"] {
        assert!(explained.succeeded().stdout.contains(words), "{words}: {explained:#?}");
    }
    let run = lab.task().args(["--profile", profile]).sh("true");
    assert_eq!(run.ended_as("succeeded", 0).receipt()["name"], "nightly");
    assert_eq!(run.receipt()["labels"], serde_json::json!({ "team": "search", "a.b/c": "1" }));
    let wrong = lab.file("wrong.toml", "name = \"a b\"\n");
    lab.task().plain().args(["--profile", wrong.to_str().unwrap()]).sh("true").refused(125, &["`a b` is not a name"]);
}

#[test]
fn a_secret_in_a_label_is_hidden() {
    let lab = Lab::new();
    let run = lab.task().env("TOKEN", "correct-horse-battery").args([
        "-e",
        "TOKEN",
        "--label",
        "token=correct-horse-battery",
    ]);
    let run = run.sh("true");
    let label = run.ended_as("succeeded", 0).receipt()["labels"]["token"].as_str().unwrap().to_owned();
    assert!(label.contains("redacted") && !label.contains("horse"), "{label}");
    let list = lab.brig(["task", "ls", "--json"]).succeeded().stdout.clone();
    let record = std::fs::read_to_string(lab.store().join("tasks").join(&lab.ids()[0]).join("record.json")).unwrap();
    assert!(!list.contains("horse") && !record.contains("horse"));
}

#[test]
fn a_resumed_task_has_the_labels_and_the_name_if_that_is_free() {
    if !is_root() {
        return crate::support::skip("needs root");
    }
    let lab = Lab::new();
    lab.task().args(["--keep", "--name", "agent", "--label", "team=search"]).sh("exit 1");
    let fork = lab.brig(["task", "fork", "agent", "--", "true"]).succeeded().stdout.trim().to_owned();
    lab.brig(["task", "wait", &fork]).succeeded();
    let forked = lab.brig(["task", "show", "--json", &fork]).receipt();
    assert_eq!((&forked["name"], &forked["labels"]["team"]), (&Value::Null, &"search".into()));
    let resumed = lab.brig(["task", "resume", "--json", "agent", "--", "true"]);
    assert_eq!(resumed.receipt()["name"], "agent");
    assert_eq!(resumed.receipt()["labels"]["team"], "search");
    let id = resumed.receipt()["id"].as_str().unwrap().to_owned();
    let other = begin(&lab, &["--name", "agent"]);
    let resumed = lab.brig(["task", "resume", "--json", &id, "--", "true"]);
    assert_eq!(resumed.ended_as("succeeded", 0).receipt()["name"], Value::Null);
    lab.brig(["task", "kill", &other]).succeeded();
    lab.brig(["task", "wait", &other]);
}
