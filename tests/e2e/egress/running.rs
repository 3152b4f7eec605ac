//! A running network: rules added and removed, the gateway's end, many connections, published ports.

use super::world::World;
use super::{refusals, rows};
use crate::support::{Lab, Started, eventually, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The gateway of a running task: the child of brig that is not its pid 1.
#[track_caller]
pub(super) fn gateway(task: &Started) -> Pid {
    let brig = task.pid();
    let children = std::fs::read_to_string(format!("/proc/{brig}/task/{brig}/children")).unwrap();
    let pid_1 = task.pid_1();
    // The disk's maker may still be there; only the gateway has a filter.
    let is_filtered = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("Seccomp:\t2"))
    };
    let mut others = children.split_whitespace().filter_map(|word| word.parse().ok()).filter(|&pid| pid != pid_1);
    let pid = others.find(is_filtered);
    Pid::from_raw(pid.unwrap_or_else(|| panic!("no gateway among {children}"))).unwrap()
}

/// A number of a file of proc(5), in KiB.
pub(super) fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A process's own memory in KiB, without the shared pages of the program's file.
fn own_memory(status: &str) -> u64 {
    kib(status, "RssAnon:")
}

#[test]
fn the_gateway_has_no_power_and_little_memory_with_a_hundred_connections() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "import socket, time\nall = [socket.create_connection(('a.test', 8443)) for _ in range(100)]\nfor s in all: s.send(b'\\x16\\x03')\nprint('open', flush=True)\ntime.sleep(30)";
    lab.file("work/open.py", script);
    let task = world.task(&lab).start_sh("python3 open.py");
    task.wait_for("open");
    let pid = gateway(&task).as_raw_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("CapEff:"), "0000000000000000", "{status}");
    assert_eq!(field("CapPrm:"), "0000000000000000", "{status}");
    assert_eq!(field("NoNewPrivs:"), "1", "{status}");
    assert_eq!(field("Seccomp:"), "2", "{status}");
    if crate::support::is_root() {
        let uid: u32 = field("Uid:").parse().unwrap();
        assert!(uid >= 0x7000_0000, "{status}");
    }
    assert!(own_memory(&status) < 3 << 10, "{status}");
    task.signal(Signal::TERM);
    task.finish();
}

#[test]
fn no_file_is_within_the_gateways_reach_before_strangers_are() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let trace = lab.path().join("trace");
    let words =
        ["strace", "-f", "-qq", "-e", "trace=landlock_restrict_self,seccomp,execve", "-o", trace.to_str().unwrap()];
    world.task(&lab).by(words).sh("true").succeeded();
    let trace = std::fs::read_to_string(trace).unwrap();
    let calls = |pid: &str| -> Vec<&str> {
        trace
            .lines()
            .filter_map(|line| line.strip_prefix(pid))
            .map(|call| call.trim_start().split('(').next().unwrap())
            .collect()
    };
    let restricted = trace.lines().filter(|line| line.contains("landlock_restrict_self(") && line.ends_with("= 0"));
    let pids: Vec<&str> = restricted.map(|line| line.split_whitespace().next().unwrap()).collect();
    // The command executes a program afterwards; the gateway keeps its own program and filter.
    let gateways = pids.iter().filter(|pid| calls(pid) == ["landlock_restrict_self", "seccomp"]).count();
    assert_eq!((pids.len(), gateways), (2, 1), "{trace}");
}

/// Opens connections to a brokered host and keeps them after one answer each.
const OPEN: &str = r#"
import os, socket, ssl, time
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
ask = b'GET /x HTTP/1.1\r\nHost: a.test:8443\r\n\r\n'
all = []
for _ in range(100):
    sock = context.wrap_socket(socket.create_connection(('a.test', 8443)), server_hostname='a.test'); sock.sendall(ask); got = b''
    while b'served by' not in got: got += sock.recv(65536)
    all.append(sock)
print('open', flush=True); time.sleep(30)
"#;

