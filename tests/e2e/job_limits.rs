//! Limits of one job, below those of its task.

use crate::support::{Lab, Run, eventually};
use serde_json::Value;

/// Takes and touches memory without end.
const HOG: &str = "perl -e '$x = q(x) x (1 << 20); push @kept, $x . rand while 1'";

#[track_caller]
fn begin(lab: &Lab, protection: Option<&str>) -> String {
    let task = protection.into_iter().fold(lab.task().plain(), |task, name| task.weakened(name));
    let run = task.args(["--detach", "--memory", "256M", "--pids", "64", "--cpu-time", "1m"]).sh("sleep 300");
    let id = run.succeeded().stdout.trim().to_owned();
    eventually("its command runs", || lab.brig(["task", "top", &id]).stdout.contains("  sleep 300"));
    id
}

fn exec(lab: &Lab, id: &str, flags: &[&str], script: &str) -> Run {
    lab.brig(["task", "exec"].iter().chain(flags).chain(&[id, "--", "sh", "-c", script]))
}

/// Runs a job to its end; its record, and what `wait` prints.
#[track_caller]
fn job(lab: &Lab, id: &str, flags: &[&str], script: &str) -> (Value, String) {
    let flags: Vec<_> = ["-d"].iter().chain(flags).copied().collect();
    let job = exec(lab, id, &flags, script).succeeded().stdout.trim().to_owned();
    let words = lab.brig(["task", "wait", id, "--job", &job]).stderr;
    let record = lab.brig(["task", "wait", "--json", id, "--job", &job]).stdout;
    (serde_json::from_str(&record).unwrap(), words)
}

#[track_caller]
fn end(lab: &Lab, id: &str) {
    assert_eq!(lab.brig(["task", "ls", "--json"]).stdout.matches("\"running\"").count(), 1, "the task lives on");
    lab.brig(["task", "kill", id]).succeeded();
    lab.brig(["task", "wait", id]);
    lab.assert_clean();
}

#[test]
fn job_that_takes_too_much_memory_is_killed_and_the_task_goes_on() {
    let lab = Lab::new();
    let id = begin(&lab, None);
    // The kernel of cgroup v1 kills one process of it, and brig the rest.
    let (record, words) = job(&lab, &id, &["--memory", "48M"], &format!("{HOG}; sleep 100"));
    assert_eq!((&record["state"], &record["exit_status"]), (&"memory".into(), &137.into()), "{record}");
    assert!(words.contains("job j1 memory: it was killed at its own limit of 48M of memory"), "{words}");
    assert_eq!(record["memory_bytes"], 48 << 20);
    // What enters afterwards is in the task, with its limits and counters, and is signalled and frozen with it.
    assert_eq!(exec(&lab, &id, &[], "echo on").succeeded().stdout, "on\n");
    let (record, _) = job(&lab, &id, &["--memory", "64M"], "exit 3");
    assert_eq!((&record["state"], &record["exit_status"]), (&"exited".into(), &3.into()), "{record}");
    let top = lab.brig(["task", "top", "--json", &id]).succeeded().stdout.clone();
    assert!(top.contains("sleep 300"), "{top}");
    let stats: Value = serde_json::from_str(&lab.brig(["task", "stats", "--json", &id]).succeeded().stdout).unwrap();
    assert!(stats[0]["memory_bytes"].as_u64() > Some(0) && stats[0]["pids"].as_u64() > Some(1), "{stats}");
    lab.brig(["task", "pause", &id]).succeeded();
    lab.brig(["task", "unpause", &id]).succeeded();
    end(&lab, &id);
}

#[test]
fn memory_limit_of_a_job_is_that_of_the_kernel() {
    let lab = Lab::new();
    let id = begin(&lab, Some("job-limits"));
    let (record, _) = job(&lab, &id, &["--memory", "48M"], "perl -e '$x = q(x) x (100 << 20)'");
    assert_eq!(record["state"], "exited", "the weakened build shows it: {record}");
    end(&lab, &id);
}

