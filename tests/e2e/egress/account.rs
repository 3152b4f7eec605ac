//! The account against a command that hides, floods or forges it.

use super::world::World;
use super::{refusals, rows};
use crate::support::{Lab, Started, Task, is_root, skip};
use rustix::process::Signal;

#[test]
fn a_refused_request_with_a_long_path_takes_no_other_line_out_of_the_account() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = world.brokered(&lab, "a-value-of-some-length", "paths = [\"/v1/*\"]");
    // Account rows come ten times a second; so each step has a different word.
    let script = "head -c 3000000 /dev/zero >up; long=$(head -c 17000 /dev/zero | tr '\\0' x); get() { curl -sS -o /dev/null --http1.1 \"$@\"; sleep 0.3; }; \
                  get https://a.test:8443/v1/ok; for i in 1 2 3 4; do get https://a.test:8443/$i$long; done; \
                  for i in 1 2 3 4; do get http://z$i.test/ 2>/dev/null; done; get --data-binary @up http://b.test:8080/; \
                  for i in 1 2 3 4; do get http://z$i.test/ 2>/dev/null; done; get https://a.test:8443/v1/ok";
    let run = task.args(["--allow", "b.test:8080"]).sh(script);
    run.ended_as("succeeded", 0);
    let uploads = rows(&run, "b.test");
    assert_eq!(uploads.len(), 1, "{run:#?}");
    assert!(uploads[0]["sent_bytes"].as_u64().unwrap() >= 3_000_000 && uploads[0]["count"] == 1, "{run:#?}");
    for number in 1..=4 {
        assert_eq!(rows(&run, &format!("z{number}.test")).len(), 1, "{run:#?}");
    }
    let why = refusals(&run, "a.test");
    assert_eq!(why.matches("…").count(), 4, "{run:#?}");
    assert!(run.receipt()["egress"]["faults"].is_null(), "{run:#?}");
}

#[test]
fn a_secret_in_what_is_refused_is_not_in_the_receipt() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let value = "correct-horse-battery-staple";
    let other = lab.file("other", value);
    let rules = format!("paths = [\"/v1/*\"]\n[secrets.OTHER]\nsource = \"file:{}\"\n", other.display());
    let task = world.brokered(&lab, "a-value-of-some-length", &rules);
    let script = "s=$(cat /run/secrets/OTHER); curl -sS https://a.test:8443/x/$s; curl -sS -H \"Host: $s.test\" http://b.test:8080/; \
                  curl -sSk --connect-to $s.test:8080:b.test:8080 https://$s.test:8080/; mkdir -p .githooks; \
                  echo '#!/bin/sh' >.githooks/$s; chmod +x .githooks/$s; echo text >$s.txt; true";
    let run = task.args(["--allow", "b.test:8080", "--artifact", "**"]).sh(script);
    let receipt = run.receipt().to_string();
    assert!(!receipt.contains(value), "{receipt}");
    assert!(refusals(&run, "a.test").contains("not for /x/[redacted:OTHER]"), "{run:#?}");
    assert_eq!(refusals(&run, "b.test").matches("[redacted:OTHER].test").count(), 2, "{run:#?}");
    assert!(receipt.contains(r#""path":"[redacted:OTHER].txt","why":"secret""#), "{receipt}");
}

#[test]
fn statuses_of_a_brokered_hosts_answers_are_counted() {
    let lab = Lab::new();
    let site = |address: std::net::Ipv4Addr, directory: &std::path::Path| {
        format!(
            "server {{ listen {address}:8444 ssl; server_name a.test; ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem; \
             location / {{ return 401; }} location /good {{ return 200 good; }} }}\n",
            directory.display()
        )
    };
    let Some(world) = World::with_sites(&lab, site) else { return };
    let task = world.brokered_at(&lab, "a-value-of-some-length", "[\"a.test:8443\", \"a.test:8444\"]", "");
    let script = "for path in a b good; do curl -sS -o /dev/null https://a.test:8444/$path; done; \
                  curl -sS -o /dev/null http://b.test:8080/";
    let run = task.args(["--allow", "b.test:8080"]).sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(rows(&run, "a.test")[0]["statuses"], serde_json::json!({"200": 1, "401": 2}), "{run:#?}");
    assert!(rows(&run, "b.test")[0]["statuses"].is_null(), "nothing is read there: {run:#?}");
    let shown = lab.brig(["task", "show", &lab.ids()[0]]);
    assert!(shown.stdout.contains("answered 200 × 1 401 × 2"), "{shown:#?}");
}

#[test]
fn a_refused_private_address_names_the_rule_that_would_allow_it() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let rule = format!("{}:8080", world.address);
    let run = world.bare(&lab).args(["--allow", "a.test:8080"]).sh("curl -sS http://a.test:8080/");
    let why = format!("`a.test` leads to {}: loopback; the rule `{rule}` would allow it", world.address);
    assert_eq!(refusals(&run, "a.test"), why);
    let run = world.bare(&lab).args(["--allow", "a.test:8080", "--allow", &rule]).sh("curl -sS http://a.test:8080/");
    assert!(run.stderr.contains("served by a.test"), "{run:#?}");
}

