//! Unmodified clients reach an allowed host.

use super::broker::VALUE;
use super::world::World;
use super::{refusals, rows};
use crate::support::{Lab, has_program, skip};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const CA: &str = "/workspace/ca.pem";

/// Runs a script with `a.test` allowed, and asserts that it wrote `words`.
#[track_caller]
fn reaches(script: &str, words: &str) {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.task(&lab).sh(script);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains(words), "{run:#?}");
    assert!(rows(&run, "a.test").iter().any(|row| row["allowed"] == true && row["received_bytes"] != 0), "{run:#?}");
}

#[test]
fn curl_speaks_http_1_and_2_with_and_without_tls() {
    reaches(
        &format!(
            "set -e; curl -sS http://a.test:8080/; curl -sS --http1.1 --cacert {CA} https://a.test:8443/; \
             curl -sS --http2 --cacert {CA} https://a.test:8443/; curl -sS -6 http://a.test:8080/"
        ),
        "served by a.test HTTP/1.1\nserved by a.test HTTP/1.1\nserved by a.test HTTP/2.0\nserved by a.test HTTP/1.1\n",
    );
}

#[test]
fn wget_and_python_reach_it() {
    if has_program("wget") && has_program("python3") {
        let python = "import urllib.request, ssl; c = ssl.create_default_context(cafile='/workspace/ca.pem'); \
                      print(urllib.request.urlopen('https://a.test:8443/', context=c).read().decode(), end='')";
        reaches(
            &format!(
                "set -e; wget -qO- http://a.test:8080/; wget -qO- --ca-certificate={CA} https://a.test:8443/; python3 -c \"{python}\""
            ),
            "served by a.test HTTP/1.1\nserved by a.test HTTP/1.1\nserved by a.test HTTP/1.1\n",
        );
    }
}

#[test]
fn a_client_that_has_said_all_and_closes_its_side_still_gets_the_answer() {
    if has_program("nc") {
        let ask = "printf 'GET / HTTP/1.1\\r\\nHost: a.test:8080\\r\\nConnection: close\\r\\n\\r\\n' | nc -N -w 5 a.test 8080";
        reaches(
            &format!("set -e; for i in 1 2 3 4 5 6 7 8; do {ask} | grep -c 'served by a.test'; done | sort | uniq -c"),
            "8 1",
        );
    }
}

/// A request by HTTP/2; Node's fetch has HTTP/1.1 only.
const NODE_2: &str = "const c = require('http2').connect('https://a.test:8443'), r = c.request({ ':path': '/mark' }); \
                      r.on('data', d => process.stdout.write(d)); r.on('end', () => c.close())";

#[test]
fn nodes_fetch_reaches_it() {
    if has_program("node") {
        let script = "fetch('https://a.test:8443/').then(r => r.text()).then(t => process.stdout.write(t))";
        reaches(&format!("NODE_EXTRA_CA_CERTS={CA} node -e \"{script}\""), "served by a.test HTTP/1.1\n");
        reaches(&format!("NODE_EXTRA_CA_CERTS={CA} node -e \"{NODE_2}\""), "served by a.test HTTP/2.0\n");
    }
}

/// undici from Debian's package: its fetch, its `request`, and a pool of connections.
const UNDICI: &str = r#"NODE_PATH=/usr/share/nodejs node -e "
const { fetch, request, Pool } = require('/usr/share/nodejs/undici'), at = 'https://a.test:8443'
const tell = async answer => process.stdout.write(await answer.text())
;(async () => {
    await tell(await fetch(at + '/mark')); await tell((await request(at + '/mark')).body)
    const pool = new Pool(at, { connections: 3 })
    for (const one of await Promise.all([1, 2, 3, 4].map(n => pool.request({ path: '/mark?' + n, method: 'GET' })))) await tell(one.body)
    await pool.close()
})()"
"#;

#[test]
fn undici_reaches_it_and_trusts_the_authority_of_a_broker() {
    if !has_program("node") || !Path::new("/usr/share/nodejs/undici").exists() {
        return skip("needs node and node-undici");
    }
    let words = "served by a.test HTTP/1.1\n".repeat(6);
    reaches(&format!("export NODE_EXTRA_CA_CERTS={CA}; {UNDICI}"), &words);
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.brokered(&lab, VALUE, "").sh(UNDICI);
    assert_eq!(run.stderr, words, "{run:#?}");
    assert_eq!(world.heard().matches(&format!("<Bearer {VALUE}>")).count(), 6, "{}", world.heard());
}