#[test]
fn a_hundred_connections_of_the_brokers_take_little_memory_too() {
    if std::env::var_os("BRIG_BIN").is_none() {
        return skip("cargo's own build takes more than the one that is shipped: set BRIG_BIN");
    }
    if !crate::support::is_root() {
        return skip("needs root to read the memory of other users");
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    lab.file("work/open.py", OPEN);
    let task = world.brokered(&lab, "a-value-of-some-length", "").start_sh("python3 open.py");
    task.wait_for("open");
    let pid = gateway(&task).as_raw_pid();
    // When idle, it frees the memory that only work needs, also of the program's file.
    eventually("the gateway at rest takes less than 3 MiB, with its share of the program's pages", || {
        kib(&std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap(), "Pss:") < 3 << 10
    });
    task.signal(Signal::TERM);
    task.finish();
}

/// Queries the DNS by TCP for some seconds without reading. Then sends as many queries as fit at once, and counts the
/// answers.
const ASK: &str = r#"
import socket, struct, threading, time
q = struct.pack('>HHHHHH', 7, 256, 1, 0, 0, 0) + b'\x01a\x04test\x00\x00\x01\x00\x01'
q = struct.pack('>H', len(q)) + q
def ask():
    sock = socket.socket(); sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048); sock.connect(('198.18.0.1', 53)); return sock
all = [[ask(), b''] for _ in range(8)]
for sock, _ in all: sock.setblocking(False)
until = time.time() + 8
while time.time() < until:
    for each in all:
        each[1] = each[1] or q * 1000
        try: each[1] = each[1][each[0].send(each[1]):]
        except BlockingIOError: pass
    time.sleep(0.001)
print('asked', flush=True); time.sleep(3)
for sock, _ in all: sock.close()
sock = socket.create_connection(('198.18.0.1', 53))
threading.Thread(target=lambda: (sock.sendall(q * 20000), sock.shutdown(socket.SHUT_WR))).start()
time.sleep(1); answers, f = 0, sock.makefile('rb')
while (head := f.read(2)):
    f.read(struct.unpack('>H', head)[0]); answers += 1
print(answers, 'answers', flush=True)
"#;

#[test]
fn a_tcp_client_that_reads_nothing_fills_no_memory_and_one_that_reads_gets_every_answer() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    lab.file("work/ask.py", ASK);
    let task = world.task(&lab).start_sh("python3 ask.py");
    task.wait_for("asked");
    let pid = gateway(&task).as_raw_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(own_memory(&status) < 10 << 10, "{status}");
    let run = task.finish();
    assert!(run.stderr.contains("20000 answers"), "{run:#?}");
}

#[test]
fn a_sandbox_whose_gateway_is_killed_loses_its_network_and_the_outcome_says_so() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("big", &vec![7; 64 << 20]);
    let script = "echo begun; while curl -sS --limit-rate 1M -o /dev/null http://a.test:8080/big; do :; done; echo cut; sleep 60";
    let task = world.task(&lab).args(["--grace", "1s"]).start_sh(script);
    task.wait_for("begun");
    std::thread::sleep(Duration::from_millis(300));
    kill_process(gateway(&task), Signal::KILL).unwrap();
    let killed = Instant::now();
    let run = task.finish();
    assert!(killed.elapsed() < Duration::from_secs(10), "{run:#?}");
    run.ended_as("lost", 125);
    assert_eq!(run.receipt()["error"]["code"], "E-EGRESS", "{run:#?}");
}

#[test]
fn the_gateway_ends_with_its_brig_whatever_ends_that() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = world.task(&lab).start_sh("curl -sS http://a.test:8080/; sleep 60");
    task.wait_for("served by a.test");
    let gateway = gateway(&task);
    kill_process(Pid::from_raw(task.pid()).unwrap(), Signal::KILL).unwrap();
    eventually("the gateway is gone", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.as_raw_pid()));
        status.map_or(true, |status| status.contains("State:\tZ"))
    });
    task.finish();
    lab.reap();
    lab.assert_clean();
}

#[test]
fn the_account_has_rule_bytes_and_times_of_each_host_and_usage_has_the_sums() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("part", &vec![7; 100_000]);
    let get = "curl -sS -o /dev/null http://a.test:8080/part";
    let run = world.task(&lab).sh(&format!("{get}; sleep 1.1; {get}; curl -sS -m 5 http://other.test/"));
    let receipt = run.receipt();
    let all = rows(&run, "a.test");
    let row = all.iter().find(|row| row["port"] == 8080).unwrap_or_else(|| panic!("{run:#?}"));
    assert!(row["allowed"] == true && row["rule"] == "a.test:8080,8443" && row["count"] == 2, "{row}");
    assert!(row["received_bytes"].as_u64() >= Some(200_000) && row["sent_bytes"].as_u64() > Some(100), "{row}");
    // RFC 3339 in UTC sorts as text.
    let times =
        [&receipt["created"], &row["first"], &row["last"], &receipt["ended"]].map(|time| time.as_str().unwrap());
    assert!(times.is_sorted() && times[1] != times[2], "{times:?}");
    let other = rows(&run, "other.test").remove(0);
    assert!(other["allowed"] == false && other["sent_bytes"] == 0 && other["first"].is_string(), "{other}");
    for name in ["sent_bytes", "received_bytes"] {
        let rows = receipt["egress"]["rows"].as_array().unwrap();
        let sum: u64 = rows.iter().map(|row| row[name].as_u64().unwrap()).sum();
        assert_eq!(receipt["usage"][format!("network_{name}")], sum, "{run:#?}");
    }
}

