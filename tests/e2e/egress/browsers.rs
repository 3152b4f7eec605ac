//! Browsers: their TLS hello has an encrypted part (ECH) for every server, mostly a meaningless one.

use super::broker::VALUE;
use super::refusals;
use super::world::World;
use crate::support::{Lab, Task, skip};

const CHROMIUM: &str = "/usr/lib/chromium/chromium";

/// Loads a page of `a.test` and prints it.
fn page() -> String {
    format!(
        "timeout 60 {CHROMIUM} --headless --no-sandbox --no-zygote --disable-gpu --disable-dev-shm-usage --ignore-certificate-errors \
         --user-data-dir=/tmp/chromium --dump-dom https://a.test:8443/page 2>/dev/null; true"
    )
}

fn world(lab: &Lab) -> Option<World> {
    if !std::path::Path::new(CHROMIUM).exists() {
        skip("needs chromium");
        return None;
    }
    World::new(lab)
}

#[track_caller]
fn loads(task: Task<'_>, words: &str) {
    let run = task.sh(&page());
    assert!(run.stderr.contains(words), "{run:#?}");
}

#[test]
fn chromium_loads_a_page_by_a_name_rule_and_from_a_brokered_host() {
    let lab = Lab::new();
    let Some(world) = world(&lab) else { return };
    loads(world.task(&lab), "served by a.test HTTP/2.0");
    // Where TLS ends in the gateway, it reads the inner name itself: nothing is hidden.
    loads(world.brokered(&lab, VALUE, "").args(["--ech", "refuse"]), "served by a.test HTTP/1.1");
    assert!(world.heard().contains(&format!("a.test GET /page <Bearer {VALUE}>")), "{}", world.heard());
}

#[test]
fn an_encrypted_hello_is_refused_where_the_task_says_so() {
    let lab = Lab::new();
    let Some(world) = world(&lab) else { return };
    let run = world.task(&lab).args(["--ech", "refuse"]).sh(&page());
    assert!(!run.stderr.contains("served by"), "{run:#?}");
    assert!(refusals(&run, "a.test").contains("the TLS hello has an encrypted part"), "{run:#?}");
    assert_eq!(world.heard(), "");
}

/// A hello with that part for another name in it.
const HIDDEN: &str = r#"
import socket, struct, sys
def field(width, data): return len(data).to_bytes(width, 'big') + data
def extension(kind, data): return struct.pack('>H', kind) + field(2, data)
name = field(2, b'\0' + field(2, sys.argv[1].encode()))
body = b'\x03\x03' + bytes(32) + field(1, b'') + field(2, b'\x13\x01') + b'\1\0' + field(2, extension(0, name) + extension(0xfe0d, bytes(64)))
hello = b'\1' + field(3, body)
sock = socket.create_connection(('a.test', 8443)); sock.settimeout(10)
try:
    sock.sendall(b'\x16\x03\x01' + field(2, hello)); print('answered', sock.recv(1) != b'')
except OSError: print('cut')
"#;

#[test]
fn an_encrypted_hello_that_names_another_server_openly_is_cut() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    lab.file("work/hello.py", HIDDEN);
    let task = || world.task(&lab);
    let run = task().sh("python3 hello.py b.test; python3 hello.py a.test");
    assert_eq!(run.stderr, "cut\nanswered True\n", "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), "the TLS server name is `b.test`, not `a.test`");
    let weak = task().weakened("egress-sni").sh("python3 hello.py b.test");
    assert_eq!(weak.stderr, "answered True\n", "the attack proves nothing: {weak:#?}");
}
