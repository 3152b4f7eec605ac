//! What a client or a command piles up has a bound.

use super::client::{Client, server};
use super::*;
use crate::support::{eventually, eventually_within, processes_of};
use rustix::process::Signal;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Resident memory of a process at most, in MiB.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn long_output_has_its_beginning_its_end_and_a_note() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &["--max-output", "1K"]);
    let run = client.call("run", json!({ "command": "seq 100000; seq 5 >&2" }));
    let content = run.ended_as("succeeded");
    let stdout = content["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("1\n2\n3\n") && stdout.ends_with("\n99999\n100000\n"), "{run:#?}");
    assert!(stdout.len() < 1200 && stdout.contains("bytes are left out here"), "{run:#?}");
    assert_eq!(content["stdout_left_out"], 588_895 - 1024, "{run:#?}");
    assert!(content["stderr"] == "1\n2\n3\n4\n5\n" && content["stderr_left_out"].is_null(), "{run:#?}");
    let name = client.sandbox();
    client.exec(&name, "head -c 3000 /dev/zero | tr '\\0' x > file; ln -s /dev/zero endless").ended_as("succeeded");
    let read = |client: &mut Client, path: &str, offset: u64| {
        client.call("read_file", json!({ "sandbox": name, "path": path, "offset": offset, "max_bytes": 1 << 30 }))
    };
    let part = read(&mut client, "file", 2900);
    assert_eq!(
        (part.succeeded()["content"].as_str().unwrap().len(), &part.succeeded()["next_offset"]),
        (100, &Value::Null)
    );
    let part = read(&mut client, "file", 0);
    assert_eq!(part.succeeded()["next_offset"], 1024, "{part:#?}");
    read(&mut client, "file", 1 << 40).refused("`offset`");
    // Refused, or a part like any other; never without an end.
    read(&mut client, "endless", 0);
    client.exec(&name, "mkdir many; cd many; seq 1500 | xargs touch").ended_as("succeeded");
    let list = client.call("list_files", json!({ "sandbox": name, "path": "many" }));
    assert_eq!(
        (list.succeeded()["entries"].as_array().unwrap().len(), &list.succeeded()["left_out"]),
        (1000, &json!(500))
    );
}

#[test]
fn a_message_that_is_too_long_is_answered_and_not_kept() {
    let lab = Lab::new();
    let flood = |client: &mut Client| {
        let content = "x".repeat(150 << 20);
        let arguments = json!({ "sandbox": "s1", "path": "f", "content": content });
        let message = json!({ "id": 7, "jsonrpc": "2.0", "method": "tools/call", "params": { "name": "write_file", "arguments": arguments } });
        client.send(&message);
        client.receive()
    };
    let mut client = Client::new(&lab, &[]);
    let reply = flood(&mut client);
    assert!(reply["id"] == 7 && reply["error"]["message"].as_str().unwrap().contains("at most"), "{reply:#}");
    client.call("run", json!({ "command": "true" })).ended_as("succeeded");
    let peak = peak_memory(client.pid());
    assert!(peak < 100, "{peak} MiB");
    let mut weak = Client::of(server(&lab, &[]).weakened("mcp-message"));
    flood(&mut weak);
    assert!(peak_memory(weak.pid()) > 150);
}

#[test]
fn an_unreadable_message_is_answered_and_an_array_is_several_messages() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    for (line, id, code) in [
        ("no JSON at all", Value::Null, -32700),
        (r#"{"jsonrpc":"2.0","id":70,"method":"tools/list","params":{"#, json!(70), -32700),
        (r#"{"jsonrpc":"2.0"}"#, Value::Null, -32600),
        (r#"{"jsonrpc":"2.0","id":71,"method":5}"#, json!(71), -32600),
        ("[]", Value::Null, -32600),
        ("[1", Value::Null, -32700),
        ("[1]", Value::Null, -32600),
    ] {
        client.write(line.as_bytes());
        let reply = client.receive();
        let found = (reply.get("id"), &reply["error"]["code"]);
        assert_eq!(found, (Some(&id), &json!(code)), "{line}: {reply:#}");
    }
    // An answer to a reply would go on for ever.
    client.write(br#"{"jsonrpc":"2.0","error":"unreadable"}"#);
    let list = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/of-nothing" });
    client.send(&json!([list(80), note, list(81)]));
    let mut ids = [client.receive(), client.receive()].map(|reply| (reply["id"].as_u64(), reply["result"].is_object()));
    ids.sort_unstable();
    assert_eq!(ids, [(Some(80), true), (Some(81), true)]);
    client.send(&Value::Array((100..200).map(list).collect()));
    assert_eq!(client.receive()["error"]["code"], -32600);
}

#[test]
fn a_client_that_does_not_read_stops_itself() {
    const COUNT: u64 = 5000;
    let lab = Lab::new();
    // The peak of the server's memory, looked at for these seconds or until it is above 60 MiB.
    let unread = |task: crate::support::Task<'_>, seconds: u64, cancels: bool| {
        let mut client = Client::of(task);
        let (sender, receiver) = std::sync::mpsc::channel();
        client.pause_reading();
        let mut input = client.take_input();
        std::thread::spawn(move || {
            use std::io::Write;
            let request = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
            let cancel =
                |id| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
            for first in (1000..1000 + COUNT).step_by(50) {
                let ids = || first..first + 50;
                let lines = ids().map(request).chain(ids().filter(|_| cancels).map(cancel));
                if lines.map(|line| writeln!(input, "{line}")).any(|written| written.is_err()) {
                    break;
                }
            }
            let _ = sender.send(input);
        });
        let end = Instant::now() + Duration::from_secs(seconds);
        while peak_memory(client.pid()) <= 60 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        let peak = peak_memory(client.pid());
        client.go_on_reading();
        let mut answered = 0;
        while answered < COUNT && !cancels {
            answered += u64::from(client.receive()["id"].as_u64().is_some_and(|id| id >= 1000));
        }
        client.return_input(receiver.recv().unwrap());
        client.call("run", json!({ "command": "true" })).ended_as("succeeded");
        peak
    };
    for cancels in [false, true] {
        let peak = unread(server(&lab, &[]), 3, cancels);
        assert!(peak <= 60, "{peak} MiB, cancels: {cancels}");
    }
    let peak = unread(server(&lab, &[]).weakened("mcp-requests"), 30, false);
    assert!(peak > 60, "{peak} MiB without the bound");
}

#[test]
fn sandboxes_and_calls_at_a_time_are_bounded() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &["--max-sandboxes", "2"]);
    let (first, second) = (client.sandbox(), client.sandbox());
    client.call("sandbox_start", json!({})).refused("2 sandboxes run already");
    client.call("run", json!({ "command": "true" })).refused("2 sandboxes run already");
    client.call("sandbox_stop", json!({ "sandbox": first })).succeeded();
    client.call("run", json!({ "command": "true" })).ended_as("succeeded");
    let name = client.sandbox();
    let begun = Instant::now();
    let ids: Vec<_> = (0..20).map(|_| client.begin("exec", json!({ "sandbox": name, "command": "sleep 2" }))).collect();
    let stop = client.begin("sandbox_stop", json!({ "sandbox": second }));
    let (stops, replies): (Vec<_>, Vec<_>) =
        (0..=ids.len()).map(|_| client.receive()).partition(|reply| reply["id"] == stop);
    assert_eq!(stops[0]["result"]["isError"], false, "a sandbox can be stopped: {stops:#?}");
    let refused = replies.iter().filter(|reply| reply["result"]["isError"] == true).count();
    assert_eq!(refused, 4, "{replies:#?}");
    assert!(replies.iter().any(|reply| reply.to_string().contains("16 calls run already")), "{replies:#?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    client.exec(&name, "true").ended_as("succeeded");
    let mut weak = Client::of(server(&lab, &["--max-sandboxes", "2"]).weakened("mcp-sandboxes"));
    assert_eq!([weak.sandbox(), weak.sandbox(), weak.sandbox()].len(), 3);
}

#[test]
fn a_start_that_is_cancelled_waits_for_no_turn() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &["--max-parallel", "1"]);
    let name = client.sandbox();
    let id = client.begin("sandbox_start", json!({}));
    eventually("the second one waits", || lab.ids().len() == 2);
    client.exec(&name, "true").ended_as("succeeded");
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
    let second = lab.ids()[1].clone();
    eventually("it has ended", || lab.store().join("tasks").join(&second).join("receipt.json").exists());
    client.exec(&name, "true").ended_as("succeeded");
    client.call("sandbox_stop", json!({ "sandbox": name })).succeeded();
    client.sandbox();
}

