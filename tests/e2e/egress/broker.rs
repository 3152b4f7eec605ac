//! Secrets that the gateway adds: they reach the server, work with unmodified clients, and are nowhere in the sandbox.

use super::world::World;
use super::{refusals, rows};
use crate::support::memory::{files_with, inside, memory_with};
use crate::support::{Lab, eventually, has_program, is_root, processes_of, skip};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

pub const VALUE: &str = "correct-horse-battery-staple";

#[test]
fn the_server_gets_the_secret_and_no_memory_environment_or_file_of_the_sandbox_has_it() {
    if !is_root() {
        return skip("needs root to read the memory of other users");
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    // From the caller's environment, which the sandbox's first process inherits: the hardest case.
    let ca = lab.directory("work").join("ca.pem");
    let profile = format!(
        "[secrets.API_KEY]\nsource = \"env:MY_KEY\"\nhost = \"a.test:8443\"\nca = \"{0}\"\n\
         [secrets.TOKEN]\nsource = \"cmd:printf %s-%s the-value of-a-command\"\nhost = \"a.test:8443\"\nheader = \"X-Api-Key: {{}}\"\nca = \"{0}\"\n",
        ca.display()
    );
    let profile = lab.file("p.toml", profile).display().to_string();
    let near = format!("{}:8443", world.address);
    let script = "curl -sS https://a.test:8443/first; python3 -c 'import os, time, urllib.request as u; u.urlopen(\"https://a.test:8443/second\").read(); \
                  mark = \"this-is-a-mark-\" + \"in-memory\"; open(\"/tmp/mark\", \"w\").write(mark); print(os.environ[\"API_KEY\"], flush=True); time.sleep(60)'";
    let task = world.bare(&lab).env("MY_KEY", VALUE).args(["--profile", &profile, "--allow", &near]).start_sh(script);
    task.wait_for("held-by-the-broker");
    let base64 = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5";
    let words: [&[u8]; 4] =
        [VALUE.as_bytes(), b"the-value-of-a-command", base64.as_bytes(), b"this-is-a-mark-in-memory"];
    let pids = inside(&task);
    assert!(pids.len() >= 3, "{pids:?}");
    let in_memory: BTreeSet<_> = pids.iter().flat_map(|&pid| memory_with(pid, &words)).collect();
    let in_files = files_with(pids[1], &words);
    assert!(in_memory.iter().any(|(index, _)| *index == 3), "the search finds nothing at all: {in_memory:?}");
    assert!(in_files.iter().any(|(index, _)| *index == 3), "the search finds nothing at all: {in_files:?}");
    let of_secrets: Vec<_> = in_memory.iter().chain(&in_files).filter(|(index, _)| *index != 3).collect();
    assert!(of_secrets.is_empty(), "{of_secrets:#?}");
    // The same search finds it in the gateway.
    let outside: BTreeSet<_> = processes_of(&lab).iter().flat_map(|(pid, _)| memory_with(*pid, &words)).collect();
    assert!(outside.iter().any(|(index, _)| *index == 0), "{outside:?}");
    let gateway = outside.iter().filter_map(|(_, place)| place.split(':').next()?.parse::<i32>().ok());
    let status = gateway.map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap());
    let confined = |status: &String| {
        ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
            .iter()
            .all(|line| status.contains(line))
    };
    assert!(status.into_iter().any(|status| confined(&status)), "no process without power has the secret: {outside:?}");
    let heard = world.heard();
    for path in ["first", "second"] {
        let line = format!("a.test GET /{path} <Bearer {VALUE}> <the-value-of-a-command>");
        assert!(heard.contains(&line), "{heard}");
    }
    task.signal(rustix::process::Signal::TERM);
    let run = task.finish();
    let receipt = run.receipt();
    assert_eq!(receipt["secrets"][0]["exposure"], "broker", "{receipt:#}");
    assert!(rows(&run, "a.test")[0]["rule"].as_str().unwrap().contains("API_KEY TOKEN"), "{receipt:#}");
    assert!(!receipt.to_string().contains(VALUE));
}

#[test]
fn an_ordinary_request_gets_the_header_in_the_place_of_the_sandboxs_own() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.brokered(&lab, VALUE, "").sh(
        "set -e; curl -sS -H \"Authorization: Bearer $API_KEY\" https://a.test:8443/x; env | grep -c SSL_CERT_FILE",
    );
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("served by a.test HTTP/1.1"), "{run:#?}");
    assert!(world.heard().contains(&format!("a.test GET /x <Bearer {VALUE}> <->")), "{}", world.heard());
}

