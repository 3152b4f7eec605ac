//! `kill -9` at any moment: the sandbox dies with brig, and the next command removes the rest.

use crate::support::{Lab, Started, eventually, processes_of};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of kills, half of them with two tasks at once.
const ROUNDS: u32 = 200;
pub const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of kills of another test: this one, or `BRIG_KILLS` where a long run is asked for.
pub fn kills(usual: usize) -> usize {
    std::env::var("BRIG_KILLS").map_or(usual, |text| text.parse().unwrap())
}

/// xorshift64: different moments, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        end.mul_f64((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

/// A task with children in other sessions, files and output.
const SCRIPT: &str =
    "setsid sleep 60 & (sleep 60 &) ; echo x > file; head -c 100k /dev/zero > /tmp/filler; echo working; sleep 0.03";

fn start(lab: &Lab, work: &std::path::Path) -> Started {
    lab.task().args(["--dir".as_ref(), work.as_os_str()]).start_sh(SCRIPT)
}

#[test]
fn after_a_kill_at_any_of_200_moments_the_next_command_leaves_nothing() {
    let lab = Lab::new();
    let work = lab.file("work/file", "mine\n");
    let work = work.parent().unwrap();
    start(&lab, work).finish().ended_as("succeeded", 0); // the first run of a store takes longer than the others
    let began = Instant::now();
    start(&lab, work).finish().ended_as("succeeded", 0);
    // Slightly longer than a whole run, so that some end by themselves.
    let whole = began.elapsed().mul_f64(1.1);
    let mut random = Random(SEED);
    let mut kills = 0;
    while kills < ROUNDS {
        let together = if kills % 4 == 3 { 2 } else { 1 };
        let tasks: Vec<_> = (0..together).map(|_| start(&lab, work)).collect();
        for task in &tasks {
            std::thread::sleep(random.below(whole) / together);
            task.signal(Signal::KILL);
            kills += 1;
        }
        let ended: Vec<_> = tasks.into_iter().map(Started::finish).collect();
        lab.reap();
        if kills % 10 < 2 {
            lab.assert_reaped();
        }
        drop(ended);
    }
    lab.assert_reaped();
    let rows: serde_json::Value = serde_json::from_str(&lab.brig(["task", "ls", "--json"]).stdout).unwrap();
    let count = |outcome: &str| rows.as_array().unwrap().iter().filter(|row| row["outcome"] == outcome).count();
    let (lost, succeeded) = (count("lost"), count("succeeded"));
    assert!(lost > 40 && succeeded > 1, "kills at both sides of the end: {lost} lost, {succeeded} succeeded");
    assert_eq!(lost + succeeded, rows.as_array().unwrap().len(), "every task has a receipt");
    assert_eq!(std::fs::read_to_string(work.join("file")).unwrap(), "mine\n");
}

#[test]
fn the_sandbox_dies_with_brig_before_the_reaping() {
    let lab = Lab::new();
    let began = Instant::now();
    let task = lab.task().start_sh("setsid sh -c 'trap \"\" TERM HUP INT; sleep 300' & echo ready; sleep 300");
    task.wait_for("ready");
    let first = task.pid_1();
    let inside = inside(first);
    assert!(inside.len() >= 3, "{inside:?}");
    task.signal(Signal::KILL);
    let run = task.finish();
    assert_eq!(run.signal, Some(9));
    eventually("every process of the sandbox is gone", || {
        processes_of(&lab).is_empty() && inside.iter().all(|pid| !alive(*pid))
    });
    let id = lab.ids().remove(0);
    lab.reap();
    let shown = lab.brig(["task", "show", &id, "--json"]);
    let receipt: serde_json::Value = serde_json::from_str(&shown.succeeded().stdout).unwrap();
    assert_eq!(receipt["outcome"], "lost");
    assert_eq!(receipt["retryable"], true);
    assert_eq!(receipt["cleanup"]["left"], serde_json::json!([]));
    // The receipt has the known facts.
    assert_eq!((&receipt["error"]["code"], &receipt["usage"]["output_bytes"]), (&"E-LOST".into(), &6.into()));
    assert!(receipt["error"]["hint"].as_str().unwrap().contains("brig task logs"), "{receipt:#}");
    assert_ne!(receipt["guarantee"], "none", "{receipt:#}");
    let wall = receipt["usage"]["wall_seconds"].as_f64().unwrap();
    assert!(wall > 0.0 && wall < began.elapsed().as_secs_f64(), "{wall}");
    assert_eq!(lab.brig(["task", "logs", &id]).succeeded().stdout, "ready\n");
}

#[test]
fn what_a_kill_leaves_is_listed_as_a_leak_until_it_is_reaped() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(Signal::KILL);
    task.finish();
    let leaks = lab.brig(["doctor", "--leaks"]);
    assert_eq!(leaks.status, Some(1), "{leaks:#?}");
    assert!(leaks.stdout.contains(&lab.ids()[0]), "{leaks:#?}");
    lab.reap();
    assert!(lab.brig(["doctor", "--leaks"]).succeeded().stdout.is_empty());
}

#[test]
fn a_kill_while_a_repository_is_cloned_leaves_nothing() {
    let lab = Lab::new();
    let repository = lab.directory("repository");
    let script = "git init -q . && for i in $(seq 300); do echo $i > f$i; done && git add . && git -c user.name=a -c user.email=a@b commit -qm x";
    assert!(Command::new("sh").args(["-c", script]).current_dir(&repository).status().unwrap().success());
    let mut random = Random(SEED);
    for _ in 0..12 {
        let task = lab.task().args(["--repo".as_ref(), repository.as_os_str()]).start_sh("true");
        std::thread::sleep(random.below(Duration::from_millis(400)));
        task.signal(Signal::KILL);
        task.finish();
        lab.assert_reaped();
        std::fs::remove_dir_all(lab.store().join("bases")).ok();
    }
}