/// Go's net/http: requests each argument, with HTTP/2 where it is agreed on, and then without.
const GO: &str = r#"package main
import ("crypto/tls"; "fmt"; "io"; "net/http"; "os")
func main() {
	one := &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	for _, transport := range []http.RoundTripper{http.DefaultTransport, one} {
		for _, url := range os.Args[1:] {
			answer, err := (&http.Client{Transport: transport}).Get(url)
			if err != nil { fmt.Println(err); os.Exit(1) }
			body, _ := io.ReadAll(answer.Body)
			fmt.Print(answer.Proto, " ", string(body))
		}
	}
}
"#;

#[test]
fn gos_net_http_reaches_it_and_trusts_the_authority_of_a_broker() {
    if !has_program("go") {
        return;
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let (source, program) = (lab.file("go/ask.go", GO), lab.directory("work").join("ask"));
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
    let done = go.env("GOCACHE", lab.path().join("cache")).env("GOPATH", lab.path().join("path")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let both = "HTTP/2.0 served by a.test HTTP/2.0\nHTTP/1.1 served by a.test HTTP/1.1\n";
    let run =
        world.task(&lab).sh(&format!("SSL_CERT_FILE={CA} ./ask https://a.test:8443/ && ./ask http://a.test:8080/"));
    assert!(run.stderr.starts_with(both), "{run:#?}");
    assert_eq!(run.stderr.matches("HTTP/1.1 served by a.test HTTP/1.1\n").count(), 3, "{run:#?}");
    let run = world.brokered(&lab, VALUE, "").sh("./ask https://a.test:8443/mark");
    assert_eq!(run.stderr, "HTTP/1.1 served by a.test HTTP/1.1\n".repeat(2), "{run:#?}");
    assert_eq!(world.heard().matches(&format!("a.test GET /mark <Bearer {VALUE}>")).count(), 2, "{}", world.heard());
}

#[test]
fn a_long_upload_and_a_long_download_come_whole() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let content: Vec<u8> = (0..8_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    world.publish("big", &content);
    lab.file("work/big", &content);
    let run = world.task(&lab).sh(&format!(
        "set -e; curl -sS --cacert {CA} https://a.test:8443/big | cmp - big; curl -sS http://a.test:8080/big | cmp - big; \
         curl -sS --data-binary @big -o /dev/null -w '%{{http_code}} ' http://a.test:8080/up; \
         curl -sS -T - -o /dev/null -w '%{{http_code}}' http://a.test:8080/up <big"
    ));
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr, "200 200", "{run:#?}");
    let sums = &run.receipt()["usage"];
    assert!(sums["network_received_bytes"].as_u64() > Some(16 << 20), "{run:#?}");
    // A server that has answered may not want the rest of an upload.
    assert!(sums["network_sent_bytes"].as_u64() > Some(8 << 20), "{run:#?}");
}

#[test]
fn much_content_passes_a_brokered_host_both_ways() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let content: Vec<u8> = (0..20_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    world.publish("big", &content);
    lab.file("work/big", &content);
    let run = world.brokered(&lab, VALUE, "").sh(
        "set -e; curl -sS -o a -o b -Z https://a.test:8443/big https://a.test:8443/big 2>/dev/null; cmp a big; cmp b big; \
         head -c 8000000 a | curl -sS -m 60 --data-binary @- -w '%{size_upload}\\n' https://a.test:8443/upload",
    );
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr, "served by a.test HTTP/1.1\n8000000\n", "{run:#?}");
}

#[test]
fn many_requests_of_one_connection_get_the_secret_each() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "curl -sS -o /dev/null -w '%{num_connects}\\n' 'https://a.test:8443/many?[1-50]' | sort | uniq -c";
    let run = world.brokered(&lab, VALUE, "").sh(script);
    assert_eq!(run.stderr, "     49 0\n      1 1\n", "{run:#?}");
    let heard = world.heard();
    assert_eq!(heard.matches(&format!("<Bearer {VALUE}>")).count(), 50, "{heard}");
}