#[test]
fn methods_and_paths_that_a_secret_is_not_for_are_refused_with_the_rule() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let rules = "methods = [\"GET\"]\npaths = [\"/v1/*\", \"/models\"]\n";
    let script = "ask() { curl -sS -o out -w '%{http_code} ' --path-as-is \"$@\"; cat out; }; ask https://a.test:8443/v1/x; ask -X DELETE https://a.test:8443/v1/x; \
                  ask https://a.test:8443/admin; ask https://a.test:8443/v1/../admin; ask https://a.test:8443/v1/%2e%2e/admin; ask https://a.test:8443/v1//admin";
    let run = world.brokered(&lab, VALUE, rules).sh(script);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert!(lines[0].starts_with("200 served by"), "{run:#?}");
    assert_eq!(lines[1], "403 brig: `API_KEY` is for GET, not for DELETE", "{run:#?}");
    assert_eq!(lines[2], "403 brig: `API_KEY` is for /v1/* /models, not for /admin", "{run:#?}");
    assert!(lines[3..6].iter().all(|line| line.starts_with("403 brig: `API_KEY` is for some paths")), "{run:#?}");
    assert_eq!(world.heard().lines().count(), 1, "{}", world.heard());
    assert!(refusals(&run, "a.test").contains("not for DELETE"), "{run:#?}");
}

#[test]
fn other_hosts_are_passed_on_as_they_are() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let issuer = |host: &str| {
        format!(
            "echo | openssl s_client -connect {host}:8443 -servername {host} 2>/dev/null | openssl x509 -noout -issuer -ext subjectAltName"
        )
    };
    let run = world.brokered(&lab, VALUE, "").args(["--allow", "b.test:8443"]).sh(&format!(
        "{}; {}; curl -sS --cacert ca.pem --http2 https://b.test:8443/; curl -sS https://b.test:8443/",
        issuer("a.test"),
        issuer("b.test")
    ));
    assert!(run.stderr.contains("CN = brig sandbox") || run.stderr.contains("CN=brig sandbox"), "{run:#?}");
    assert!(run.stderr.contains("authority.test"), "{run:#?}");
    assert!(run.stderr.contains("served by b.test HTTP/2.0"), "{run:#?}");
    // The sandbox's own authority gives no access to others: it does not trust theirs.
    assert!(
        run.stderr.contains("certificate problem") || run.stderr.contains("unable to get local issuer"),
        "{run:#?}"
    );
    assert!(world.heard().contains("b.test GET / <-> <->"), "{}", world.heard());
}

#[test]
fn a_server_whose_certificate_is_not_trusted_gets_nothing() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let token = lab.file("token", VALUE);
    let profile = format!("[secrets.API_KEY]\nsource = \"file:{}\"\nhost = \"a.test:8443\"\n", token.display());
    let profile = lab.file("p.toml", profile).display().to_string();
    let near = format!("{}:8443", world.address);
    let task = || world.bare(&lab).args(["--profile", &profile, "--allow", &near]);
    let script = "curl -sS -w ' %{http_code}' https://a.test:8443/x";
    let run = task().sh(script);
    assert!(run.stderr.contains("502") && run.stderr.contains("invalid peer certificate: UnknownIssuer"), "{run:#?}");
    assert!(refusals(&run, "a.test").contains("UnknownIssuer"), "{run:#?}");
    assert_eq!(world.heard(), "");
    let weak = task().weakened("broker-upstream").sh(script);
    assert!(world.heard().contains(VALUE), "the attack proves nothing: {weak:#?}");
}

/// Runs a script with the secret in force, and asserts its output and that the server received the secret at `/mark`.
#[track_caller]
fn works(script: &str, words: &str) {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.brokered(&lab, VALUE, "").sh(script);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains(words), "{run:#?}");
    let line = format!("a.test GET /mark <Bearer {VALUE}>");
    assert!(world.heard().contains(&line), "{}\n{run:#?}", world.heard());
}

#[test]
fn curl_wget_and_openssl_trust_the_authority_without_being_told() {
    works("curl -sS https://a.test:8443/mark", "served by a.test");
    works("env -u SSL_CERT_FILE curl -sS https://a.test:8443/mark", "served by a.test");
    if has_program("wget") {
        works("env -i wget -qO- https://a.test:8443/mark", "served by a.test");
    }
    let ask = "printf 'GET /mark HTTP/1.1\\r\\nHost: a.test:8443\\r\\nConnection: close\\r\\n\\r\\n' | \
               env -u SSL_CERT_FILE openssl s_client -quiet -verify_return_error -connect a.test:8443 -servername a.test 2>/dev/null";
    works(ask, "served by a.test");
}

