//! Health checks of a running sandbox.

use crate::support::{Lab, eventually, eventually_within, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A service manager's socket, and the messages that arrive there.
struct Manager(UnixDatagram);

impl Manager {
    fn new(lab: &Lab) -> Manager {
        let socket = UnixDatagram::bind(lab.path().join("notify.sock")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Manager(socket)
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.0.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Whether no message arrives for this time.
    fn is_silent_for(&self, time: Duration) -> bool {
        self.0.set_read_timeout(Some(time)).unwrap();
        let is_silent = self.0.recv(&mut [0; 256]).is_err();
        self.0.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        is_silent
    }

    fn drain(&self) {
        self.0.set_nonblocking(true).unwrap();
        while self.0.recv(&mut [0; 256]).is_ok() {}
        self.0.set_nonblocking(false).unwrap();
    }
}

/// Starts a service with a command, since an ordinary user cannot hold.
fn start(lab: &Lab, health: &[&str]) -> Child {
    let path = lab.path().join("notify.sock");
    let task = lab.task().plain().args(["--name", "service", "--health-interval", "100ms", "--idle", "1h"]);
    let task = task.args(health).env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "400000");
    let mut command = task.command_for(["sleep", "300"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn show(lab: &Lab) -> Value {
    serde_json::from_str(&lab.brig(["task", "show", "--json", "service"]).stdout).unwrap_or_default()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

#[test]
fn service_is_ready_when_its_check_passes_and_alive_while_it_passes() {
    let lab = Lab::new();
    let manager = Manager::new(&lab);
    let mut child = start(&lab, &["--health", "echo looked; test -e /tmp/up"]);
    eventually("the check fails", || show(&lab)["health"]["state"] == "starting");
    assert!(manager.is_silent_for(Duration::from_millis(700)), "a sandbox that is not healthy is not ready");
    let listed = lab.brig(["task", "ls", "--filter", "status=starting"]).succeeded().stdout.clone();
    assert!(listed.contains("running (starting)"), "{listed}");
    lab.brig(["task", "exec", "service", "--", "touch", "/tmp/up"]).succeeded();
    assert_eq!((manager.receive(), manager.receive()), ("READY=1".to_owned(), "WATCHDOG=1".to_owned()));
    let health = &show(&lab)["health"];
    assert_eq!((&health["state"], &health["exit_status"]), (&json!("healthy"), &json!(0)), "{health}");
    assert_eq!(health["output"], "looked\n");
    assert!(lab.brig(["task", "ls"]).stdout.contains("running (healthy)"));
    lab.brig(["task", "exec", "service", "--", "rm", "/tmp/up"]).succeeded();
    eventually("the check fails again", || show(&lab)["health"]["state"] == "unhealthy");
    manager.drain();
    assert!(manager.is_silent_for(Duration::from_millis(900)), "no sign of life");
    // The service manager misses the sign of life.
    signal(&child, Signal::ABORT);
    assert_eq!(manager.receive(), "STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(125));
    let ended = lab.brig(["task", "wait", "--json", "service"]);
    ended.ended_as("unhealthy", 125);
    let words = "the health check has not passed for too long: exit status 1: looked";
    assert_eq!(ended.receipt()["error"]["message"], words);
    assert_eq!(ended.receipt()["retryable"], true);
    lab.brig(["task", "exec", "service", "--", "true"]).refused(125, &["it has ended: unhealthy", words]);
}

#[test]
fn check_that_never_passes_ends_the_start() {
    let lab = Lab::new();
    for (check, words) in [
        ("echo not yet; exit 3", "has not passed within 2s: exit status 3: not yet"),
        ("sleep 300", "has not passed within 2s: it took longer than 300ms"),
        ("yes", "has not passed within 2s: it took longer than 300ms"),
        ("/nowhere/program", "has not passed within 2s: exit status 127"),
    ] {
        let started = Instant::now();
        let task = lab.task().args(["--health", check, "--health-start", "2s", "--health-timeout", "300ms"]);
        let ended = task.sh("sleep 300");
        ended.ended_as("unhealthy", 125);
        let message = ended.receipt()["error"]["message"].as_str().unwrap().to_owned();
        let is_killed_by_pipe = check == "yes" && message.contains("exit status 141: y");
        assert!(message.contains(words) || is_killed_by_pipe, "{check}: {message}");
        assert!(started.elapsed() < Duration::from_secs(30), "{check}");
    }
    lab.assert_clean();
}

#[test]
fn checks_are_no_activity_and_end_with_the_task() {
    let lab = Lab::new();
    let flags = ["--health", "echo out; sleep 0.2", "--health-interval", "50ms", "--idle", "3s"];
    lab.task().args(flags).sh("sleep 300").ended_as("idle_timeout", 124);
    let run = lab.task().plain().args(["--health", "echo out; sleep 300"]).sh("sleep 1; echo done");
    assert_eq!(run.succeeded().stdout, "done\n", "output of a check is not that of the task");
    lab.assert_clean();
}

#[test]
fn checks_rest_while_the_task_is_paused_and_show_no_secret() {
    let Some(lab) = Lab::root() else { return };
    let flags = ["--health", "cat /run/secrets/TOKEN; date +%s%N >> /tmp/checks", "--health-interval", "50ms"];
    let task = lab.task().plain().args(["-d", "--secret", "TOKEN=env:TOKEN"]).env("TOKEN", "correct-horse-battery");
    let id = task.args(flags).sh("sleep 300").succeeded().stdout.trim().to_owned();
    let count = || lab.brig(["task", "exec", &id, "--", "sh", "-c", "wc -l < /tmp/checks"]).stdout;
    eventually("it was checked", || count().trim().parse().is_ok_and(|count: u32| count > 2));
    lab.brig(["task", "pause", &id]).succeeded();
    std::thread::sleep(Duration::from_millis(500));
    lab.brig(["task", "unpause", &id]).succeeded();
    eventually("it is checked again", || count().trim().parse().is_ok_and(|count: u32| count > 5));
    let shown = lab.brig(["task", "show", &id]).succeeded().stdout.clone();
    assert!(shown.contains("healthy") && shown.contains("[redacted:TOKEN]"), "{shown}");
    let events = lab.brig(["task", "events", &id]).stdout;
    assert!(events.contains("\"healthy\"") && !events.contains("correct-horse"), "{events}");
    lab.brig(["task", "stop", &id]).succeeded();
}

#[test]
fn pause_does_not_count_against_the_start_or_a_check() {
    let Some(lab) = Lab::root() else { return };
    let check = "echo >> /tmp/checks; while [ ! -e /tmp/up ]; do sleep 0.05; done";
    let flags = ["-d", "--health", check, "--health-start", "6s", "--health-timeout", "5s"];
    let id = lab.task().plain().args(flags).sh("sleep 300").succeeded().stdout.trim().to_owned();
    let inside = |script: &str| lab.brig(["task", "exec", &id, "--", "sh", "-c", script]);
    eventually("the check runs", || inside("test -e /tmp/checks").status == Some(0));
    lab.brig(["task", "pause", &id]).succeeded();
    std::thread::sleep(Duration::from_secs(7));
    lab.brig(["task", "unpause", &id]).succeeded();
    inside("touch /tmp/up").succeeded();
    eventually("the check passes", || lab.brig(["task", "ls"]).stdout.contains("running (healthy)"));
    assert_eq!(inside("wc -l < /tmp/checks").stdout, "1\n", "the first check passes");
    lab.brig(["task", "stop", &id]).succeeded();
}

#[test]
fn health_is_checked_before_anything_starts() {
    let lab = Lab::new();
    for (flags, words) in [
        (&["--health", ""][..], "an empty health command"),
        (&["--health", "true", "--health-timeout", "0s"], "invalid value `0s` for `--health-timeout`: the time is 0"),
        (&["--health", "true", "--health-start", "soon"], "--health-start"),
        (&["--health", "true", "--health-interval", "1ns"], "`1ns` for `--health-interval`: the time is below 50ms"),
    ] {
        let run = lab.task().plain().args(flags).sh("true");
        assert_eq!(run.status, Some(125), "{run:#?}");
        assert!(run.stderr.contains(words), "{run:#?}");
    }
    assert!(lab.task().plain().args(["--health-interval", "1s"]).sh("true").stderr.contains("--health"));
    assert!(lab.ids().is_empty());
}

#[test]
fn killed_supervisor_leaves_no_check() {
    let lab = Lab::new();
    let manager = Manager::new(&lab);
    let mut child = start(&lab, &["--health", "touch /tmp/up; sleep 299", "--health-timeout", "1h"]);
    eventually("a check runs", || lab.brig(["task", "top", "service"]).stdout.contains("sleep 299"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    lab.reap();
    eventually_within(20, "the task is lost", || show(&lab)["outcome"] == "lost");
    drop(manager);
    if is_root() {
        lab.assert_clean();
    }
}