#[test]
fn rules_come_and_go_while_it_runs() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let near = format!("{}:8080,8443", world.address);
    let script = "once() { curl -sS -m 5 http://a.test:8080/ && return; return 1; }; once; echo first $?; \
                  until once; do sleep 0.1; done; echo reached; while once; do sleep 0.1; done; echo gone";
    let task = world.bare(&lab).args(["--allow", &near]).start_sh(script);
    task.wait_for("first 1");
    let id = lab.ids().remove(0);
    lab.brig(["task", "allow", &id, "a.test:8080"]).succeeded();
    task.wait_for("reached");
    lab.brig(["task", "deny", &id, "a.test:8080"]).succeeded();
    let run = task.finish();
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("gone\n"), "{run:#?}"); // curl's own last words may come after it
    assert!(rows(&run, "a.test").iter().any(|row| row["allowed"] == true), "{run:#?}");
    assert!(!lab.brig(["task", "allow", &id, "a.test:8080"]).stderr.is_empty());
}

#[test]
fn every_decision_is_an_event() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.task(&lab).sh("curl -sS http://a.test:8080/; curl -sS -m 5 http://other.test/");
    assert!(run.stderr.contains("served by a.test"), "{run:#?}");
    let id = lab.ids().remove(0);
    let events = lab.brig(["task", "events", &id]).stdout;
    let egress: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["event"] == "egress")
        .collect();
    let has = |host: &str, port: serde_json::Value, allowed: bool, rule: &str| {
        let fits = |event: &serde_json::Value| {
            event["host"] == host && event["port"] == port && event["allowed"] == allowed && event["rule"] == rule
        };
        assert!(egress.iter().any(fits), "{host}: {events}");
    };
    has("a.test", 8080.into(), true, "a.test:8080,8443");
    has("other.test", serde_json::Value::Null, false, "no rule names it");
}

#[test]
fn a_port_that_no_rule_had_is_listened_at_when_one_comes() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = world.bare(&lab).start_sh("until curl -sS -m 5 http://a.test:8080/; do sleep 0.1; done");
    eventually("the task is there", || lab.ids().len() == 1);
    let id = lab.ids().remove(0);
    eventually("a rule is taken", || {
        lab.brig(["task", "allow", &id, &format!("{}:8080", world.address)]).status == Some(0)
    });
    lab.brig(["task", "allow", &id, "a.test:8080"]).succeeded();
    let run = task.finish();
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("served by a.test"), "{run:#?}");
}

#[test]
fn many_sandboxes_with_many_connections_each_get_all_their_bytes() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("part", &vec![7; 20_000]);
    lab.file("work/ready", "");
    let script = "import socket\nask = b'GET /part HTTP/1.1\\r\\nHost: a.test:8080\\r\\nConnection: close\\r\\n\\r\\n'\n\
                  all = []\nfor _ in range(100):\n    s = socket.create_connection(('a.test', 8080))\n    s.sendall(ask)\n    all.append(s)\nsum = 0\n\
                  for s in all:\n    while True:\n        got = s.recv(65536)\n        if not got: break\n        sum += got.count(b'\\x07')\n\
                  print(sum)";
    lab.file("work/many.py", script);
    let tasks: Vec<_> = (0..32).map(|_| world.task(&lab).start_sh("python3 many.py")).collect();
    for task in tasks {
        let run = task.finish();
        run.ended_as("succeeded", 0);
        assert_eq!(run.stderr, "2000000\n", "{run:#?}");
        assert_eq!(rows(&run, "a.test")[0]["count"], 100, "{run:#?}");
    }
}

