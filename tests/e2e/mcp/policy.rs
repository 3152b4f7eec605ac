//! What a model cannot do: widen the policy, see a secret, reach another host.

use super::client::{Client, server};
use super::*;
use crate::egress::world::World;

const VALUE: &str = "correct-horse-battery-staple";

#[test]
fn no_parameter_widens_the_policy() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &[]);
    let wishes = json!({
        "network": "host", "allow": ["example.com"], "memory": "64G", "mount": "/etc:/etc:rw", "image": "debian:12",
        "profile": "other.toml", "secret": "A=file:/etc/shadow", "user": "root", "root_inside": true, "dir": "/",
    });
    for tool in ["run", "exec", "sandbox_start", "fork"] {
        for (name, value) in wishes.as_object().unwrap() {
            let mut arguments = json!({ "command": "true", "sandbox": "s1" });
            if tool == "sandbox_start" {
                arguments = json!({});
            } else if tool == "run" {
                arguments = json!({ "command": "true" });
            } else if tool == "fork" {
                arguments = json!({ "sandbox": "s1" });
            }
            arguments[name] = value.clone();
            client.call(tool, arguments).refused(&format!("`{name}` is not a parameter of `{tool}`"));
        }
    }
    assert!(lab.ids().is_empty(), "nothing was started");
    // Flags of brig are words of the command.
    let run = client.call("run", json!({ "command": "echo", "args": ["--network=host", "--", "--allow", "x.test"] }));
    assert_eq!(run.ended_as("succeeded")["stdout"], "--network=host -- --allow x.test\n");
    let run = client.call("run", json!({ "command": "grep -c : /proc/net/dev", "env": { "BRIG_STORE": "/" } }));
    assert_eq!(run.ended_as("succeeded")["stdout"], "1\n", "the loopback device alone");
    client.call("run", json!({ "command": "true", "env": { "A=B": "c" } })).refused("not a variable");
    let mut weak = Client::of(server(&lab, &[]).weakened("mcp-parameters"));
    weak.call("run", json!({ "command": "true", "network": "host" })).ended_as("succeeded");
}

#[test]
fn time_of_a_command_is_at_most_that_of_the_policy() {
    let lab = Lab::new();
    let mut client = Client::new(&lab, &["--timeout", "1s"]);
    for arguments in [json!({ "command": "sleep 30" }), json!({ "command": "sleep 30", "timeout": 1000 })] {
        let run = client.call("run", arguments);
        assert!(run.ended_as("timeout")["seconds"].as_f64().unwrap() < 10.0, "{run:#?}");
    }
}

#[test]
fn a_refused_host_comes_with_what_would_allow_it() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let (resolver, near) = (format!("{}:5353", world.address), format!("{}:8080,8443", world.address));
    let flags = ["--resolver", &resolver, "--allow", "a.test:8080", "--allow", &near];
    let mut client = Client::new(&lab, &flags);
    let run = client.call("run", json!({ "command": "curl -sS http://a.test:8080/; curl -sS http://b.test:8080/" }));
    let content = run.ended_as("failed");
    assert!(content["stdout"].as_str().unwrap().contains("served by a.test"), "{run:#?}");
    let row = &content["refused_hosts"][0];
    assert_eq!(row["host"], "b.test", "{run:#?}");
    assert!(row["remedy"].as_str().unwrap().contains("`brig mcp --allow b.test"), "{run:#?}");
    assert!(run.text().contains("refused: b.test"), "{run:#?}");
    let name = client.sandbox();
    // A person follows the remedies for the name and for its port, and the sandbox that runs reaches the host.
    for _ in 0..2 {
        let run = client.exec(&name, "curl -sS http://b.test:8080/");
        let remedy = run.ended_as("failed")["refused_hosts"][0]["remedy"].as_str().unwrap();
        let words: Vec<_> = remedy.split('`').nth(1).unwrap().split(' ').skip(1).collect();
        assert_eq!(words[..2], ["task", "allow"], "{run:#?}");
        lab.brig(&words).succeeded();
    }
    let run = client.exec(&name, "curl -sS http://b.test:8080/");
    assert!(run.ended_as("succeeded")["stdout"].as_str().unwrap().contains("served by b.test"), "{run:#?}");
}

#[test]
fn a_secret_is_in_no_result() {
    let lab = Lab::new();
    let show = "cat /run/secrets/TOKEN; cat /run/secrets/TOKEN >&2; base64 /run/secrets/TOKEN; touch $(cat /run/secrets/TOKEN).txt";
    let results = |server: crate::support::Task<'_>| {
        let mut client = Client::of(server.env("MCP_TOKEN", VALUE));
        let name = client.sandbox();
        let exec = client.exec(&name, show);
        exec.ended_as("succeeded");
        let read = client.call("read_file", json!({ "sandbox": name, "path": "/run/secrets/TOKEN" }));
        let parts: Vec<_> = (0..VALUE.len())
            .map(|offset| {
                let part = json!({ "sandbox": name, "path": "/run/secrets/TOKEN", "offset": offset, "max_bytes": 1 });
                client.call("read_file", part).succeeded()["content"].as_str().unwrap().to_owned()
            })
            .collect();
        let list = client.call("list_files", json!({ "sandbox": name }));
        let run = client.call("run", json!({ "command": show }));
        format!("{exec:?} {read:?} {} {list:?} {run:?}", parts.concat())
    };
    let flags = ["--secret", "TOKEN=env:MCP_TOKEN"];
    let shown = results(server(&lab, &flags));
    assert!(!shown.contains(VALUE) && !shown.contains("Y29ycmVjdC1ob3JzZ"), "{shown}");
    assert!(shown.matches("[redacted:TOKEN]").count() >= 6, "{shown}");
    let shown = results(server(&lab, &flags).weakened("mcp-redaction"));
    assert!(shown.contains(VALUE), "{shown}");
}

#[test]
fn a_policy_that_is_wrong_is_refused_before_the_session() {
    let lab = Lab::new();
    let refused = |flags: &[&str], words: &str| {
        let run = lab.brig(["mcp"].iter().chain(flags));
        assert!(run.status == Some(125) && run.stdout.is_empty() && run.stderr.contains(words), "{run:#?}");
    };
    refused(&["--profile", "/nowhere.toml"], "/nowhere.toml");
    refused(&["--memory", "foo"], "--memory");
    refused(&["--allow", "a b"], "--allow");
    refused(&["--dir", "/nowhere"], "/nowhere");
    refused(&["--name", "one"], "--name");
    refused(&["--max-output", "1"], "--max-output");
    refused(&["--max-sandboxes", "0"], "--max-sandboxes");
    refused(&["--timeout", "0s"], "--timeout");
    assert!(lab.ids().is_empty());
    let run = lab.brig(["mcp"]);
    assert!(run.status == Some(0) && run.stdout.is_empty(), "a client that says nothing: {run:#?}");
}
