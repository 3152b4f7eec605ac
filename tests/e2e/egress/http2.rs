//! HTTP/2 passes the gateway without a secret, and is refused with a row of the account where a secret is added.

use super::broker::VALUE;
use super::world::World;
use super::{refusals, rows};
use crate::support::{Lab, has_program, skip};
use std::process::Command;

/// The line of the account for a client that insists on HTTP/2, and the one for a server.
const CLIENT: &str = "HTTP/2 does not work at a host where brig adds a secret: let the client use HTTP/1.1 with TLS";
const SERVER: &str =
    "the server takes HTTP/2 only, and brig adds secrets to HTTP/1.1 only: use a server that takes HTTP/1.1";

/// A server and a client of gRPC, without generated code.
const GRPC_SERVER: &str = r#"
import concurrent.futures, sys, grpc
address, cert, key = sys.argv[1:]
def one(request, context):
    context.set_trailing_metadata((('said', request[:3].decode()),))
    return request + b' for ' + dict(context.invocation_metadata()).get('authorization', '-').encode()
def many(requests, context):
    for request in requests: yield request + b'!'
def fail(request, context): context.abort(grpc.StatusCode.NOT_FOUND, 'no such thing')
handler = grpc.method_handlers_generic_handler('test.Service', {
    'One': grpc.unary_unary_rpc_method_handler(one), 'Many': grpc.stream_stream_rpc_method_handler(many),
    'Fail': grpc.unary_unary_rpc_method_handler(fail)})
server = grpc.server(concurrent.futures.ThreadPoolExecutor(8)); server.add_generic_rpc_handlers((handler,))
read = lambda path: open(path, 'rb').read()
server.add_secure_port(address, grpc.ssl_server_credentials([(read(key), read(cert))])); server.start(); server.wait_for_termination()
"#;

const GRPC_CLIENT: &str = r#"
import grpc, sys
channel = grpc.secure_channel('a.test:8444', grpc.ssl_channel_credentials(open(sys.argv[1], 'rb').read()))
try:
    answer, call = channel.unary_unary('/test.Service/One').with_call(b'x' * 100, timeout=30)
    print(answer[-10:], dict(call.trailing_metadata()))
    stream = channel.stream_stream('/test.Service/Many')
    print(sum(len(answer) for answer in stream((b'y' * 10000 for _ in range(200)), timeout=30)))
    channel.unary_unary('/test.Service/Fail')(b'', timeout=30)
except grpc.RpcError as error: print(error.code().name, error.details())
"#;

/// The servers, with one of gRPC at port 8444 and its client in the workspace.
fn grpc_world(lab: &Lab) -> Option<World> {
    let mut world = World::new(lab)?;
    let python = "/usr/bin/python3";
    if !Command::new(python).args(["-c", "import grpc"]).status().is_ok_and(|status| status.success()) {
        skip("needs python3-grpcio");
        return None;
    }
    let (server, directory) = (lab.file("grpc-server.py", GRPC_SERVER), world.directory().to_owned());
    let mut command = Command::new(python);
    command.arg(server).arg(format!("{}:8444", world.address));
    world.also(command.arg(directory.join("cert.pem")).arg(directory.join("key.pem")), 8444);
    lab.file("work/client.py", GRPC_CLIENT);
    Some(world)
}

