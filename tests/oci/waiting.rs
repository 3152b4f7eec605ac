//! The container decides how long a process waits for it; these waits must not block other commands.

use crate::support::{Done, Lab, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a verb that does not wait.
const SOON: Duration = Duration::from_secs(5);

/// A running command of ours.
struct Begun(Child);

impl Begun {
    fn new(lab: &Lab, arguments: &[&str]) -> Begun {
        let mut command = lab.command(arguments);
        Begun(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn goes_on(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Its exit status; it must end soon.
    fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < SOON, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A verb on the lab's container, which must not wait.
fn at_once(lab: &Lab, arguments: &[&str]) -> Done {
    let name = lab.path().join("out");
    let mut command = lab.command(arguments);
    let mut begun = Begun(command.stdout(std::fs::File::create(&name).unwrap()).stderr(Stdio::null()).spawn().unwrap());
    let status = begun.ended().unwrap();
    assert_eq!(status, 0, "{arguments:?}");
    Done { status, out: std::fs::read_to_string(name).unwrap(), err: String::new() }
}

#[test]
fn a_container_that_stops_who_enters_is_looked_at_and_ended_all_the_same() {
    for verbs in [[&["kill", "KILL"], &["delete", "--force"]].as_slice(), &[&["delete", "--force"]]] {
        let Some(mut lab) = Lab::new() else { return };
        lab.sh("while :; do kill -STOP -1 2> /dev/null; done").start();
        // Some are faster.
        let stopped = (0..50).find_map(|_| {
            let mut entering = Begun::new(&lab, &["exec", "--detach", &lab.id, "true"]);
            let begun = Instant::now();
            while entering.goes_on() && begun.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(5));
            }
            entering.goes_on().then_some(entering)
        });
        let mut stopped = stopped.expect("nobody was stopped, which proves nothing");
        assert!(at_once(&lab, &["ps", "-f", "json", &lab.id]).out.starts_with('['));
        for verb in verbs {
            at_once(&lab, &[&verb[..1], &[&lab.id], &verb[1..]].concat());
        }
        stopped.ended();
    }
}

/// An `exec` that enters a paused container, and waits there.
fn frozen(lab: &Lab, options: &[&str]) -> Begun {
    lab.on(&["pause"]).succeeded();
    let mut entering = Begun::new(lab, &[&["exec", "--ignore-paused"], options, &[&lab.id, "sleep", "100"]].concat());
    std::thread::sleep(Duration::from_millis(500));
    assert!(entering.goes_on(), "it was not frozen, which proves nothing");
    entering
}

#[test]
fn who_waits_for_a_container_to_be_entered_is_ended_by_a_signal() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    let mut entering = frozen(&lab, &[]);
    kill_process(Pid::from_raw(entering.0.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(entering.ended(), None, "a signal ends it");
    lab.on(&["resume"]).succeeded();
    eventually("what was on its way into it has ended, too", || {
        at_once(&lab, &["ps", "-f", "json", &lab.id]).out.matches(',').count() == 0
    });
}

#[test]
fn a_paused_container_that_is_entered_is_resumed_and_ended_all_the_same() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    let mut entering = frozen(&lab, &["--detach"]);
    at_once(&lab, &["resume", &lab.id]);
    assert_eq!(entering.ended(), Some(0));
    let mut entering = frozen(&lab, &["--detach"]);
    at_once(&lab, &["kill", &lab.id, "KILL"]);
    at_once(&lab, &["delete", "--force", &lab.id]);
    assert_eq!(entering.ended(), Some(255));
}

#[test]
fn a_hook_of_the_start_may_ask_about_its_container_and_enter_it() {
    let Some(mut lab) = Lab::new() else { return };
    let said = lab.path().join("said");
    let brig = format!("{} --root {}", env!("CARGO_BIN_EXE_brig"), lab.path().join("records").display());
    let id = &lab.id;
    let line = format!(
        "exec > {} 2>&1; {brig} ps -f json {id}; {brig} exec {id} echo in; {brig} events --stats {id}; {brig} start {id}",
        said.display()
    );
    let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"], "timeout": 10});
    lab.config["hooks"] = json!({ "poststart": [hook] });
    lab.args(&["sleep", "100"]);
    lab.create().succeeded();
    // The last of the hook's commands fails, and so does the start.
    lab.on(&["start"]).failed_with("poststart");
    let said = std::fs::read_to_string(said).unwrap();
    assert!(said.starts_with('[') && said.contains("]\nin\n{\"type\":\"stats\""), "{said}");
    assert!(said.contains("cannot start an already running container"), "{said}");
}

#[test]
fn a_container_is_started_once_although_nobody_waits_for_its_start() {
    let Some(mut lab) = Lab::new() else { return };
    let hook = json!({"path": "/bin/sleep", "args": ["sleep", "2"]});
    lab.config["hooks"] = json!({ "startContainer": [hook] });
    lab.args(&["sleep", "100"]);
    lab.create().succeeded();
    let mut starting = Begun::new(&lab, &["start", &lab.id]);
    eventually("it has begun", || lab.status() == "running");
    let begun = Instant::now();
    lab.on(&["start"]).failed_with("cannot start an already running container");
    assert!(begun.elapsed() < Duration::from_secs(1) && starting.goes_on(), "it has waited");
    assert_eq!(starting.ended(), Some(0));
}
