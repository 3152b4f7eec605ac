//! HTTP/2 to hosts of the broker's: both sides speak the same, each request on its own gets the secret or a refusal, and floods end one connection.

use super::broker::VALUE;
use super::refusals;
use super::world::World;
use crate::support::{Lab, has_program, skip};
use std::process::Command;

fn count(text: &str, words: &str) -> usize {
    text.matches(words).count()
}

#[test]
fn many_requests_of_one_connection_get_the_secret_each() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    if !has_program("nghttp") {
        return;
    }
    let run = world.brokered(&lab, VALUE, "").sh("curl -sS --http2 -w '%{http_version}\\n' https://a.test:8443/curl; \
         nghttp -n --no-dep -m 50 https://a.test:8443/many && echo nghttp done; \
         curl -sS --http1.1 -w '%{http_version}\\n' https://a.test:8443/one");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("served by a.test HTTP/2.0\n2\n"), "{run:#?}");
    assert!(run.stderr.contains("served by a.test HTTP/1.1\n1.1\n"), "{run:#?}");
    assert!(run.stderr.contains("nghttp done"), "{run:#?}");
    let heard = world.heard();
    assert_eq!(count(&heard, &format!("a.test GET /many <Bearer {VALUE}>")), 50, "{heard}");
}

#[test]
fn rules_hold_for_each_stream_and_the_others_go_on() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let script = "curl -sS --http2 -w '%{http_code} %{http_version}\\n' https://a.test:8443/v1/a https://a.test:8443/v2/b \
                  https://a.test:8443/v1/c; curl -sS --http2 -d content https://a.test:8443/v1/d; \
                  curl -sS --http2 -o /dev/null -w '%{http_code}' -H 'Host: b.test:8443' https://a.test:8443/v1/e; \
                  for version in http1.1 http2; do for header in 'X-HTTP-Method-Override: DELETE' 'x_original_url: /v2/b'; do \
                  curl -sS --$version -H \"$header\" https://a.test:8443/v1/f; done; done";
    let run = world.brokered(&lab, VALUE, "paths = [\"/v1/*\"]\nmethods = [\"GET\"]\n").sh(script);
    assert_eq!(count(&run.stderr, "200 2\n"), 2, "{run:#?}");
    assert_eq!(count(&run.stderr, "403 2\n"), 1, "{run:#?}");
    assert!(run.stderr.contains("brig: `API_KEY` is for /v1/*, not for /v2/b\n"), "{run:#?}");
    assert!(run.stderr.contains("brig: `API_KEY` is for GET, not for POST\n"), "{run:#?}");
    let words = "brig: `API_KEY` is for some requests, and `x-http-method-override` could make this one another\n";
    assert_eq!(count(&run.stderr, words), 2, "{run:#?}");
    // A header that could rename the path does not arrive, and the request does.
    let heard = world.heard();
    assert_eq!(heard.lines().count(), 4, "{heard}");
    assert_eq!(count(&heard, "a.test GET /v1/f "), 2, "{heard}");
    let refused = refusals(&run, "a.test");
    assert!(refused.contains("not for /v2/b") && refused.contains("the request is for `b.test:8443`"), "{refused}");
}

