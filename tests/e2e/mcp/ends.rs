//! All sandboxes end with the client, however that ends.

use super::client::{Client, server};
use super::*;
use crate::support::{eventually, processes_of};
use rustix::process::Signal;
use std::time::Duration;

/// A session with two sandboxes, one of which runs a command, and a command in a third.
fn busy(client: &mut Client) {
    let name = client.sandbox();
    client.sandbox();
    client.begin("exec", json!({ "sandbox": name, "command": "touch begun; sleep 300" }));
    client.begin("run", json!({ "command": "sleep 300" }));
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while client.exec(&name, "test -e begun").0["structuredContent"]["exit_status"] != 0 {
        assert!(std::time::Instant::now() < end);
    }
}

#[test]
fn nothing_is_left_of_a_client_that_vanishes() {
    let lab = Lab::new();
    for signal in [None, Some(Signal::TERM), Some(Signal::INT), Some(Signal::HUP), Some(Signal::KILL)] {
        let mut client = Client::new(&lab, &[]);
        busy(&mut client);
        match signal {
            None => client.close(),
            Some(signal) => client.signal(signal),
        }
        let status = client.wait();
        assert_eq!(status.success(), signal != Some(Signal::KILL), "{signal:?}: {status:?}");
        eventually("every process has ended", || processes_of(&lab).is_empty());
        let known = lab.ids().len();
        lab.assert_clean();
        assert_eq!(lab.ids().len(), known, "{signal:?}: nothing starts late");
    }
    for id in lab.ids() {
        let receipt = lab.brig(["task", "wait", "--json", &id]).receipt();
        // A call that was cancelled has stopped its sandbox itself.
        assert!(["cancelled", "stopped"].contains(&receipt["outcome"].as_str().unwrap()), "{receipt:#}");
        assert_eq!(receipt["cleanup"]["left"], json!([]), "{receipt:#}");
    }
}

#[test]
fn a_server_that_is_killed_leaves_sandboxes_only_without_the_guard() {
    let lab = Lab::new();
    let mut client = Client::of(server(&lab, &[]).weakened("mcp-end"));
    client.sandbox();
    client.signal(Signal::KILL);
    client.wait();
    std::thread::sleep(Duration::from_secs(1));
    assert!(!processes_of(&lab).is_empty());
    lab.brig(["task", "kill", &lab.ids()[0]]).succeeded();
    lab.brig(["task", "wait", &lab.ids()[0]]);
}

#[test]
fn replies_to_the_last_requests_come_before_the_end() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    client.begin("run", json!({ "command": "echo last" }));
    client.close();
    assert_eq!(client.receive()["result"]["structuredContent"]["stdout"], "last\n");
    assert!(client.wait().success());
}

#[test]
fn records_of_ended_sandboxes_are_bounded() {
    let Some(lab) = Lab::root() else { return };
    let mut client = Client::new(&lab, &[]);
    client.call("run", json!({ "command": "touch file" })).ended_as("succeeded");
    for _ in 0..36 {
        client.call("run", json!({ "command": "true" })).ended_as("succeeded");
    }
    let ids = lab.ids();
    assert_eq!(ids.len(), 32);
    // Of 37 records the oldest stays: it alone has changes.
    lab.brig(["task", "diff", &ids[0]]).succeeded();
    let changes = lab.brig(["task", "show", "--json", &ids[0]]).succeeded().stdout.clone();
    assert_eq!(serde_json::from_str::<Value>(&changes).unwrap()["changes"]["added"], 1, "{changes}");
}

#[test]
fn calls_that_find_a_sandbox_ended_remove_no_other_record() {
    let Some(lab) = Lab::root() else { return };
    let mut client = Client::new(&lab, &[]);
    for _ in 0..18 {
        client.call("run", json!({ "command": "true" })).ended_as("succeeded");
    }
    let name = client.sandbox();
    lab.brig(["task", "kill", &lab.ids()[18]]).succeeded();
    lab.brig(["task", "wait", &lab.ids()[18]]);
    let ids: Vec<_> = (0..16).map(|_| client.begin("exec", json!({ "sandbox": name, "command": "true" }))).collect();
    ids.iter().for_each(|_| drop(client.receive()));
    assert_eq!(lab.ids().len(), 19);
}