#[test]
fn forks_of_a_job_end_at_its_own_limit() {
    let lab = Lab::new();
    let id = begin(&lab, None);
    const MANY: &str = "for n in 1 2 3 4 5 6 7 8 9 10; do sleep 4 & done; echo all";
    let (record, _) = job(&lab, &id, &["--pids", "6"], MANY);
    assert_ne!(record["exit_status"], 0, "{record}");
    let (record, _) = job(&lab, &id, &["--pids", "16"], MANY);
    assert_eq!((&record["exit_status"], &record["pids"]), (&0.into(), &16.into()), "{record}");
    assert_eq!(exec(&lab, &id, &[], MANY).succeeded().stdout, "all\n");
    end(&lab, &id);
}

#[test]
fn job_that_takes_too_much_processor_time_is_killed() {
    let lab = Lab::new();
    let id = begin(&lab, None);
    let (record, words) = job(&lab, &id, &["--cpu-time", "300ms"], "(while :; do :; done) & while :; do :; done");
    assert_eq!((&record["state"], &record["exit_status"]), (&"cpu_time".into(), &152.into()), "{record}");
    assert!(words.contains("its own limit of 0.3 s of processor time"), "{words}");
    let (record, _) = job(&lab, &id, &["--cpu-time", "30s"], "sleep 1");
    assert_eq!(record["state"], "exited", "time without work does not count: {record}");
    end(&lab, &id);
}

#[test]
fn job_that_reaches_the_limit_of_the_task_ends_the_task() {
    let lab = Lab::new();
    let id = begin(&lab, None);
    let (record, _) = job(&lab, &id, &["--memory", "256M"], &format!("{HOG}; sleep 100"));
    // Both limits are one number: the kernel may meet that of the job first, or that of the task.
    let state = record["state"].as_str().unwrap().to_owned();
    assert!(["memory", "ended_with_task"].contains(&state.as_str()), "{record}");
    if state == "memory" {
        let flags = ["-d", "--memory", "256M"];
        let script = "perl -e '$x = q(x) x (200 << 20); sleep 100'";
        [(); 2].iter().for_each(|()| drop(exec(&lab, &id, &flags, script)));
    }
    let receipt = lab.brig(["task", "wait", "--json", &id]).receipt();
    assert_eq!(receipt["outcome"], "memory", "{receipt:#}");
}

#[test]
fn limit_of_a_job_above_the_tasks_is_refused_and_nothing_begins() {
    let lab = Lab::new();
    let id = begin(&lab, None);
    for (flags, words) in [
        (["-d", "--memory", "257M"], "`--memory 257M` is above the task's own limit, 256M"),
        (["-d", "--pids", "65"], "`--pids 65` is above the task's own limit, 64"),
        (["-d", "--cpu-time", "2m"], "`--cpu-time 2m` is above the task's own limit, 1m"),
        (["-d", "--cpu-time", "none"], "`--cpu-time none` is above the task's own limit, 1m"),
        (["-d", "--memory", "much"], "`much` is not a value for `memory`"),
        (["-d", "--pids", "1"], "`1` is not a value for `pids`: the least is 2"),
        (["-d", "--cpu-time", "0s"], "`0s` is not a value for `cpu_time`"),
    ] {
        exec(&lab, &id, &flags, "touch /tmp/begun").refused(125, &[words]);
    }
    let run = exec(&lab, &id, &["--memory", "1M"], "touch /tmp/begun");
    assert!(run.status != Some(0) && run.stderr.contains("--detach"), "{run:#?}");
    assert_eq!(exec(&lab, &id, &[], "ls /tmp").succeeded().stdout, "");
    assert_eq!(lab.brig(["task", "jobs", "--json", &id]).stdout.trim(), "[]");
    end(&lab, &id);
}