#[test]
fn grpc_passes_to_an_allowed_host_without_a_secret() {
    let lab = Lab::new();
    let Some(world) = grpc_world(&lab) else { return };
    let near = format!("{}:8444", world.address);
    let task = world.task(&lab).args(["--allow", "a.test:8444", "--allow", &near]);
    let run = task.sh("/usr/bin/python3 client.py /workspace/ca.pem");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("b'xxxx for -' {'said': 'xxx'}\n2000200\nNOT_FOUND no such thing"), "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), "", "{run:#?}");
    let is_counted = |row: &serde_json::Value| row["port"] == 8444 && row["received_bytes"].as_u64() > Some(2_000_000);
    assert!(rows(&run, "a.test").iter().any(is_counted), "{run:#?}");
}

#[test]
fn grpc_to_a_brokered_host_is_refused_with_a_line_in_the_receipt() {
    let lab = Lab::new();
    let Some(world) = grpc_world(&lab) else { return };
    let task = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "");
    let run = task.sh("/usr/bin/python3 client.py $SSL_CERT_FILE");
    assert!(run.stderr.contains("UNAVAILABLE") || run.stderr.contains("DEADLINE_EXCEEDED"), "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), CLIENT, "{run:#?}");
    assert!(!run.receipt().to_string().contains(VALUE), "{run:#?}");
}

/// Requests a brokered host: the row is in the receipt, the client gets `words`, and the server receives nothing.
#[track_caller]
fn is_refused(script: &str, words: &str) {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.brokered(&lab, VALUE, "").sh(script);
    assert_eq!(refusals(&run, "a.test"), CLIENT, "{script}: {run:#?}");
    assert!(run.stderr.contains(words), "{script}: no `{words}`: {run:#?}");
    assert_eq!(world.heard(), "", "{script}");
}

#[test]
fn a_client_that_offers_http_2_only_gets_the_alert_of_alpn() {
    is_refused(
        "openssl s_client -connect a.test:8443 -servername a.test -alpn h2 </dev/null 2>&1",
        "no application protocol",
    );
    let node = "require('http2').connect('https://a.test:8443').on('error', e => console.log(e.code))";
    if has_program("node") {
        is_refused(&format!("node -e \"{node}\" 2>&1"), "NO_APPLICATION_PROTOCOL");
    }
}

#[test]
fn http_2_without_agreement_is_refused() {
    let preface = "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0'";
    let forbidden = format!("403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n", CLIENT.len() + 7);
    for alpn in ["", "-alpn http/1.1", "-alpn h2,http/1.1"] {
        let tls = format!("openssl s_client -quiet -connect a.test:8443 -servername a.test {alpn} 2>/dev/null");
        is_refused(&format!("{preface} | {tls}"), &forbidden);
    }
    is_refused("curl -sS -m 30 --http2-prior-knowledge http://a.test:8443/ 2>&1; true", "");
    let clear = "exec 3<>/dev/tcp/a.test/8443; printf \"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\" >&3; cat <&3";
    is_refused(&format!("bash -c '{clear}'"), &forbidden);
}

#[test]
fn a_client_that_offers_both_gets_http_1_1() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let run = world.brokered(&lab, VALUE, "").sh("curl -sS --http2 -w '%{http_version}\\n' https://a.test:8443/curl; \
         openssl s_client -connect a.test:8443 -servername a.test -alpn h2,http/1.1 </dev/null 2>&1 | grep -a '^ALPN'");
    assert_eq!(run.stderr, "served by a.test HTTP/1.1\n1.1\nALPN protocol: http/1.1\n", "{run:#?}");
    assert_eq!(world.heard(), format!("a.test GET /curl <Bearer {VALUE}> <->\n"));
    assert_eq!(refusals(&run, "a.test"), "", "{run:#?}");
}

/// A server that ignores ALPN and begins with a frame of settings.
const SETTINGS: &str = r#"
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[3] + '/cert.pem', sys.argv[3] + '/key.pem')
def serve(sock):
    try:
        sock = context.wrap_socket(sock, server_side=True); sock.settimeout(30); sock.sendall(b'\0\0\0\4\0\0\0\0\0')
        while sock.recv(65536): pass
    except OSError: pass
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

#[test]
fn a_server_of_http_2_only_is_named_in_the_receipt() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let (address, directory) = (world.address.to_string(), world.directory().display().to_string());
    let mut server = Command::new("openssl");
    server.args(["s_server", "-quiet", "-alpn", "h2", "-accept", &format!("{address}:8444")]);
    server.args(["-cert", &format!("{directory}/cert.pem"), "-key", &format!("{directory}/key.pem")]);
    world.also(&mut server, 8444);
    let ask = "curl -sS -m 30 -w '%{http_code}' https://a.test:8444/";
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").sh(ask);
    assert_eq!(run.stderr, format!("brig: {SERVER}\n502"), "{run:#?}");
    assert_eq!(refusals(&run, "a.test"), SERVER, "{run:#?}");
    if !has_program("python3") {
        return;
    }
    let mut world = World::new(&lab).unwrap();
    let (address, program) = (world.address.to_string(), lab.file("settings.py", SETTINGS));
    world.also(Command::new("/usr/bin/python3").arg(program).args([&address, "8444", &directory]), 8444);
    let run = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "").sh(ask);
    assert!(refusals(&run, "a.test").contains("it is HTTP/2, and brig adds secrets to HTTP/1.1 only"), "{run:#?}");
}
