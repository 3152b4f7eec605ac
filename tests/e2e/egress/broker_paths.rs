//! Targets or headers that make a careless server take another path than the rules of a secret compared.

use super::broker::VALUE;
use super::refusals;
use super::world::World;
use crate::support::{Lab, Run};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// A server that resolves dots after a fragment and in escapes, and answers ranges. As WSGI servers do, it strips
/// `SCRIPT_NAME` and `X-Forwarded-Prefix` off the path. As IIS and some frameworks do, it takes `X-Original-URL` and
/// `X-Rewrite-URL` for the path.
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

/// That server behind one that speaks TLS.
fn world(lab: &Lab) -> Option<World> {
    let front = |address: Ipv4Addr, directory: &Path| {
        format!(
            "server {{ listen {address}:8444 ssl; server_name a.test; ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem; \
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

/// Runs an attack with path rules: it gets this answer, and without the guard the server takes `/admin`.
#[track_caller]
fn renamed(arguments: &str, guard: &str, answer: &str) {
    let lab = Lab::new();
    let Some(world) = world(&lab) else { return };
    let task = || world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "paths = [\"/v1/messages*\"]\n");
    let script = format!("curl -sS --path-as-is -w '%{{http_code}}\\n' {arguments} | rev | rev");
    let run = task().sh(&script);
    assert!(run.stderr.contains(answer) && !run.stderr.contains("at /admin"), "{run:#?}");
    let weak = task().weakened(guard).sh(&script);
    assert!(weak.stderr.contains("at /admin with Bearer ****"), "the attack proves nothing: {weak:#?}");
}

#[test]
fn rules_hold_for_each_request_of_a_connection() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "curl -sS -w '%{http_code}\\n' https://a.test:8443/v1/a https://a.test:8443/v2/b https://a.test:8443/v1/c; \
                  curl -sS -d content https://a.test:8443/v1/d; curl -sS -H 'Host: b.test:8443' https://a.test:8443/v1/e; \
                  for header in 'X-HTTP-Method-Override: DELETE' 'x_original_url: /v2/b'; do \
                  curl -sS -H \"$header\" https://a.test:8443/v1/f; done";
    let run = world.brokered(&lab, VALUE, "paths = [\"/v1/*\"]\nmethods = [\"GET\"]\n").sh(script);
    let words = "served by a.test HTTP/1.1\n200\nbrig: `API_KEY` is for /v1/*, not for /v2/b\n403\nserved by a.test HTTP/1.1\n200\n\
                 brig: `API_KEY` is for GET, not for POST\nbrig: the request is for `b.test:8443`, the connection for `a.test:8443`\n\
                 brig: `API_KEY` is for some requests, and `x-http-method-override` could make this one another\n\
                 served by a.test HTTP/1.1\n";
    assert_eq!(run.stderr, words, "{run:#?}");
    let heard = world.heard();
    let paths: Vec<_> = heard.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(paths, ["/v1/a", "/v1/c", "/v1/f"], "{heard}");
    let refused = refusals(&run, "a.test");
    assert!(refused.contains("not for /v2/b") && refused.contains("the request is for `b.test:8443`"), "{refused}");
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
    let ask = "curl -sS -r 28- https://a.test:8444/x | rev";
    let leaks = |run: &Run| run.stderr.contains("elpats-yrettab-esr");
    let run = task().sh(ask);
    assert!(run.stderr.contains("tuo `egnaR` evael") && !leaks(&run), "{run:#?}");
    let weak = task().weakened("broker-range").sh(ask);
    assert!(leaks(&weak), "the attack proves nothing: {weak:#?}");
}