#[test]
fn a_slow_reader_slows_no_other_client_and_keeps_no_bytes_in_memory() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("big", &vec![7; 64 << 20]);
    let script = "import socket, time, subprocess\ns = socket.create_connection(('a.test', 8080))\n\
                  s.sendall(b'GET /big HTTP/1.1\\r\\nHost: a.test:8080\\r\\n\\r\\n')\ntime.sleep(0.5)\n\
                  print(subprocess.run(['curl', '-sS', 'http://a.test:8080/']).returncode, 'slow', flush=True)\ntime.sleep(20)";
    lab.file("work/slow.py", script);
    let task = world.task(&lab).start_sh("python3 slow.py");
    task.wait_for("0 slow");
    let pid = gateway(&task).as_raw_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(own_memory(&status) < 3 << 10, "{status}");
    task.signal(Signal::TERM);
    task.finish();
}

#[test]
fn limits_of_rate_and_of_bytes_hold() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.publish("big", &vec![7; 2 << 20]);
    let get = "curl -sS -o /dev/null http://a.test:8080/big";
    let run = world.task(&lab).args(["--network-rate", "1M"]).sh(get);
    run.ended_as("succeeded", 0);
    assert!(run.elapsed > Duration::from_millis(1500), "{run:#?}");
    let run = world.task(&lab).args(["--network-bytes", "1M"]).sh(&format!("{get}; {get}"));
    assert_ne!(run.outcome(), "succeeded");
    for host in ["(any)", "a.test"] {
        assert_eq!(refusals(&run, host), "all bytes that may pass have passed");
    }
    assert!(run.receipt()["usage"]["network_received_bytes"].as_u64() <= Some(1 << 20), "{run:#?}");
}

#[test]
fn an_upstream_that_is_not_there_is_an_error_with_its_reason() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let near = format!("{}:80,81", world.address);
    let script = "curl -sS -m 20 http://a.test/; curl -sS -m 20 http://nowhere.test/; curl -sS -m 20 http://a.test:81/";
    let run =
        world.bare(&lab).args(["--allow", "a.test:80,81", "--allow", "nowhere.test", "--allow", &near]).sh(script);
    assert!(run.stderr.contains("brig: the server cannot be reached: Connection refused"), "{run:#?}");
    assert!(run.stderr.contains("`nowhere.test` does not resolve"), "{run:#?}");
    // A connection not yet known to be HTTP is cut when the server refuses.
    assert!(run.stderr.matches("Connection refused").count() == 2 || run.stderr.contains("curl: ("), "{run:#?}");
}

#[test]
fn a_published_port_leads_inside_with_a_gateway_and_without_any_other_network() {
    for network in ["none", "egress"] {
        let lab = Lab::new();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let publish = format!("127.0.0.1:{port}:8000");
        let arguments = ["--network", network, "--publish", &publish];
        let task = lab.task().args(arguments).start_sh("echo inside >index.html; exec python3 -m http.server 8000");
        // More connections than sockets: each is used again.
        let ask = || {
            let mut text = String::new();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
            stream.read_to_string(&mut text).ok()?;
            text.contains("inside").then_some(())
        };
        eventually("the server inside answers", || ask().is_some());
        for number in 0..200 {
            assert!(ask().is_some(), "{network}: connection {number}: {}", task.output());
        }
        let run = lab.task().args(arguments).sh("true");
        assert_eq!(run.outcome(), "start_failed", "{run:#?}");
        assert!(run.receipt()["error"]["message"].as_str().unwrap().contains("os error 98"), "{run:#?}");
        task.signal(Signal::TERM);
        task.finish();
    }
}

#[test]
fn learning_prints_what_was_wanted_as_rules() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "curl -sS -m 5 http://other.test/; curl -sS -m 5 http://a.test:8080/";
    let run = world.task(&lab).args(["--learn"]).plain().sh(script);
    assert!(run.stderr.contains("\"a.test:8080\",") && run.stderr.contains("\"other.test:80\","), "{run:#?}");
    assert!(run.stdout.contains("served by a.test"), "{run:#?}");
    let run = world.bare(&lab).args(["--learn"]).sh("curl -sS -m 5 http://a.test/");
    assert!(refusals(&run, "a.test").contains("loopback"), "learning follows no name to the host: {run:#?}");
}