/// The task's gateway: the supervisor's child with a seccomp filter that is not the sandbox's first process.
fn gateway_of(task: &Started) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", task.pid())).unwrap();
    let status = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = children
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .find(|pid: &i32| *pid != task.pid_1() && status(pid).contains("Seccomp:\t2"));
    found.unwrap_or_else(|| panic!("no gateway among {children}"))
}

#[test]
fn stats_of_a_running_task_count_the_bytes_and_connections_of_its_gateway() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("big", &vec![b'x'; 2 << 20]);
    let script = "for i in 1 2; do curl -sS -o /dev/null http://b.test:8080/big; done; \
                  curl -sS -o /dev/null http://other.test/; echo done; sleep 60";
    let task = world.task(&lab).args(["--allow", "b.test:8080"]).start_sh(script);
    task.wait_for("done\n");
    let id = lab.ids().pop().unwrap();
    let mut stats = serde_json::Value::Null;
    // The gateway reports ten times a second.
    crate::support::eventually("the bytes are counted", || {
        let text = lab.brig(["task", "stats", "--json", &id]).succeeded().stdout.clone();
        stats = serde_json::from_str(&text).unwrap();
        stats[0]["network_received_bytes"].as_u64().unwrap() >= 4 << 20
    });
    let number = |name: &str| stats[0][name].as_u64().unwrap_or_else(|| panic!("{name}: {stats:#}"));
    assert!((100..1 << 20).contains(&number("network_sent_bytes")), "{stats:#}");
    assert_eq!(number("network_connections"), 2, "{stats:#}");
    task.signal(Signal::TERM);
    let receipt = task.finish().receipt();
    assert_eq!(receipt["usage"]["network_received_bytes"], stats[0]["network_received_bytes"], "{receipt:#}");
}

#[test]
fn the_gateways_processor_time_is_the_tasks() {
    if !is_root() {
        return skip("needs root for a cgroup");
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("big", &vec![b'x'; 64 << 20]); // ten milliseconds are the least that the kernel tells
    // The gateway needs longer than the client to read a brokered host's TLS.
    let used = |task: Task<'_>| {
        let task = task.start_sh("curl -sS -o /dev/null https://a.test:8443/big; echo done; sleep 60");
        task.wait_for("done\n");
        let gateway = gateway_of(&task);
        let stat = std::fs::read_to_string(format!("/proc/{gateway}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        let own = fields.map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum::<f64>();
        let groups = std::fs::read_to_string(format!("/proc/{gateway}/cgroup")).unwrap();
        let id = lab.ids().pop().unwrap();
        let stats = lab.brig(["task", "stats", "--json", &id]).succeeded().stdout.clone();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        let counted = stats[0]["cpu_seconds"].as_f64().unwrap_or_else(|| panic!("{stats:#}"));
        task.signal(Signal::TERM);
        let receipt = task.finish().receipt();
        let total = receipt["usage"]["cpu_user_seconds"].as_f64().unwrap()
            + receipt["usage"]["cpu_system_seconds"].as_f64().unwrap();
        assert!(total >= counted, "{total} {counted}");
        let is_in = groups.lines().any(|line| line.split(':').nth(1) == Some("cpu") && line.contains(&id));
        assert!(is_in || !groups.contains(":cpu:"), "{groups}");
        (own, counted)
    };
    let (own, counted) = used(world.brokered(&lab, "a-value-of-some-length", ""));
    assert!(own > 0.0 && counted > own, "{counted} s of which the gateway alone used {own}");
}
