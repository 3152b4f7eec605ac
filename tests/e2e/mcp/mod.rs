//! `brig mcp`: sandboxes as tools of a model, through a small client over pipes.

mod bounds;
mod client;
mod ends;
mod policy;
mod real;

use crate::support::Lab;
use client::{Client, server};
use serde_json::{Value, json};

/// The revisions that begin with a handshake.
const WITH_HANDSHAKE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

#[test]
fn every_revision_from_the_first_to_the_newest_is_served() {
    let lab = Lab::new();
    for version in WITH_HANDSHAKE {
        let mut client = Client::start(server(&lab, &[]));
        let result = client.initialize(version);
        assert_eq!(result["protocolVersion"], version, "{result:#}");
        assert!(result["instructions"].as_str().unwrap().contains("no network"), "{result:#}");
        assert!(result["instructions"].as_str().unwrap().contains("A sandbox ends "), "{result:#}");
        let tools = client.ask("tools/list", json!({}));
        assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 10, "{tools:#}");
        client.call("run", json!({ "command": "echo in" })).ended_as("succeeded");
    }
    // The newest revision has no handshake: each request names it.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut client = Client::start(server(&lab, &[]));
    let found = client.ask("server/discover", json!({ "_meta": meta }));
    let versions = found["result"]["supportedVersions"].to_string();
    assert!(versions.contains("2024-11-05") && versions.contains("2026-07-28"), "{found:#}");
    let call = json!({ "name": "run", "arguments": { "command": "echo in" }, "_meta": meta });
    let reply = client.ask("tools/call", call);
    assert_eq!(reply["result"]["structuredContent"]["stdout"], "in\n", "{reply:#}");
    assert_eq!(reply["result"]["resultType"], "complete", "{reply:#}");
    // A client of a revision that does not exist is offered one that does.
    let mut client = Client::start(server(&lab, &[]));
    assert_eq!(client.initialize("1999-01-01")["protocolVersion"], "2025-11-25");
}

#[test]
fn run_has_files_input_variables_and_separate_streams() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    let run = client.call(
        "run",
        json!({
            "command": "cat given; cat; echo $NAME; pwd; echo problem >&2; exit 3",
            "files": { "given": "of the file\n" }, "stdin": "of the input\n", "env": { "NAME": "of env" },
        }),
    );
    let content = run.ended_as("failed");
    assert_eq!(content["stdout"], "of the file\nof the input\nof env\n/workspace\n", "{run:#?}");
    assert_eq!((&content["stderr"], &content["exit_status"]), (&json!("problem\n"), &json!(3)), "{run:#?}");
    assert!(run.text().contains("exit status 3") && run.text().contains("stderr:\nproblem\n"), "{run:#?}");
    let run = client.call("run", json!({ "command": "echo", "args": ["$HOME", "b  c"], "directory": "/tmp" }));
    assert_eq!(run.ended_as("succeeded")["stdout"], "$HOME b  c\n");
    client.call("run", json!({ "command": "no-such-program", "args": [] })).refused("no-such-program");
    client.call("run", json!({ "command": "ls no-such-file" })).ended_as("failed");
    let run = client.call("run", json!({ "command": "cat given" }));
    assert_eq!(run.ended_as("failed")["exit_status"], 1, "each run has a fresh sandbox");
    let reply = client.ask("tools/call", json!({ "name": "dance", "arguments": {} }));
    assert!(reply["error"]["message"].as_str().unwrap().contains("unknown tool `dance`"), "{reply:#}");
}