#[test]
fn wrong_rules_are_refused_before_anything_is_made() {
    let lab = Lab::new();
    for (arguments, words) in [
        (&["--allow", "https://a.test"][..], "not a URL"),
        (&["--allow", "a.test", "--allow", "*.test"], "is redundant: `*.test` covers it"),
        (&["--network", "none", "--allow", "a.test"], "the network is not `egress`"),
        (&["--network", "bogus"], "unknown network `bogus`"),
        (&["--publish", "8080:80"], "127.0.0.1:8080:80"),
        (&["--network", "host", "--publish", "127.0.0.1:8080:80"], "every port is the host's already"),
    ] {
        let run = lab.brig([&["task", "run"], arguments, &["--", "true"]].concat());
        assert!(run.status == Some(125) && run.stderr.contains(words), "{arguments:?}: {run:#?}");
    }
    // A profile's errors have the file, the line and the rule.
    for (text, line, words) in [
        ("allow = [\n  \"a.test\",\n  \"b test\",\n]\n", 5, "`b test` is not a host name"),
        ("allow = [\n  \"a.test\",\n  \"*.test\",\n]\n", 4, "`a.test` beside `*.test` of line 5 says nothing"),
        (
            "allow = [\n  \"10.0.0.0/8:1-9\",\n  \"10.1.2.0/24:5\",\n]\n",
            5,
            "`10.1.2.0/24:5` beside `10.0.0.0/8:1-9` of line 4",
        ),
        (
            "allow = [\"c.org\",\n  \"a.test\"]\ndeny = [\n  \"*.test\"]\n",
            4,
            "`a.test` beside `*.test` of line 6 allows nothing",
        ),
        ("deny = [\"a.test\",\n  \"a.test\"]\n", 3, "of line 4 says nothing"),
        ("[secrets.K]\nsource = \"env:HOME\"\nexpose = \"broker\"\nhost = \"a b\"\n", 3, "`a b` is not a host name"),
    ] {
        let profile = lab.file("p.toml", format!("[network]\nmode = \"egress\"\n{text}"));
        let run = lab.brig(["task", "run", "--profile", profile.to_str().unwrap(), "--", "true"]);
        run.refused(125, &["p.toml", &format!("line {line}:"), words]);
    }
    assert!(lab.ids().is_empty());
}

#[test]
fn the_hosts_network_is_had_by_name_only() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let get = format!("curl -sS -m 5 http://{}:8080/", world.address);
    let run = lab.task().args(["--network", "host"]).sh(&get);
    assert!(run.stderr.contains("served by a.test"), "{run:#?}");
    let run = lab.task().sh(&get);
    assert!(!run.stderr.contains("served by"), "{run:#?}");
}

#[test]
fn what_was_refused_is_told_at_a_failure_and_in_the_receipt_for_people() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let near = format!("{}:8080", world.address);
    let task = world.bare(&lab).args(["--allow", "a.test:8080", "--allow", &near]).plain();
    let run = task.sh("curl -sS http://a.test:8080/ && curl -sS http://b.test:8080/");
    assert!(run.status != Some(0) && run.stderr.contains("brig: network: refused b.test "), "{run:#?}");
    let shown = lab.brig(["task", "show", &lab.ids().pop().unwrap()]).stdout;
    assert!(shown.contains("reached a.test:8080 by `a.test:8080`, ") && shown.contains("refused b.test "), "{shown}");
}

#[test]
fn a_group_of_rules_is_in_force_and_can_be_added_while_the_task_runs() {
    let lab = Lab::new();
    let run = lab.task().plain().args(["--explain", "--allow", "@pypi", "--allow", "@github"]).run(["true"]);
    for host in ["pypi.org:443", "files.pythonhosted.org:443", "github.com:22,443", "*.githubusercontent.com:443"] {
        assert!(run.stdout.contains(host), "{host}: {run:#?}");
    }
    let run = lab.task().args(["--allow", "@nmp"]).run(["true"]);
    run.refused(125, &["unknown group `@nmp`"]);
    assert!(run.stdout.contains("@npm"), "{run:#?}");
    let task = lab.task().args(["--network", "egress", "--allow", "@npm"]).start_sh("echo up; sleep 60");
    task.wait_for("up");
    let id = lab.ids().pop().unwrap();
    lab.brig(["task", "allow", &id, "@crates"]).succeeded();
    let resolve = |host: &str| lab.brig(["task", "exec", &id, "--", "getent", "hosts", host]).status;
    assert_eq!(["registry.npmjs.org", "static.crates.io", "pypi.org"].map(resolve), [Some(0), Some(0), Some(2)]);
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
}
