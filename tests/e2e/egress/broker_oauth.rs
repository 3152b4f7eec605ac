//! Tokens that a server renews: one supervisor of the sandboxes that use them asks.

use super::world::World;
use crate::support::{Lab, Started, Task, eventually, skip};
use rustix::process::Signal;
use std::fs;
use std::process::Command;

/// A token server: each refresh token is valid once, and every request is a line of a log.
const SERVER: &str = r#"
import http.server, json, ssl, sys, threading, time, urllib.parse
address, port, directory, seconds, log = sys.argv[1:]
count, lock = [0], threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_POST(self):
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers['content-length'])).decode()))
        time.sleep(0.3)
        with lock:
            good = form.get('grant_type') == 'refresh_token' and form.get('client_id') == 'brig' and form.get('refresh_token') == 'refresh-%d' % count[0]
            if good: count[0] += 1
            answer = {'access_token': 'access-token-number-%d' % count[0], 'token_type': 'Bearer', 'expires_in': int(seconds), 'refresh_token': 'refresh-%d' % count[0]}
        open(log, 'a').write('good\n' if good else 'bad %r\n' % form)
        body = json.dumps(answer if good else {'error': 'invalid_grant'}).encode()
        self.send_response(200 if good else 400); self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(directory + '/cert.pem', directory + '/key.pem')
server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
"#;

struct Tokens {
    world: World,
    log: std::path::PathBuf,
    file: std::path::PathBuf,
    profile: String,
    ca: std::path::PathBuf,
}

/// The server, whose tokens are good for so many seconds, and a file with a refresh token for it.
fn tokens(lab: &Lab, seconds: u32) -> Option<Tokens> {
    let mut world = World::new(lab)?;
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skip("needs python3");
        return None;
    }
    let (program, log) = (lab.file("tokens.py", SERVER), lab.path().join("asked"));
    let (address, directory) = (world.address.to_string(), world.directory().display().to_string());
    let mut server = Command::new("/usr/bin/python3");
    server.arg(program).args([&address, "8444", &directory, &seconds.to_string()]).arg(&log);
    world.also(&mut server, 8444);
    let token = format!(
        "{{\"token_endpoint\": \"https://{address}:8444/token\", \"client_id\": \"brig\", \"refresh_token\": \"refresh-0\", \"mine\": 1}}"
    );
    let file = lab.file("token.json", token);
    let ca = lab.directory("work").join("ca.pem");
    let profile = format!(
        "[secrets.API_KEY]\nsource = \"oauth:{}\"\nexpose = \"broker\"\nhost = \"a.test:8443\"\n",
        file.display()
    );
    let profile = lab.file("p.toml", profile).display().to_string();
    Some(Tokens { world, log, file, profile, ca })
}

impl Tokens {
    fn task<'lab>(&self, lab: &'lab Lab) -> Task<'lab> {
        let near = format!("{}:8443", self.world.address);
        self.world.bare(lab).env("SSL_CERT_FILE", &self.ca).args(["--profile", &self.profile, "--allow", &near])
    }

    fn asked(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

#[test]
fn one_of_many_sandboxes_renews_a_token_and_all_use_it() {
    let lab = Lab::new();
    let Some(tokens) = tokens(&lab, 3600) else { return };
    let script = "curl -sS https://a.test:8443/$(hostname); echo $API_KEY; cat /proc/self/environ | tr '\\0' '\\n' | grep -c token";
    let running: Vec<Started> = (0..4).map(|_| tokens.task(&lab).start_sh(script)).collect();
    for task in running {
        let run = task.finish();
        assert!(run.stderr.contains("served by a.test") && run.stderr.contains("held-by-the-broker\n0\n"), "{run:#?}");
        assert_eq!(run.receipt()["secrets"][0]["source"], "oauth", "{run:#?}");
    }
    assert_eq!(tokens.asked(), "good\n");
    assert_eq!(tokens.world.heard().matches("<Bearer access-token-number-1>").count(), 4, "{}", tokens.world.heard());
    let kept: serde_json::Value = serde_json::from_str(&fs::read_to_string(&tokens.file).unwrap()).unwrap();
    assert_eq!((&kept["refresh_token"], &kept["mine"]), (&"refresh-1".into(), &1.into()), "{kept}");
}

#[test]
fn a_token_that_ends_while_the_sandbox_runs_is_renewed() {
    let lab = Lab::new();
    // It is renewed a minute before its end: after two seconds.
    let Some(tokens) = tokens(&lab, 62) else { return };
    let task = tokens.task(&lab).start_sh("while curl -sSf -o /dev/null https://a.test:8443/x; do sleep 0.2; done");
    eventually("the first token arrives", || tokens.world.heard().contains("<Bearer access-token-number-1>"));
    eventually("the second token arrives", || tokens.world.heard().contains("<Bearer access-token-number-2>"));
    task.signal(Signal::TERM);
    let run = task.finish();
    assert!(run.receipt()["secrets"][0]["replaced"].as_u64() >= Some(1), "{run:#?}");
    assert!(!tokens.asked().contains("bad"), "{}", tokens.asked());
}

#[test]
fn a_refresh_token_that_is_no_good_refuses_the_task_in_one_line() {
    let lab = Lab::new();
    let Some(tokens) = tokens(&lab, 3600) else { return };
    let text = fs::read_to_string(&tokens.file).unwrap().replace("refresh-0", "refresh-of-somebody-else");
    fs::write(&tokens.file, text).unwrap();
    let run = tokens.task(&lab).plain().sh("echo ran");
    assert!(run.status == Some(125) && run.stderr.contains("answers 400: invalid_grant"), "{run:#?}");
    assert!(!run.stderr.contains("somebody-else") && !run.stdout.contains("ran"), "{run:#?}");
}