#[test]
fn git_clones_over_tls_and_over_ssh() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let repository = world.files().join("app.git");
    let git = |arguments: &[&str]| {
        let done = Command::new("git").args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(done.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let (source, target) = (lab.directory("source").display().to_string(), repository.display().to_string());
    git(&["init", "-q", &source]);
    git(&["-C", &source, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty", "-m", "first"]);
    git(&["clone", "-q", "--bare", &source, &target]);
    git(&["-C", &target, "update-server-info"]);
    let clone =
        format!("git -c http.sslCAInfo={CA} clone -q https://a.test:8443/app.git one && git -C one log --format=%s");
    let run = world.task(&lab).sh(&clone);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("first"), "{run:#?}");
    if !has_program("/usr/sbin/sshd") || !has_program("ssh") {
        return;
    }
    let work = lab.directory("work");
    let keys = lab.directory("keys");
    let make = |path: &std::path::Path| {
        let done = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
        assert!(done.unwrap().success());
    };
    make(&keys.join("host"));
    make(&work.join("id"));
    std::fs::copy(work.join("id.pub"), keys.join("authorized")).unwrap();
    let settings = format!(
        "ListenAddress {}:2222\nHostKey {1}/host\nAuthorizedKeysFile {1}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n\
         PermitRootLogin yes\nLogLevel ERROR\n",
        world.address,
        keys.display()
    );
    let settings = lab.file("keys/sshd_config", settings);
    if crate::support::is_root() {
        let _ = std::fs::create_dir("/run/sshd"); // what the package's service does
    }
    world.also(Command::new("/usr/sbin/sshd").arg("-D").arg("-e").arg("-f").arg(settings), 2222);
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let near = format!("{}:2222", world.address);
    let ssh = "cp id /tmp/id; chmod 600 /tmp/id; export GIT_SSH_COMMAND='ssh -i /tmp/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'";
    let clone =
        format!("{ssh}; git clone -q ssh://{}@a.test:2222{target} two && git -C two log --format=%s", user.trim());
    let run = world.task(&lab).args(["--allow", "a.test:2222", "--allow", &near]).sh(&clone);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("first"), "{run:#?}");
}

#[test]
fn dns_answers_what_is_allowed_and_nothing_else() {
    if !has_program("dig") {
        return;
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "dig +short a.test A; dig +short a.test AAAA; dig +short +tcp A.Test A; dig a.test HTTPS | grep -c 'status: NOERROR, .*\\|ANSWER: 0'; \
                  dig +short -x $(dig +short a.test A); dig other.test | grep -o 'status: [A-Z]*'; dig a.test TXT | grep -o 'ANSWER: [0-9]*'";
    let run = world.task(&lab).sh(script);
    let expected = "198.18.1.0\nfd62:7269:6700::100\n198.18.1.0\n2\na.test.\nstatus: NXDOMAIN\nANSWER: 0\n";
    assert_eq!(run.stderr, expected, "{run:#?}");
    assert_eq!(refusals(&run, "other.test"), "no rule names it");
    assert!(
        !world.asked().contains("other.test") && !world.asked().contains("a.test"),
        "a question left: {}",
        world.asked()
    );
}

#[test]
fn a_proxy_is_there_for_clients_that_use_one() {
    reaches(
        &format!(
            "set -e; export P=198.18.0.1; curl -sS --cacert {CA} -x http://$P:3128 https://a.test:8443/; \
             curl -sS --cacert {CA} -x socks5h://$P:1080 https://a.test:8443/; curl -sS -x http://$P:3128 http://a.test:8080/; \
             curl -sS -x http://$P:3128 -o /dev/null -w '%{{http_connect}}\\n' https://a.test:9999/ || true; \
             curl -sS -x socks5h://$P:1080 https://b.test:8443/ || true"
        ),
        "served by a.test HTTP/2.0\nserved by a.test HTTP/2.0\nserved by a.test HTTP/1.1\n",
    );
}

#[test]
fn localhost_in_a_rule_is_the_hosts_loopback_of_either_family() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return skip("needs IPv6") };
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 64]).and_then(|_| client.write_all(b"from the host's loopback\n"));
        }
    });
    let run = world.bare(&lab).args(["--allow", &format!("localhost:{port}")]).sh(&format!(
        "for host in localhost 127.0.0.1 ::1; do echo x | nc -q 2 -w 5 $host {port}; done; \
         echo x | nc -q 2 -w 5 -X 5 -x 198.18.0.1:1080 localhost {port}"
    ));
    assert_eq!(run.stderr.matches("from the host's loopback\n").count(), 4, "{run:#?}");
    let refused = world.bare(&lab).plain().args(["--allow", "app.localhost:3000"]).sh("true");
    assert!(refused.status == Some(125) && refused.stderr.contains("write `localhost`"), "{refused:#?}");
}

#[test]
fn the_variables_of_certificates_name_the_hosts_where_there_is_a_network() {
    if !Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        return skip("needs ca-certificates");
    }
    let lab = Lab::new();
    let script = "echo $SSL_CERT_FILE $REQUESTS_CA_BUNDLE $NODE_EXTRA_CA_CERTS; wc -c <${SSL_CERT_FILE:-/dev/null}";
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    let length = std::fs::metadata(bundle).unwrap().len();
    let run = lab.task().args(["--network", "egress"]).sh(script);
    assert_eq!(run.stderr, format!("{bundle} {bundle}\n{length}\n"), "{run:#?}");
    assert_eq!(lab.task().sh(script).stderr, "\n0\n");
    let own = lab.task().args(["--network", "egress", "--env", "SSL_CERT_FILE=/dev/null"]).sh(script);
    assert_eq!(own.stderr, format!("/dev/null {bundle}\n0\n"), "{own:#?}");
}