#[test]
fn a_start_that_is_cancelled_fetches_nothing_more() {
    let lab = Lab::new();
    // The kernel accepts connections, and no answer comes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let port = silent.local_addr().unwrap().port();
    let (image, repository) = (format!("127.0.0.1:{port}/x:1"), format!("http://127.0.0.1:{port}/x.git"));
    for flags in [["--image", &image].as_slice(), &["--repo", &repository, "--git-address", "127.0.0.1"]] {
        let new = || Client::new(&lab, &[&["--max-sandboxes", "1"], flags].concat());
        let mut client = new();
        let pid = client.pid() as i32;
        let mut connections = Vec::new();
        let mut is_connected = || silent.accept().map(|new| connections.push(new)).is_ok();
        let id = client.begin("sandbox_start", json!({}));
        eventually("it connects", &mut is_connected);
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
        eventually_within(2, "it has ended", || processes_of(&lab).iter().all(|(process, _)| *process == pid));
        while is_connected() {}
        client.begin("sandbox_start", json!({}));
        eventually("another one is not refused", &mut is_connected);
        let closed = Instant::now();
        client.close();
        client.wait();
        assert!(closed.elapsed() < Duration::from_secs(5), "{flags:?}: {:?}", closed.elapsed());
        eventually_within(2, "no process is left", || processes_of(&lab).is_empty());
        let mut client = new();
        client.begin("sandbox_start", json!({}));
        eventually("a third one connects", &mut is_connected);
        client.signal(Signal::KILL);
        client.wait();
        eventually("no process is left of a killed server", || processes_of(&lab).is_empty());
    }
}

