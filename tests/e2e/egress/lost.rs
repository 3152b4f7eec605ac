//! An open network that ends before its sandbox: the outcome reports it, nothing hangs, nothing remains.

use super::open::{Ground, PUBLIC, pastas};
use crate::support::{Lab, Task, eventually};
use rustix::process::{Signal, kill_process};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// A command that has bytes on their way all the time.
const LOAD: &str = "echo begun; while curl -sS --limit-rate 100k -o /dev/null http://93.184.216.34/big; do :; done; echo cut; sleep 60";

/// Runs it, takes its network away, and asserts how it ends.
#[track_caller]
fn loses_its_network(ground: &Ground, task: Task<'_>, words: &str, take: impl FnOnce()) {
    let task = task.args(["--grace", "1s"]).start_sh(LOAD);
    task.wait_for("begun");
    std::thread::sleep(Duration::from_millis(300));
    take();
    let taken = Instant::now();
    let run = task.finish();
    assert!(taken.elapsed() < Duration::from_secs(10), "{run:#?}");
    run.ended_as("lost", 125);
    let error = &run.receipt()["error"];
    assert_eq!(error["code"], "E-NETWORK", "{run:#?}");
    assert!(error["message"].as_str().unwrap().contains(words), "{run:#?}");
    assert_eq!(run.receipt()["retryable"], true, "{run:#?}");
    eventually("nothing is left", || ground.traces().is_empty() && pastas(ground).is_empty());
}

#[test]
fn a_sandbox_whose_pasta_is_killed_loses_its_network_and_the_outcome_says_so() {
    let lab = Lab::new();
    let Some(ground) = Ground::with_pasta(&lab) else { return };
    let served = ground.host.sh(&format!("curl -sS -m 10 http://{PUBLIC}/"));
    assert_eq!(served, "served\n");
    loses_its_network(&ground, ground.task(&lab, "pasta"), "`pasta`", || {
        let all = pastas(&ground);
        assert!(!all.is_empty(), "no pasta runs");
        all.into_iter().for_each(|pid| kill_process(pid, Signal::KILL).unwrap());
    });
}

#[test]
fn a_sandbox_whose_device_is_removed_loses_its_network_and_the_outcome_says_so() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    loses_its_network(&ground, ground.task(&lab, "veth"), "removed on the host", || {
        ground.host.sh("ip link del $(ip -o link | grep -o 'brig[0-9]*' | head -n 1)");
    });
}

#[test]
fn a_pasta_that_ends_or_hangs_as_it_starts_is_refused_or_the_network_is_lost() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let check = |script: &str, outcome: &str, words: &str| {
        let program = lab.file("bin/pasta", format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        // Root looks for pasta in fixed folders, not in the caller's PATH.
        let run =
            ground.task(&lab, "pasta").weakened("pasta-path").args(["--grace", "1s"]).env("PATH", path).sh("sleep 30");
        assert_eq!(run.outcome(), outcome, "{run:#?}");
        assert!(run.receipt()["error"]["message"].as_str().unwrap().contains(words), "{run:#?}");
        assert!(run.elapsed < Duration::from_secs(20), "{run:#?}");
    };
    check("echo no good >&2; exit 1", "start_failed", "no good");
    check("kill -9 $$", "start_failed", "it printed nothing");
    check("exec sleep 60", "start_failed", "no network after 10 s");
    check("exit 0", "lost", "has ended");
}