#[test]
fn python_trusts_it_and_so_do_requests() {
    if !has_program("python3") {
        return;
    }
    works(
        "env -u SSL_CERT_FILE python3 -c 'import urllib.request as u; print(u.urlopen(\"https://a.test:8443/mark\").read())'",
        "served by a.test",
    );
    let requests = Command::new("/usr/bin/python3").args(["-c", "import requests"]).stderr(Stdio::null()).status();
    if !requests.is_ok_and(|status| status.success()) {
        return skip("needs python3-requests");
    }
    works(
        "/usr/bin/python3 -c 'import requests; print(requests.get(\"https://a.test:8443/mark\").text)'",
        "served by a.test",
    );
}

#[test]
fn node_trusts_it() {
    if has_program("node") {
        let script = "fetch('https://a.test:8443/mark').then(r => r.text()).then(t => process.stdout.write(t))";
        works(&format!("node -e \"{script}\""), "served by a.test");
    }
}

#[test]
fn java_trusts_it() {
    if !has_program("java") || !Path::new("/etc/ssl/certs/java/cacerts").exists() {
        return skip("needs java with Debian's certificates");
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let source = "import java.net.URI; import java.net.http.*;\npublic class Ask { public static void main(String[] a) throws Exception {\n\
                  var r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(\"https://a.test:8443/mark\")).build(), HttpResponse.BodyHandlers.ofString());\n\
                  System.out.print(r.statusCode() + \" \" + r.body()); } }\n";
    let task = world.brokered(&lab, VALUE, "");
    lab.file("work/Ask.java", source);
    let run = task.sh("java Ask.java");
    assert!(run.stderr.contains("200 served by a.test"), "{run:#?}");
    assert!(world.heard().contains(&format!("a.test GET /mark <Bearer {VALUE}>")), "{}", world.heard());
}

#[test]
fn git_clones_with_a_credential_that_it_does_not_have() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let repository = world.files().join("app.git").display().to_string();
    let source = lab.directory("source").display().to_string();
    let script = format!(
        "set -e; export GIT_CONFIG_GLOBAL=/dev/null; git init -q {source}; git -C {source} -c user.name=x -c user.email=x@y commit -q --allow-empty -m first; \
         git clone -q --bare {source} {repository}; git -C {repository} update-server-info"
    );
    assert!(Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap().success());
    let run = world
        .brokered(&lab, VALUE, "basic = \"x-access-token\"\n")
        .sh("git clone -q https://a.test:8443/app.git one && git -C one log --format=%s; cat one/.git/config");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("first"), "{run:#?}");
    // x-access-token:correct-horse-battery-staple
    assert!(
        world.heard().contains("<Basic eC1hY2Nlc3MtdG9rZW46Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==>"),
        "{}",
        world.heard()
    );
}

/// A TLS server for what nginx cannot serve from files: events one by one, and a websocket.
const SERVER: &str = r#"
import base64, hashlib, socketserver, ssl, sys, time
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            line = self.rfile.readline()
            if not line: return
            method, path, _ = line.decode().split()
            headers = {}
            while (line := self.rfile.readline().strip()):
                name, _, value = line.decode().partition(':'); headers[name.lower()] = value.strip()
            body = b''
            if headers.get('transfer-encoding') == 'chunked':
                while (size := int(self.rfile.readline(), 16)):
                    body += self.rfile.read(size); self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(headers.get('content-length', 0)))
            who = headers.get('authorization', '-').encode()
            good = b'yes' if who == b'Bearer correct-horse-battery-staple' else b'no'
            if path == '/events':
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n')
                for number in range(3):
                    event = b'data: %d %s %f\n\n' % (number, good, time.time())
                    self.wfile.write(b'%x\r\n%s\r\n' % (len(event), event)); self.wfile.flush(); time.sleep(0.4)
                self.wfile.write(b'0\r\n\r\n')
            elif path == '/ws':
                key = headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
                accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
                self.wfile.write(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ' + accept + b'\r\n\r\n')
                self.wfile.write(bytes([0x81, len(good)]) + good); self.wfile.flush()
                while (head := self.rfile.read(2)) and len(head) == 2:
                    mask = self.rfile.read(4); data = self.rfile.read(head[1] & 127)
                    text = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
                    self.wfile.write(bytes([0x81, len(text)]) + text); self.wfile.flush()
                return
            else:
                answer = b'%s %s %d %s' % (method.encode(), good, len(body), hashlib.sha256(body).hexdigest().encode())
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s' % (len(answer), answer))
            self.wfile.flush()
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True; daemon_threads = True
    def get_request(self):
        client, address = super().get_request()
        client.settimeout(20)
        return context.wrap_socket(client, server_side=True, do_handshake_on_connect=False), address
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[3] + '/cert.pem', sys.argv[3] + '/key.pem')
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"#;