#[test]
fn much_content_passes_both_ways_as_it_is() {
    let lab = Lab::new();
    // A server that reads a request's content before it answers; curl 7.88 never ends with one that does not.
    let reader = |address: std::net::Ipv4Addr, directory: &std::path::Path| {
        let directory = directory.display();
        format!(
            "server {{ listen {address}:8444 ssl http2; server_name a.test; ssl_certificate {directory}/cert.pem; \
             ssl_certificate_key {directory}/key.pem; location / {{ proxy_pass http://{address}:8080; \
             proxy_set_header Host a.test; }} }}\n"
        )
    };
    let Some(world) = World::with_sites(&lab, reader) else { return };
    let content: Vec<u8> = (0..20_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    world.publish("big", &content);
    let run = world.brokered_at(&lab, VALUE, "[\"a.test:8443\", \"a.test:8444\"]", "").sh(
        "curl -sS --http2 -o a -o b -Z https://a.test:8443/big https://a.test:8443/big 2>/dev/null; cmp a b && sha256sum <a; \
         head -c 8000000 a | curl -sS -m 30 --http2 --data-binary @- -w '%{http_version} %{size_upload}\\n' https://a.test:8444/upload",
    );
    run.ended_as("succeeded", 0);
    let digest = Command::new("sha256sum").arg(world.files().join("big")).output().unwrap().stdout;
    let digest = String::from_utf8(digest).unwrap().split(' ').next().unwrap().to_owned();
    assert!(run.stderr.contains(&digest), "{run:#?}");
    assert!(run.stderr.contains("served by a.test HTTP/1.0\n2 8000000\n"), "{run:#?}");
}

#[test]
fn the_client_is_offered_what_the_server_speaks() {
    let lab = Lab::new();
    let old = |address: std::net::Ipv4Addr, directory: &std::path::Path| {
        let directory = directory.display();
        format!(
            "server {{ listen {address}:8444 ssl; server_name a.test; ssl_certificate {directory}/cert.pem; \
             ssl_certificate_key {directory}/key.pem; location / {{ return 200 \"old $server_protocol\\n\"; }} }}\n"
        )
    };
    let Some(world) = World::with_sites(&lab, old) else { return };
    let run = world.brokered_at(&lab, VALUE, "[\"a.test:8443\", \"a.test:8444\"]", "").sh(
        "curl -sS --http2 https://a.test:8444/; \
         for port in 8443 8444; do openssl s_client -connect a.test:$port -servername a.test -alpn h2,http/1.1 </dev/null 2>&1 | grep -a '^ALPN'; done; \
         curl -sS --http2 -m 5 https://a.test:8445/ || echo closed",
    );
    assert!(run.stderr.contains("old HTTP/1.1\n"), "{run:#?}");
    assert!(run.stderr.contains("ALPN protocol: h2\nALPN protocol: http/1.1\n"), "{run:#?}");
}

/// A server and a client of gRPC, without generated code.
const GRPC_SERVER: &str = r#"
import concurrent.futures, sys, grpc
address, cert, key = sys.argv[1:]
def who(context): return dict(context.invocation_metadata()).get('authorization', '-')
def one(request, context):
    context.set_trailing_metadata((('said', who(context)),))
    return request + b' for ' + who(context).encode()
def many(requests, context):
    for request in requests: yield request + b'!'
def fail(request, context): context.abort(grpc.StatusCode.NOT_FOUND, 'no ' + who(context))
handler = grpc.method_handlers_generic_handler('test.Service', {
    'One': grpc.unary_unary_rpc_method_handler(one), 'Many': grpc.stream_stream_rpc_method_handler(many),
    'Fail': grpc.unary_unary_rpc_method_handler(fail), 'Closed': grpc.unary_unary_rpc_method_handler(one)})
server = grpc.server(concurrent.futures.ThreadPoolExecutor(8)); server.add_generic_rpc_handlers((handler,))
read = lambda path: open(path, 'rb').read()
server.add_secure_port(address, grpc.ssl_server_credentials([(read(key), read(cert))])); server.start(); server.wait_for_termination()
"#;

const GRPC_CLIENT: &str = r#"
import grpc, os
roots = open(os.environ['SSL_CERT_FILE'], 'rb').read()
channel = grpc.secure_channel('a.test:8444', grpc.ssl_channel_credentials(roots))
call = channel.unary_unary('/test.Service/One').with_call(b'x' * 100, timeout=20)
print(len(call[0]), call[0][-20:], dict(call[1].trailing_metadata()))
stream = channel.stream_stream('/test.Service/Many')
print(sum(len(answer) for answer in stream((b'y' * 10000 for _ in range(200)), timeout=20)))
for name in ['Fail', 'Closed']:
    try: channel.unary_unary('/test.Service/' + name)(b'', timeout=20)
    except grpc.RpcError as error: print(error.code().name, error.details())
"#;

#[test]
fn grpc_works_with_a_secret_it_never_has() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let python = "/usr/bin/python3";
    if !Command::new(python).args(["-c", "import grpc"]).status().is_ok_and(|status| status.success()) {
        return skip("needs python3-grpcio");
    }
    let (server, directory) = (lab.file("grpc-server.py", GRPC_SERVER), world.directory().to_owned());
    let mut command = Command::new(python);
    command.arg(server).arg(format!("{}:8444", world.address));
    world.also(command.arg(directory.join("cert.pem")).arg(directory.join("key.pem")), 8444);
    lab.file("work/client.py", GRPC_CLIENT);
    let rules = "paths = [\"/test.Service/One\", \"/test.Service/Many\", \"/test.Service/Fail\"]\n";
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", rules).sh("/usr/bin/python3 client.py");
    run.ended_as("succeeded", 0);
    let length = 100 + " for Bearer ".len() + VALUE.len();
    assert!(run.stderr.contains(&format!("{length} b'{}'", "*".repeat(20))), "{run:#?}");
    assert!(run.stderr.contains(&format!("'said': 'Bearer {}'", "*".repeat(VALUE.len()))), "{run:#?}");
    assert!(run.stderr.contains("\n2000200\n"), "{run:#?}");
    assert!(run.stderr.contains(&format!("NOT_FOUND no Bearer {}", "*".repeat(VALUE.len()))), "{run:#?}");
    assert!(run.stderr.contains("PERMISSION_DENIED"), "{run:#?}");
}

