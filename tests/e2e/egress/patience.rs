//! Time limits: every step has one, and the error names the step.

use super::world::World;
use super::{refusals, rows};
use crate::support::Lab;
use std::process::Command;
use std::time::Duration;

/// A server that reads and never answers: as many connections as its queue takes, and datagrams.
const SILENT: &str = "import socket, sys, time\n\
    at = (sys.argv[1], int(sys.argv[2])); s = socket.socket(); s.bind(at); d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.bind(at)\n\
    s.listen(int(sys.argv[3])); time.sleep(600)";

/// Requests an address and prints the seconds that it took.
const ASK: &str = "ask() { curl -sS -m 60 \"$@\"; curl_ended=$?; }; timed() { t=$(date +%s); ask \"$@\" 2>&1; echo \" after $(($(date +%s) - t)) s\"; }";

impl World {
    fn silent(&mut self, lab: &Lab, port: u16, backlog: u16) {
        let server = lab.file("silent.py", SILENT);
        let mut command = Command::new("/usr/bin/python3");
        command.arg(server).args([self.address.to_string(), port.to_string(), backlog.to_string()]);
        self.also(&mut command, port);
    }
}

#[test]
fn a_server_that_hangs_is_given_up_with_the_step_at_which_it_did() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    world.silent(&lab, 8081, 0); // the test's own connection fills the queue: the kernel drops what comes after it
    world.silent(&lab, 8445, 64);
    let near = format!("{}:8081,8445", world.address);
    let task = world.brokered_at(&lab, "a-value-of-some-length", "\"a.test:8445\"", "");
    let run = task.args(["--allow", "a.test:8081", "--allow", &near]).sh(&format!(
        "{ASK}; (timed http://a.test:8081/ >connect) & (timed https://a.test:8445/ >tls) & (timed --http1.1 https://a.test:8445/ >tls1) & \
         (t=$(date +%s); bash -c 'exec 3<>/dev/tcp/198.18.0.1/3128; cat <&3'; echo \"cut after $(($(date +%s) - t)) s\" >proxy) & \
         wait; for each in connect tls tls1 proxy; do echo $each: $(cat $each); done"
    ));
    let line = |name: &str| run.stderr.lines().find(|line| line.starts_with(&format!("{name}: "))).unwrap_or_default();
    let seconds = |name: &str| {
        let words: Vec<_> = line(name).split(' ').collect();
        words
            .iter()
            .rev()
            .nth(1)
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {run:#?}"))
    };
    assert!(line("connect").contains("the server does not answer in time"), "{run:#?}");
    for name in ["tls", "tls1"] {
        assert!(line(name).contains("the server does not finish TLS in time"), "{name}: {run:#?}");
    }
    for name in ["connect", "tls", "tls1"] {
        assert!((9..=20).contains(&seconds(name)), "{name}: {run:#?}");
    }
    assert!((29..=45).contains(&seconds("proxy")), "a client of the proxy that asks for nothing: {run:#?}");
    assert!(rows(&run, "a.test").iter().any(|row| row["port"] == 8081), "{run:#?}");
}

#[test]
fn a_resolver_that_hangs_is_given_up_and_the_name_is_told() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    world.silent(&lab, 5360, 64);
    let (resolver, near) = (format!("{}:5360", world.address), format!("{}:8080", world.address));
    let rules = ["--network", "egress", "--resolver", &resolver, "--allow", "a.test:8080", "--allow", &near];
    let run = lab.task().args(["--empty"]).args(rules).sh("curl -sS -m 60 http://a.test:8080/");
    assert!(run.stderr.contains("`a.test` does not resolve: "), "{run:#?}");
    assert!(run.elapsed < Duration::from_secs(20), "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), "`a.test` does not resolve: no server answered");
}