/// The servers with that one at port 8444.
fn world_with_events(lab: &Lab) -> Option<World> {
    let mut world = World::new(lab)?;
    if !has_program("python3") {
        return None;
    }
    let program = lab.file("server.py", SERVER);
    let (address, directory) = (world.address.to_string(), world.directory().display().to_string());
    world.also(Command::new("/usr/bin/python3").arg(program).args([&address, "8444", &directory]), 8444);
    Some(world)
}

#[test]
fn uploads_in_chunks_and_many_requests_on_one_connection_come_whole() {
    let lab = Lab::new();
    let Some(world) = world_with_events(&lab) else { return };
    let content: Vec<u8> = (0..3_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let task = world.brokered_at(&lab, VALUE, "[\"a.test:8443\", \"a.test:8444\"]", "");
    lab.file("work/big", &content);
    world.publish("big", &content);
    let script = "set -e; sha256sum <big | cut -c1-64; curl -sS -T - https://a.test:8444/up <big; echo; curl -sS --data-binary @big https://a.test:8444/up; echo; \
                  curl -sS https://a.test:8444/1 https://a.test:8444/2 https://a.test:8444/3 -w ' %{num_connects};'; curl -sS https://a.test:8443/big | cmp - big && echo same";
    let run = task.sh(script);
    run.ended_as("succeeded", 0);
    let digest = run.stderr.lines().next().unwrap();
    assert!(run.stderr.contains(&format!("PUT yes 3145728 {digest}\nPOST yes 3145728 {digest}\n")), "{run:#?}");
    assert_eq!(run.stderr.matches("GET yes 0").count(), 3, "{run:#?}");
    assert_eq!((run.stderr.matches(" 1;").count(), run.stderr.matches(" 0;").count()), (1, 2), "{run:#?}");
    assert!(run.stderr.ends_with("same\n"), "{run:#?}");
}

/// Each tiny chunk becomes two TLS records, so one write fills the gateway's buffer towards the server.
const TINY_CHUNKS: &str = r#"
import os, socket, ssl
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
sock = context.wrap_socket(socket.create_connection(('a.test', 8444)), server_hostname='a.test'); sock.settimeout(10)
head = b'POST /up HTTP/1.1\r\nHost: a.test:8444\r\nTransfer-Encoding: chunked\r\n\r\n'
sock.sendall(head + b'1\r\nx\r\n' * 2000 + b'0\r\n\r\n'); print(sock.recv(1000).decode())
"#;

#[test]
fn upload_of_tiny_chunks_does_not_stall() {
    let lab = Lab::new();
    let Some(world) = world_with_events(&lab) else { return };
    lab.file("work/tiny.py", TINY_CHUNKS);
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").sh("python3 tiny.py");
    assert!(run.stderr.contains("POST yes 2000 "), "{run:#?}");
}

#[test]
fn events_come_one_by_one_and_websockets_talk() {
    let lab = Lab::new();
    let Some(world) = world_with_events(&lab) else { return };
    let task = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "");
    let events = "import time, urllib.request as u\nfor line in u.urlopen('https://a.test:8444/events'):\n    words = line.split()\n    \
                  if words: print(words[1].decode(), words[2].decode(), 'late' if time.time() - float(words[3]) > 0.3 else 'soon')\n";
    let websocket = "import os, socket, ssl\ns = ssl.create_default_context().wrap_socket(socket.create_connection(('a.test', 8444)), server_hostname='a.test')\n\
                     s.sendall(b'GET /ws HTTP/1.1\\r\\nHost: a.test:8444\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n')\n\
                     f = s.makefile('rb')\nprint(f.readline().decode().strip())\nwhile f.readline().strip(): pass\n\
                     print(f.read(2)[1], f.read(3).decode())\n\
                     s.sendall(b'\\x81\\x85abcd' + bytes(b ^ b'abcd'[i % 4] for i, b in enumerate(b'hello')))\nprint(f.read(2)[1], f.read(5).decode())\n";
    lab.file("work/events.py", events);
    lab.file("work/websocket.py", websocket);
    let run = task.sh("python3 events.py; python3 websocket.py");
    run.ended_as("succeeded", 0);
    assert_eq!(
        run.stderr, "0 yes soon\n1 yes soon\n2 yes soon\nHTTP/1.1 101 Switching Protocols\n3 yes\n5 hello\n",
        "{run:#?}"
    );
}