/// Attacks with bare frames; each prints its name and the reason with which the gateway ended the connection.
const ATTACKS: &str = r#"
import os, socket, ssl, struct, sys
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE']); context.set_alpn_protocols(['h2'])
def frame(kind, flags, stream, payload=b''): return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
def text(word): return bytes([len(word)]) + word
def field(name, value): return b'\x00' + text(name) + text(value)
def head(path=b'/x', *more): return b''.join(field(*each) for each in [(b':method', b'GET'), (b':scheme', b'https'), (b':path', path), (b':authority', b'a.test:8443'), *more])
def attack(name, frames):
    if len(sys.argv) > 1 and name not in sys.argv[1:]: return
    sock = context.wrap_socket(socket.create_connection(('a.test', 8443)), server_hostname='a.test'); sock.settimeout(10 if len(sys.argv) == 1 else 3)
    got = b''
    try:
        sock.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0) + frames)
        while part := sock.recv(65536): got += part
    except OSError as error: pass
    reason = pongs = ''
    while len(got) >= 9:
        length, kind = int.from_bytes(got[:3], 'big'), got[3]
        if kind == 7: reason = got[17:9 + length].decode()
        if kind == 6: pongs = (pongs or 0) + 1
        if kind == 1: reason = 'answered ' + repr(got[9:9 + length])
        got = got[9 + length:]
    print(name + ':', reason, pongs, flush=True)
attack('continuation', frame(1, 0, 1, head()) + b''.join(frame(9, 0, 1) for _ in range(5000)) + frame(9, 4, 1))
attack('reset', b''.join(frame(1, 5, n, head()) + frame(3, 0, n, b'\0\0\0\x08') for n in range(1, 4001, 2)))
attack('bomb', frame(1, 5, 1, b'\x40' + text(b'a') + b'\x7f\xa1\x1e' + b'v' * 4000 + b'\xbe' * 10000))
attack('pings', frame(6, 0, 0, b'12345678') * 5000)
attack('host', frame(1, 5, 1, head(b'/x', (b'host', b'b.test'))) + frame(7, 0, 0, bytes(8)))
attack('smuggle', frame(1, 5, 1, head(b'/x', (b'x', b'1\r\n\r\nGET /smuggled HTTP/1.1'))) + frame(7, 0, 0, bytes(8)))
attack('chunked', frame(1, 5, 1, head(b'/x', (b'transfer-encoding', b'chunked'))) + frame(7, 0, 0, bytes(8)))
attack('length', frame(1, 4, 1, head(b'/length', (b'content-length', b'4'))) + frame(0, 1, 1, b'0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n') + frame(7, 0, 0, bytes(8)))
attack('away', frame(1, 5, 1, head().replace(b'a.test:8443', b'b.test:8443')) + frame(7, 0, 0, bytes(8)))
"#;

#[test]
fn floods_bombs_and_smuggling_end_their_connection_and_reach_nobody() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    lab.file("work/attacks.py", ATTACKS);
    let run = world.brokered(&lab, VALUE, "").sh("python3 attacks.py; curl -sS --http2 https://a.test:8443/after");
    for words in [
        "continuation: the headers are too long",
        "reset: many requests were given up at once",
        "bomb: the headers are too long",
        "pings: many frames that say nothing",
        "host: answered",
        "smuggle: answered",
        "chunked: answered",
        "away: answered",
        "served by a.test HTTP/2.0",
    ] {
        assert!(run.stderr.contains(words), "no `{words}`: {run:#?}");
    }
    assert_eq!(count(&run.stderr, "403"), 4, "{run:#?}");
    let heard = world.heard();
    assert!(!heard.contains("smuggled") && !heard.contains("b.test"), "{heard}");
    assert!(heard.contains("GET /after"), "{heard}");
    let refused = refusals(&run, "a.test");
    for words in ["the authority and Host differ", "control character", "connections", "not as long as was said"] {
        assert!(refused.contains(words), "no `{words}`: {refused}");
    }
}

/// One attack with its guard switched off: nobody gives this reason any more, and the server hears this.
#[track_caller]
fn gets_through(attack: &str, guard: &str, reason: &str, heard: &str) {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    lab.file("work/attacks.py", ATTACKS);
    let script = format!("python3 attacks.py {attack}");
    let run = world.brokered(&lab, VALUE, "").sh(&script);
    let told = run.stderr.clone() + &refusals(&run, "a.test");
    assert!(told.contains(reason), "{attack} is not refused for that: {run:#?}");
    let before = world.heard();
    let weak = world.brokered(&lab, VALUE, "").weakened(guard).sh(&script);
    let told = weak.stderr.clone() + &refusals(&weak, "a.test");
    assert!(!told.contains(reason), "{attack}: something else refuses it: {weak:#?}");
    let after = world.heard();
    assert!(after[before.len()..].contains(heard), "{attack} proves nothing: {after}\n{weak:#?}");
}

#[test]
fn each_attack_gets_through_without_its_guard() {
    gets_through("continuation", "http2-parts", "the headers are too long", "a.test GET /x");
    gets_through("reset", "http2-resets", "many requests were given up at once", "a.test GET /x");
    gets_through("bomb", "hpack-bomb", "the headers are too long", "");
    gets_through("pings", "http2-empty", "many frames that say nothing", "");
    gets_through("host", "http2-host", "the authority and Host differ", "GET /x");
    gets_through("smuggle", "http2-values", "control character", "");
    gets_through("chunked", "http2-connections", "connections", "GET /x");
    gets_through("length", "http2-length", "not as long as was said", "GET /length");
    gets_through("away", "egress-host", "the request is for `b.test:8443`", "b.test GET /x <Bearer");
}