#[test]
fn a_file_of_a_sandbox_that_stops_processes_has_a_time_limit() {
    let lab = Lab::new();
    // Landlock lets no command signal the process that reads the file.
    let mut client = Client::of(server(&lab, &["--timeout", "3s"]).weakened("landlock"));
    let name = client.sandbox();
    client.exec(&name, "echo text > file").ended_as("succeeded");
    let attack = "touch begun; while :; do kill -STOP -1; done";
    client.begin("exec", json!({ "sandbox": name, "command": attack }));
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    let read = client.call("read_file", json!({ "sandbox": name, "path": "file" }));
    assert!(begun.elapsed() < Duration::from_secs(20));
    read.refused("within the time limit");
    client.call("sandbox_stop", json!({ "sandbox": name })).succeeded();
}

#[test]
fn a_cancelled_call_ends_its_process() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    let name = client.sandbox();
    let id = client.begin("exec", json!({ "sandbox": name, "command": "touch begun; sleep 2; touch late" }));
    let has = |client: &mut Client, file: &str| {
        client.exec(&name, &format!("test -e {file}")).0["structuredContent"]["exit_status"] == 0
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !has(&mut client, "begun") {
        assert!(Instant::now() < end);
    }
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
    std::thread::sleep(Duration::from_secs(3));
    assert!(!has(&mut client, "late"));
}