#[test]
fn what_the_broker_cannot_do_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let token = lab.file("token", VALUE);
    let broken = lab.file("broken", "two\nlines-of-it\n");
    let check = |profile: &str, arguments: &[&str], words: &str| {
        let profile =
            profile.replace("TOKEN", &token.display().to_string()).replace("BROKEN", &broken.display().to_string());
        let profile = lab.file("p.toml", profile).display().to_string();
        let run = lab.task().plain().args(["--profile", &profile]).args(arguments).sh("echo ran");
        assert!(run.status == Some(125) && run.stderr.contains(words), "{words}: {run:#?}");
    };
    let head = "[secrets.K]\nsource = \"file:TOKEN\"\nexpose = \"broker\"\n";
    check(head, &[], "for which host");
    check(&format!("{head}host = \"*.a.test\"\n"), &[], "one name with one port");
    check(&format!("{head}host = \"a.test\"\nheader = \"Host: {{}}\"\n"), &[], "how a request is read");
    check(&format!("{head}host = \"a.test\"\n"), &["--network", "host"], "has no broker");
    check(&format!("{head}host = \"a.test\"\nca = \"/nowhere\"\n"), &[], "No such file");
    check("[secrets.K]\nsource = \"file:BROKEN\"\nhost = \"a.test\"\n", &[], "letters that no header can have");
    check("[secrets.K]\nsource = \"env:NO_SUCH_ONE\"\nhost = \"a.test\"\n", &[], "is not set");
    check(
        &format!("{head}host = \"a.test\"\n{}", head.replace(".K", ".L") + "host = \"a.test\"\n"),
        &[],
        "same header",
    );
    assert_eq!(lab.ids(), [] as [&str; 0]);
}

#[test]
fn a_value_that_is_replaced_outside_is_used_and_one_that_is_taken_back_is_not() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = world.brokered(&lab, VALUE, "").start_sh(
        "while curl -sS -f -o /dev/null https://a.test:8443/x; do sleep 0.1; done; curl -sS https://a.test:8443/x; sleep 30",
    );
    eventually("the value arrives", || world.heard().contains(VALUE));
    let new = lab.file("token.new", "the-next-value-of-the-token\n");
    fs::rename(new, lab.path().join("token")).unwrap();
    eventually("the new value arrives", || world.heard().contains("<Bearer the-next-value-of-the-token>"));
    let id = lab.ids().remove(0);
    lab.brig(["task", "revoke", &id, "API_KEY"]).succeeded();
    task.wait_for("the secret `API_KEY` was taken back");
    task.signal(rustix::process::Signal::TERM);
    let run = task.finish();
    assert_eq!(run.receipt()["secrets"][0]["replaced"], 1, "{run:#?}");
    assert_eq!(run.receipt()["secrets"][0]["revoked"], true, "{run:#?}");
}

#[test]
fn a_continued_task_needs_the_source_again_and_the_command_never_gets_the_value() {
    if !is_root() {
        return skip("needs root to keep a workspace");
    }
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    world.brokered(&lab, VALUE, "").args(["--keep"]).sh("curl -sS https://a.test:8443/one").ended_as("succeeded", 0);
    let id = lab.ids().remove(0);
    let again = "curl -sS https://a.test:8443/two; ls /run/secrets 2>/dev/null; echo $API_KEY";
    // An unchanged profile is read again and names the source.
    fs::remove_file(lab.path().join("broker.toml")).unwrap();
    lab.brig(["task", "resume", &id, "--", "sh", "-c", again]).refused(125, &["`API_KEY`", "no value"]);
    let source = format!("API_KEY=file:{}", lab.path().join("token").display());
    let run = lab.brig(["task", "resume", "--secret", &source, &id, "--", "sh", "-c", again]);
    run.succeeded();
    assert_eq!(run.stdout, "served by a.test HTTP/1.1\nheld-by-the-broker\n", "{run:#?}");
    assert!(world.heard().contains(&format!("a.test GET /two <Bearer {VALUE}>")), "{}", world.heard());
}