#[test]
fn a_sandbox_is_worked_in_by_its_name() {
    let lab = Lab::new();
    let work = lab.file("work/base", "base\n");
    let folder = work.parent().unwrap().to_str().unwrap();
    let mut client = Client::new(&lab, &["--dir", folder]);
    let name = client.sandbox();
    let at = |path: &str| json!({ "sandbox": name, "path": path });
    let write = |path: &str, content: &str, more: Value| {
        let mut arguments = at(path);
        arguments["content"] = content.into();
        more.as_object().into_iter().flatten().for_each(|(name, value)| arguments[name] = value.clone());
        arguments
    };
    let read = |client: &mut Client, path: &str| client.call("read_file", at(path)).succeeded().clone();
    assert_eq!(read(&mut client, "base")["content"], "base\n");
    client.call("write_file", write("tool", "#!/bin/sh\necho made\n", json!({ "executable": true }))).succeeded();
    assert_eq!(client.exec(&name, "./tool; rm base").ended_as("succeeded")["stdout"], "made\n");
    client.call("write_file", write("data", "AP8=", json!({ "encoding": "base64" }))).succeeded();
    let data = read(&mut client, "data");
    assert_eq!((&data["content"], &data["encoding"]), (&json!("AP8="), &json!("base64")), "{data:#}");
    client.call("write_file", write("data", "?", json!({ "encoding": "base64" }))).refused("not base64");
    client.call("write_file", write("none/such", "x", json!({}))).refused("none/such");
    client.call("read_file", at("none")).refused("none");
    client.call("write_file", write("text", "äbcdef", json!({}))).succeeded();
    let part = client.call("read_file", json!({ "sandbox": name, "path": "text", "offset": 2, "max_bytes": 3 }));
    assert_eq!((&part.succeeded()["content"], &part.succeeded()["next_offset"]), (&json!("bcd"), &json!(5)));
    let list = client.call("list_files", json!({ "sandbox": name }));
    let entries = list.succeeded()["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["data", "text", "tool"], "{list:#?}");
    assert_eq!(entries[2]["size"], 20, "{list:#?}");
    let stopped = client.call("sandbox_stop", json!({ "sandbox": name }));
    let content = stopped.succeeded();
    assert_eq!(content["changes"], json!({ "added": 3, "modified": 0, "deleted": 1 }), "{stopped:#?}");
    let id = content["task"].as_str().unwrap();
    assert!(stopped.text().contains(&format!("brig task apply {id}")), "{stopped:#?}");
    client.exec(&name, "true").refused(&format!("no sandbox is named `{name}`"));
    assert!(work.exists() && std::fs::read_dir(folder).unwrap().count() == 1, "the folder was written");
    lab.brig(["task", "apply", id]).succeeded();
    assert!(!work.exists() && work.with_file_name("tool").exists());
}

#[test]
fn files_return_to_a_checkpoint_and_a_fork_goes_its_own_way() {
    let Some(lab) = Lab::root() else { return };
    // Values are in no record: the server gives them to every task that goes on from another.
    let flags = ["--keep", "--secret", "TOKEN=env:MCP_TOKEN", "-e", "WORD=of the operator"];
    let mut client = Client::of(server(&lab, &flags).env("MCP_TOKEN", "a-value-of-some-length"));
    let name = client.sandbox();
    client.exec(&name, "echo one > file").ended_as("succeeded");
    let made = client.call("checkpoint", json!({ "sandbox": name }));
    let first = made.succeeded()["checkpoint"].as_str().unwrap().to_owned();
    client.exec(&name, "echo two > file; sleep 100 & echo").ended_as("succeeded");
    client.call("checkpoint", json!({ "sandbox": name, "name": "second" })).succeeded();
    client.call("checkpoint", json!({ "sandbox": name, "name": "second" })).refused("a checkpoint `second` already");
    let checkpoint = |checkpoint: &str| json!({ "sandbox": name, "checkpoint": checkpoint });
    client.call("rollback", checkpoint("third")).refused("no checkpoint is named `third`");
    let fork = client.call("fork", checkpoint("second")).succeeded()["sandbox"].as_str().unwrap().to_owned();
    let back = client.call("rollback", checkpoint(&first));
    assert_ne!(back.succeeded()["task"], Value::Null);
    assert_eq!(client.exec(&name, "cat file").ended_as("succeeded")["stdout"], "one\n");
    let own = client.exec(&fork, "cat file /run/secrets/TOKEN; echo; echo $WORD; echo fork > file");
    assert_eq!(own.ended_as("succeeded")["stdout"], "two\n[redacted:TOKEN]\nof the operator\n");
    assert_eq!(client.exec(&name, "cat file").ended_as("succeeded")["stdout"], "one\n");
    // A checkpoint from before a rollback is still there, and so is the name of the sandbox.
    client.call("rollback", checkpoint("second")).succeeded();
    assert_eq!(client.exec(&name, "cat file").ended_as("succeeded")["stdout"], "two\n");
    let now = client.call("fork", json!({ "sandbox": name })).succeeded()["sandbox"].as_str().unwrap().to_owned();
    assert_eq!(client.exec(&now, "cat file").ended_as("succeeded")["stdout"], "two\n");
    client.call("sandbox_stop", json!({ "sandbox": fork })).succeeded();
    // A default name is a free one.
    let other = client.sandbox();
    client.call("checkpoint", json!({ "sandbox": other, "name": "c2" })).succeeded();
    for free in ["c1", "c3"] {
        let made = client.call("checkpoint", json!({ "sandbox": other }));
        assert_eq!(made.succeeded()["checkpoint"], free);
    }
    // A sandbox that is stopped while it is rolled back leaves no task.
    let running = || {
        let rows = lab.brig(["task", "ls", "--json", "--filter", "status=running"]).succeeded().stdout.clone();
        serde_json::from_str::<Value>(&rows).unwrap().as_array().unwrap().len()
    };
    let before = running();
    client.begin("rollback", json!({ "sandbox": other, "checkpoint": "c1" }));
    client.begin("sandbox_stop", json!({ "sandbox": other }));
    client.receive();
    client.receive();
    assert_eq!(running(), before - 1);
    client.close();
    assert!(client.wait().success());
    for id in lab.ids() {
        assert!(!lab.store().join("tasks").join(&id).join("checkpoints").exists(), "{id} keeps checkpoints");
        lab.brig(["task", "resume", &id, "--", "true"]).refused(125, &["go on from"]);
    }
}

#[test]
fn a_checkpoint_that_cannot_be_made_is_refused_by_name() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    let name = client.sandbox();
    client.call("checkpoint", json!({ "sandbox": name })).refused("--keep");
    client.call("fork", json!({ "sandbox": name })).refused("--keep");
    client.call("rollback", json!({ "sandbox": name, "checkpoint": "c1" })).refused("no checkpoint is named `c1`");
    assert_eq!(client.exec(&name, "echo on").ended_as("succeeded")["stdout"], "on\n");
}

#[test]
fn the_reason_of_an_end_is_told_with_its_evidence() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &["--memory", "64M", "--timeout", "20s"]);
    let run = client.call("run", json!({ "command": "tail /dev/zero" }));
    let content = run.ended_as("memory");
    assert!(content["evidence"][0].as_str().unwrap().starts_with("memory: "), "{run:#?}");
    let run = client.call("run", json!({ "command": "echo begun; sleep 100", "timeout": 0.5 }));
    assert_eq!(run.ended_as("timeout")["stdout"], "begun\n");
    let name = client.sandbox();
    client.exec(&name, "tail /dev/zero").ended_as("memory");
    client.exec(&name, "true").refused("memory");
    client.exec(&name, "true").refused(&format!("no sandbox is named `{name}`"));
    let name = client.sandbox();
    client.call("exec", json!({ "sandbox": name, "command": "sleep 100", "timeout": 0.2 })).ended_as("timeout");
    client.exec(&name, "true").ended_as("succeeded");
    client.call("exec", json!({ "sandbox": name, "command": "true", "timeout": 0 })).refused("`timeout` is 0");
}
