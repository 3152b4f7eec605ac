//! Sandboxes that wait for commands: as a service, stopped, drained.

use crate::support::{Lab, Started, eventually, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

#[track_caller]
fn begin(lab: &Lab, arguments: &[&str], script: &str) -> String {
    let run = lab.task().plain().args(["--detach"]).args(arguments).sh(script);
    run.succeeded().stdout.trim().to_owned()
}

#[track_caller]
fn receipt(lab: &Lab, id: &str) -> Value {
    lab.brig(["task", "wait", "--json", id]).receipt()
}

fn start_exec(lab: &Lab, id: &str, script: &str) -> Started {
    let started = lab.start(["task", "exec", id, "--", "sh", "-c", script]);
    started.wait_for("ready");
    started
}

#[test]
fn a_held_sandbox_that_is_stopped_has_succeeded() {
    let Some(lab) = Lab::root() else { return };
    let id = lab.brig(["task", "run", "-d", "--hold"]).succeeded().stdout.trim().to_owned();
    assert_eq!(lab.brig(["task", "exec", &id, "--", "echo", "in"]).succeeded().stdout, "in\n");
    lab.brig(["task", "stop", &id]).succeeded();
    let stopped = lab.brig(["task", "wait", "--json", &id]);
    stopped.ended_as("stopped", 0);
    assert_eq!(stopped.receipt()["retryable"], false);
    let started = lab.brig(["task", "run", "-d", "--hold", "--json"]).succeeded().stdout.clone();
    let started: Value = serde_json::from_str(&started).unwrap();
    assert_eq!(started["store"], lab.store().to_str().unwrap());
    let id = started["id"].as_str().unwrap();
    lab.brig(["task", "kill", id]).succeeded();
    lab.brig(["task", "wait", "--json", id]).ended_as("cancelled", 130);
}

#[test]
fn a_held_sandbox_in_the_foreground_reports_to_the_service_manager() {
    let Some(lab) = Lab::root() else { return };
    let path = lab.path().join("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let receive = || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let words =
        ["--store", lab.store().to_str().unwrap(), "--hold", "--name", "service", "--wall", "none"].map(str::to_owned);
    let task = lab.task().plain().args(words).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000");
    let mut command = task.command();
    let mut service = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(receive(), "READY=1");
    let inside = lab.brig(["task", "exec", "service", "--", "sh", "-c", "env | grep -c NOTIFY; ls /run"]);
    assert!(inside.stdout.starts_with("0\n") && !inside.stdout.contains("notify"), "{inside:#?}");
    assert_eq!((receive(), receive()), ("WATCHDOG=1".to_owned(), "WATCHDOG=1".to_owned()));
    kill_process(Pid::from_raw(service.id() as i32).unwrap(), Signal::TERM).unwrap();
    let mut last = receive();
    while last == "WATCHDOG=1" {
        last = receive();
    }
    assert_eq!(last, "STOPPING=1");
    assert_eq!(service.wait().unwrap().code(), Some(0));
    assert_eq!(receipt(&lab, "service")["outcome"], "stopped");
    // A task with a command, or in the background, sends nothing.
    manager.set_nonblocking(true).unwrap();
    lab.task().env("NOTIFY_SOCKET", &path).sh("true").ended_as("succeeded", 0);
    let task = lab.task().plain().args(["-d", "--hold", "--name", "detached"]).env("NOTIFY_SOCKET", &path);
    assert!(task.command().stdout(Stdio::null()).status().unwrap().success());
    lab.brig(["task", "stop", "detached"]).succeeded();
    assert!(manager.recv(&mut [0; 64]).is_err(), "no message");
}

#[test]
fn a_held_sandbox_has_its_time_limits_and_idle_is_the_wall_time_if_it_is_not_given() {
    let Some(lab) = Lab::root() else { return };
    let id = lab.brig(["task", "run", "-d", "--hold", "--idle", "1s"]).succeeded().stdout.trim().to_owned();
    assert_eq!(receipt(&lab, &id)["outcome"], "idle_timeout");
    let id = lab.brig(["task", "run", "-d", "--hold", "--keep"]).succeeded().stdout.trim().to_owned();
    lab.brig(["task", "stop", &id]).succeeded();
    assert_eq!(receipt(&lab, &id)["limits"]["idle"], 7200.0);
    let id = lab.brig(["task", "fork", &id, "--wall", "10h"]).succeeded().stdout.trim().to_owned();
    lab.brig(["task", "stop", &id]).succeeded();
    assert_eq!(receipt(&lab, &id)["limits"]["idle"], 36000.0);
}

#[test]
fn an_ordinary_user_cannot_hold_without_a_command() {
    if is_root() {
        return crate::support::skip("needs an ordinary user");
    }
    let lab = Lab::new();
    lab.brig(["task", "run", "--hold"]).refused(125, &["--hold is root's"]);
}

#[test]
fn a_drain_lets_what_entered_end_and_refuses_new_processes() {
    let lab = Lab::new();
    let id = begin(&lab, &[], "sleep 300");
    eventually("its command runs", || lab.brig(["task", "top", &id]).stdout.contains("  sleep 300"));
    let command = start_exec(&lab, &id, "echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done");
    let words = ["task", "exec", "-d", &id, "--", "sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.05; done; sleep 0.5"];
    lab.brig(words).succeeded();
    let drain = lab.start(["task", "stop", "--drain", "1m", &id]);
    eventually("new processes are refused", || lab.brig(["task", "exec", &id, "--", "true"]).status == Some(125));
    lab.brig(["task", "exec", &id, "--", "true"]).refused(125, &["being drained"]);
    lab.brig(["task", "exec", "-d", &id, "--", "true"]).refused(125, &["being drained"]);
    // Files may be copied meanwhile.
    let go = lab.file("go", "");
    assert_eq!(lab.brig(["task", "cp", go.to_str().unwrap(), &format!("{id}:/tmp/")]).status, Some(0));
    assert_eq!(command.finish().succeeded().stdout, "ready\ndone\n");
    drain.finish().succeeded();
    let receipt = receipt(&lab, &id);
    assert_eq!((&receipt["outcome"], &receipt["unfinished"]), (&json!("cancelled"), &Value::Null), "{receipt:#}");
    let jobs: Value = serde_json::from_str(&lab.brig(["task", "jobs", "--json", &id]).succeeded().stdout).unwrap();
    assert_eq!((&jobs[0]["state"], &jobs[0]["exit_status"]), (&json!("exited"), &json!(0)));
}

#[test]
fn a_drain_that_is_over_names_what_did_not_end() {
    let lab = Lab::new();
    let id = begin(&lab, &[], "sleep 300");
    eventually("its command runs", || lab.brig(["task", "top", &id]).stdout.contains("  sleep 300"));
    lab.brig(["task", "exec", "-d", &id, "--", "sleep", "400"]).succeeded();
    let command = start_exec(&lab, &id, "echo ready; sleep 500");
    lab.brig(["task", "stop", "--drain", "500ms", "--grace", "200ms", &id]).succeeded();
    assert_eq!(command.finish().status, Some(137));
    let receipt = receipt(&lab, &id);
    assert_eq!(receipt["outcome"], "cancelled");
    assert_eq!(receipt["unfinished"], json!(["sh -c echo ready; sleep 500", "j1: sleep 400"]), "{receipt:#}");
    assert!(lab.brig(["task", "show", &id]).succeeded().stdout.contains("j1: sleep 400"));
    // Without anything that entered, a drain ends at once; a second stop does not wait for it.
    let id = begin(&lab, &[], "sleep 300");
    let ended = lab.brig(["task", "stop", "--drain", "1h", &id]);
    assert!(ended.succeeded().elapsed < Duration::from_secs(20));
    let id = begin(&lab, &[], "sleep 300");
    eventually("its command runs", || lab.brig(["task", "top", &id]).stdout.contains("  sleep 300"));
    lab.brig(["task", "exec", "-d", &id, "--", "sleep", "400"]).succeeded();
    lab.brig(["task", "stop", "--no-wait", "--drain", "1h", &id]).succeeded();
    lab.brig(["task", "stop", &id]).succeeded();
}
