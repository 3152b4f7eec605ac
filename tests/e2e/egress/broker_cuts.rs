//! A secret that a server repeats, cut in the middle: by a pause, by chunks, by the end of an answer.

use super::broker::VALUE;
use super::refusals;
use super::world::World;
use crate::support::{Lab, has_program};
use std::process::Command;

/// Requests the secret with a pause after so many bytes, and ends the pause when those have come. Prints the result
/// with blanks between, so that the output's redactor does not recognise it.
const PAUSES: &str = r#"
import http.client, os, ssl
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
def ask(path): link = http.client.HTTPSConnection('a.test', 8444, context=context, timeout=30); link.request('GET', path); return link.getresponse()
for cut in [20, 24, 30, 43]:
    answer = ask('/pause?%d' % cut); told = answer.read(cut); ask('/go').read(); told += answer.read()
    print(cut, ' '.join(told.decode()), flush=True)
"#;

fn spaced(text: &str) -> String {
    text.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

/// A server that returns the request's headers in chunks of 4096 bytes, like services that buffer answers. Below `/raw`
/// it returns the path's text. Below `/pause` it waits after so many bytes until `/go` is requested.
const CHUNKS: &str = r#"
import http.server, ssl, sys, threading, urllib.parse
go = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path.startswith('/raw?'):
            self.close_connection = True
            return self.wfile.write(urllib.parse.unquote_to_bytes(self.path[5:]))
        if self.path == '/go':
            go.set(); self.send_response(200); self.send_header('Content-Length', '0'); return self.end_headers()
        if self.path.startswith('/pause?'):
            content, cut = ('you said ' + self.headers['Authorization']).encode(), int(self.path[7:])
            self.send_response(200); self.send_header('Content-Length', str(len(content))); self.end_headers(); go.clear()
            self.wfile.write(content[:cut]); self.wfile.flush(); go.wait(60); return self.wfile.write(content[cut:])
        content = ''.join('%s: %s\n' % each for each in self.headers.items()).encode()
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        for at in range(0, len(content), 4096):
            chunk = content[at:at + 4096]; self.wfile.write(b'%x\r\n' % len(chunk) + chunk + b'\r\n')
        self.wfile.write(b'0\r\n\r\n')
    do_HEAD = do_GET
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[3] + '/cert.pem', sys.argv[3] + '/key.pem')
server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True); server.serve_forever()
"#;

/// The servers with that one at port 8444.
fn world_with_chunks(lab: &Lab) -> Option<World> {
    let mut world = World::new(lab)?;
    if !has_program("python3") {
        return None;
    }
    let program = lab.file("chunks.py", CHUNKS);
    let (address, directory) = (world.address.to_string(), world.directory().display().to_string());
    world.also(Command::new("/usr/bin/python3").arg(program).args([&address, "8444", &directory]), 8444);
    Some(world)
}

#[test]
fn a_pause_within_the_secret_does_not_bring_it_out() {
    let lab = Lab::new();
    let Some(world) = world_with_chunks(&lab) else { return };
    lab.file("work/pauses.py", PAUSES);
    let task = || world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "");
    let run = task().sh("python3 pauses.py");
    let stars = |count: usize| "*".repeat(count);
    for (cut, told) in [(20, "corr".to_owned() + &stars(24)), (24, stars(28)), (30, stars(28)), (43, stars(28))] {
        let line = format!("{cut} {}", spaced(&format!("you said Bearer {told}")));
        assert!(run.stderr.contains(&line), "no `{line}`: {run:#?}");
    }
    let weak = task().weakened("broker-told").sh("python3 pauses.py");
    assert!(weak.stderr.contains(&spaced("battery-staple")), "the attack proves nothing: {weak:#?}");
}

#[test]
fn a_chunk_that_ends_within_the_secret_does_not_bring_it_out() {
    let lab = Lab::new();
    let Some(world) = world_with_chunks(&lab) else { return };
    // The last header is the secret's: padding moves the end of the first chunk to each of its bytes.
    let script = "url=https://a.test:8444/; n=$(curl -sS -H 'X-Pad: A' $url | wc -c); \
                  for cut in $(seq 0 29); do curl -sS -H \"X-Pad: $(head -c $((4097 - n + cut)) /dev/zero | tr '\\0' A)\" $url | tail -1; done | tee out | rev; \
                  grep -c '^Authorization: Bearer [*]*$' out; grep -c battery out";
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").sh(script);
    assert!(run.stderr.ends_with("\n30\n0\n"), "{run:#?}");
    let weak = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").weakened("broker-chunks").sh(script);
    let backwards: String = VALUE.chars().rev().collect();
    assert!(weak.stderr.contains(&backwards), "the attack proves nothing: {weak:#?}");
}

#[test]
fn an_answer_that_could_be_read_in_two_ways_is_not_passed_on() {
    let lab = Lab::new();
    let Some(world) = world_with_chunks(&lab) else { return };
    let ask =
        |said: &str| format!("curl -sS --http1.1 -o - -w '%{{http_code}}\\n' 'https://a.test:8444/raw?{said}' 2>&1; ");
    let ok = "HTTP/1.1%20200%20OK%0d%0a";
    let script = ask(&format!("{ok}Content-Length:%202%0d%0a%0d%0aok"))
        + &ask(&format!(
            "{ok}Content-Length:%202%0d%0aTransfer-Encoding:%20chunked%0d%0a%0d%0a2%0d%0ano%0d%0a0%0d%0a%0d%0a"
        ))
        + &ask(&format!("{ok}Transfer-Encoding:%20chunked%0d%0a%0d%0a2%0d%0athis%20and%20more"));
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").sh(&script);
    assert!(run.stderr.starts_with("ok200\nbrig: the server's answer is not as it must be: Transfer-Encoding and Content-Length together\n502\n"), "{run:#?}");
    assert!(
        run.stderr.contains("curl: (18) ") && run.stderr.ends_with("\nth200\n"),
        "the second chunk is no chunk: {run:#?}"
    );
    let refused = refusals(&run, "a.test");
    assert!(refused.contains("together") && refused.contains("a chunk does not end where it should"), "{refused}");
}