#[test]
fn a_new_task_reaps_what_an_old_one_left() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(Signal::KILL);
    task.finish();
    lab.task().sh("true").ended_as("succeeded", 0);
    lab.assert_clean();
    assert!(lab.brig(["task", "ls"]).stdout.contains("lost"));
}

/// Starts a task with these words, and kills brig when it has begun; gives the task's id.
fn killed(lab: &Lab, words: &[&str]) -> String {
    let before = lab.ids();
    let task = lab.task().args(words).start_sh("echo mine >file; sync; echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(Signal::KILL);
    task.finish();
    lab.ids().into_iter().find(|id| !before.contains(id)).unwrap()
}

#[test]
fn one_record_that_cannot_be_read_stops_no_other_task_and_loses_no_work() {
    let Some(lab) = Lab::root() else { return };
    let id = killed(&lab, &["--keep"]);
    let directory = lab.store().join("tasks").join(&id);
    let record = std::fs::read_to_string(directory.join("record.json")).unwrap();
    let check = |text: &str| {
        std::fs::write(directory.join("record.json"), text).unwrap();
        assert!(lab.brig(["task", "ls"]).succeeded().stderr.contains("E-RECORD"), "{text}");
        lab.task().sh("true").ended_as("succeeded", 0);
        lab.brig(["task", "prune", "--keep", "1000"]).succeeded();
        assert!(directory.join("workspace.img").exists(), "{text}");
        let leaks = lab.brig(["doctor", "--leaks"]);
        assert!(leaks.status == Some(1) && leaks.stdout.contains(&id), "{leaks:#?}");
    };
    check(&record.replacen("\"schema\": 3", "\"schema\": 9", 1));
    check("");
    std::fs::write(directory.join("record.json"), record).unwrap();
    let run = lab.brig(["task", "resume", "--json", &id, "--", "cat", "file"]);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("mine\n"), "{run:#?}");
    // The user can remove such a task.
    let other = killed(&lab, &["--keep"]);
    std::fs::write(lab.store().join("tasks").join(&other).join("record.json"), "").unwrap();
    lab.brig(["task", "rm", &other]).succeeded();
    assert!(!lab.ids().contains(&other));
    lab.assert_clean();
}

#[test]
fn a_receipt_that_is_torn_is_told_anew() {
    let lab = Lab::new();
    let id = killed(&lab, &[]);
    let receipt = lab.store().join("tasks").join(&id).join("receipt.json");
    std::fs::write(&receipt, "").unwrap(); // as a power cut leaves it
    lab.task().sh("true").ended_as("succeeded", 0);
    let shown = lab.brig(["task", "show", &id, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&shown.succeeded().stdout).unwrap();
    assert_eq!(told["outcome"], "lost");
    assert_eq!(std::fs::read(receipt.with_extension("bad")).unwrap(), b"");
    // Also without its lock's name. A task with another torn receipt can be removed.
    std::fs::write(&receipt, "").unwrap();
    assert!(lab.brig(["task", "show", &id]).succeeded().stdout.contains("lost"));
    std::fs::write(&receipt, "{").unwrap();
    assert!(lab.brig(["task", "show", &id]).stderr.contains("E-RECORD"));
    lab.brig(["task", "rm", &id]).succeeded();
}

#[test]
fn a_removal_that_was_killed_is_told_of_and_finished_by_the_next_list() {
    let lab = Lab::new();
    lab.task().sh("echo x >file").succeeded();
    let id = lab.ids().remove(0);
    let tasks = lab.store().join("tasks");
    let hidden = tasks.join(format!(".removed-{id}"));
    std::fs::rename(tasks.join(&id), &hidden).unwrap();
    let leaks = lab.brig(["doctor", "--leaks"]);
    assert!(leaks.status == Some(1) && leaks.stdout.contains(".removed-"), "{leaks:#?}");
    lab.brig(["task", "ls"]).succeeded();
    assert!(!hidden.exists());
}

#[test]
fn a_task_ended_while_its_repository_is_cloned_is_cancelled() {
    let lab = Lab::new();
    let repository = lab.directory("repository");
    let script = "git init -q . && for i in $(seq 400); do head -c 200k /dev/urandom > f$i; done && git add . && git -c user.name=a -c user.email=a@b commit -qm x";
    assert!(Command::new("sh").args(["-c", script]).current_dir(&repository).status().unwrap().success());
    let task = lab.task().args(["--repo".as_ref(), repository.as_os_str()]).start_sh("true");
    let is_git =
        |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("git"));
    eventually("git is under way", || descendants(task.pid()).into_iter().any(is_git));
    task.signal(Signal::TERM);
    task.finish().ended_as("cancelled", 130);
}

/// The host's ids of all processes in the PID namespace of `pid`.
fn inside(pid: i32) -> Vec<i32> {
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let ours = namespace(pid);
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // An ordinary user may not read the undumpable pid 1: find its descendants by their parents.
    match ours {
        Some(ours) => pids.filter(|&pid| namespace(pid).is_some_and(|each| each == ours)).collect(),
        None => descendants(pid),
    }
}

pub fn descendants(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut all = vec![pid];
    for child in children.split_whitespace() {
        all.extend(descendants(child.parse().unwrap()));
    }
    all
}

fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The letter of proc_pid_stat(5); `None` if it does not exist.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")?.1.chars().next()
}
