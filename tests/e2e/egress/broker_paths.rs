//! Requests whose target or headers make a careless server take another path than the one that the rules of a secret compared.

use super::broker::VALUE;
use super::world::World;
use crate::support::{Lab, Run};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// A server that resolves dots after a fragment and in escapes, takes `SCRIPT_NAME` and `X-Forwarded-Prefix` off the path as WSGI servers do, takes
/// `X-Original-URL` and `X-Rewrite-URL` for the path as IIS and some frameworks do, and answers ranges.
const CARELESS: &str = r#"
import http.server, posixpath, sys, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        for name in ['X-Original-URL', 'X-Rewrite-URL']:
            self.path = self.headers.get(name, self.path)
        path = self.path.split('?')[0].lower().replace('%u002e', '.').replace('%c0%ae', '.')
        for name in ['SCRIPT_NAME', 'X-Forwarded-Prefix']:
            path = path.removeprefix(self.headers.get(name, ''))
        body = ('at %s with %s\n' % (posixpath.normpath(urllib.parse.unquote(path)), self.headers.get('Authorization', '-'))).encode()
        first = int(self.headers.get('Range', 'bytes=0-').removeprefix('bytes=').split('-')[0])
        self.send_response(206 if first else 200); self.send_header('Content-Length', str(len(body) - first)); self.end_headers()
        self.wfile.write(body[first:])
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"#;

/// That server behind one that speaks TLS, HTTP/1.1 and HTTP/2.
fn world(lab: &Lab) -> Option<World> {
    let front = |address: Ipv4Addr, directory: &Path| {
        format!(
            "server {{ listen {address}:8444 ssl http2; server_name a.test; ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem; \
             merge_slashes off; underscores_in_headers on; location / {{ proxy_pass http://{address}:8446; }} }}\n",
            directory.display()
        )
    };
    let mut world = World::with_sites(lab, front)?;
    let program = lab.file("careless.py", CARELESS);
    let mut command = Command::new("/usr/bin/python3");
    world.also(command.arg(program).args([&world.address.to_string(), "8446"]), 8446);
    Some(world)
}

/// Runs an attack by HTTP/1.1 and by HTTP/2 with paths in force: it is answered so, and without this guard the server takes `/admin`.
#[track_caller]
fn renamed(arguments: &str, guard: &str, answer: &str) {
    let lab = Lab::new();
    let Some(world) = world(&lab) else { return };
    let task = || world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "paths = [\"/v1/messages*\"]\n");
    for version in ["http1.1", "http2"] {
        let script = format!(
            "curl -sS --{version} --path-as-is -w '%{{http_version}} %{{http_code}}\\n' {arguments} | rev | rev"
        );
        let run = task().sh(&script);
        assert!(run.stderr.contains(answer) && !run.stderr.contains("at /admin"), "{version}: {run:#?}");
        let weak = task().weakened(guard).sh(&script);
        assert!(weak.stderr.contains("at /admin with Bearer ****"), "{version} proves nothing: {weak:#?}");
    }
}

#[test]
fn a_fragment_in_the_target_is_refused() {
    renamed(
        "--request-target '/v1/messages#/../../../admin' https://a.test:8444/",
        "broker-target,broker-unclear",
        "passes no fragment",
    );
}

#[test]
fn escapes_that_decode_in_two_ways_are_refused() {
    renamed(
        "'https://a.test:8444/v1/messages/%c0%ae%c0%ae/%c0%ae%c0%ae/admin'",
        "broker-target,broker-unclear",
        "escapes",
    );
}

#[test]
fn headers_that_rename_the_path_do_not_arrive() {
    for header in ["SCRIPT_NAME", "X-Forwarded-Prefix"] {
        let attack = format!("-H '{header}: /v1/messages' https://a.test:8444/v1/messages/admin");
        renamed(&attack, "broker-rename", "at /v1/messages/admin with Bearer ****");
    }
    for header in ["X-Original-URL", "x-rewrite-url"] {
        let attack = format!("-H '{header}: /admin' https://a.test:8444/v1/messages/one");
        renamed(&attack, "broker-rename", "at /v1/messages/one with Bearer ****");
    }
}

#[test]
fn a_range_of_an_answer_is_refused() {
    let lab = Lab::new();
    let Some(world) = world(&lab) else { return };
    let task = || world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "");
    // Backwards, so that the redactor of the output does not see it either.
    let ask = |version: &str| format!("curl -sS --{version} -r 28- https://a.test:8444/x | rev");
    let leaks = |run: &Run| run.stderr.contains("elpats-yrettab-esr");
    for version in ["http1.1", "http2"] {
        let run = task().sh(&ask(version));
        assert!(run.stderr.contains("tuo `egnaR` evael") && !leaks(&run), "{version}: {run:#?}");
        let weak = task().weakened("broker-range").sh(&ask(version));
        assert!(leaks(&weak), "{version} proves nothing: {weak:#?}");
    }
}
