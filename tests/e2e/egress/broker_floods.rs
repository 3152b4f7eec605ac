//! Servers that send much to a client that does not read: the gateway's memory is outside of the sandbox's limit.

use super::broker::VALUE;
use super::running::{gateway, kib};
use super::world::World;
use crate::support::{Lab, eventually_within, has_program};
use rustix::process::Signal;
use std::process::Command;

/// More than the gateway's own memory, in KiB.
const MUCH: u64 = 8 << 10;

/// The same with the most waiting connections, in KiB: their buffers, and TLS.
const CROWDED: u64 = 64 << 10;

/// A server that answers each request with interim answers, or with tiny chunks, until the client closes.
const SERVER: &str = r#"
import socket, ssl, sys, threading, time
most = 24 << 20
begin, flood = {'interim': (b'', b'HTTP/1.1 100 Continue\r\n\r\n'), 'chunks': (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n', b'1\r\nx\r\n')}[sys.argv[4]]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[3] + '/cert.pem', sys.argv[3] + '/key.pem')
def serve(sock):
    try:
        sock = context.wrap_socket(sock, server_side=True); sock.settimeout(60); sock.recv(65536); sock.sendall(begin); sent = 0
        while sent < most: sock.sendall(flood * 1000); sent += len(flood) * 1000
        time.sleep(60)
    except OSError: pass
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A client that sends one request and reads nothing.
const CLIENT: &str = r#"
import os, socket, ssl, time
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
sock = context.wrap_socket(socket.create_connection(('a.test', 8444)), server_hostname='a.test')
sock.sendall(b'GET / HTTP/1.1\r\nHost: a.test:8444\r\n\r\n')
print('asked', flush=True); time.sleep(7); print('flooded', flush=True); time.sleep(90)
"#;

/// The gateway's memory under one flood, in KiB. Without its guard, waits until it exceeds the limit.
fn memory_under(flood: &str, weakened: Option<&str>) -> Option<u64> {
    let lab = Lab::new();
    let mut world = World::new(&lab)?;
    if !has_program("python3") {
        return None;
    }
    let (address, directory) = (world.address.to_string(), world.directory().display().to_string());
    let mut command = Command::new("/usr/bin/python3");
    command.arg(lab.file("flood.py", SERVER)).args([&address, "8444", &directory, flood]);
    world.also(&mut command, 8444);
    lab.file("work/client.py", CLIENT);
    let mut task = world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "");
    if let Some(guard) = weakened {
        task = task.weakened(guard);
    }
    let task = task.start_sh("python3 client.py");
    task.wait_for("asked");
    let gateway = gateway(&task).as_raw_pid();
    let most = || kib(&std::fs::read_to_string(format!("/proc/{gateway}/status")).unwrap(), "RssAnon:");
    match weakened {
        // Measure at once: the gateway may free the memory when it drops this server.
        Some(_) => eventually_within(80, &format!("{flood} do harm without the guard"), || most() > 2 * MUCH),
        None => task.wait_for("flooded"),
    }
    let most = most();
    task.signal(Signal::TERM);
    task.finish();
    Some(most)
}

#[test]
fn a_server_that_floods_a_client_that_does_not_read_is_not_read_any_more() {
    for flood in ["interim", "chunks"] {
        let Some(most) = memory_under(flood, None) else { return };
        assert!(most < MUCH, "{flood}: {most} KiB");
        memory_under(flood, Some("broker-room,gateway-memory"));
    }
}

/// A client with many connections that requests a large file on each and reads nothing. Small kernel buffers let little
/// pass.
const CROWD: &str = r#"
import os, socket, ssl, sys, time
context, kept = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE']), []
for _ in range(500):
    try:
        sock = socket.socket(); sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192); sock.connect(('a.test', 8443))
        sock = context.wrap_socket(sock, server_hostname='a.test')
        sock.sendall(b'GET /big HTTP/1.1\r\nHost: a.test:8443\r\n\r\n'); kept.append(sock)
    except OSError: pass
time.sleep(1); print('flooded', flush=True); time.sleep(60)
"#;

/// The gateway's memory with that client, in KiB, and the receipt.
fn memory_with_crowd(weakened: bool) -> Option<(u64, String)> {
    let lab = Lab::new();
    let world = World::new(&lab)?;
    if !has_program("python3") {
        return None;
    }
    world.publish("big", &vec![b'x'; 8 << 20]);
    lab.file("work/client.py", CROWD);
    let task = world.brokered_at(&lab, VALUE, "\"a.test:8443\"", "");
    let task = if weakened { task.weakened("gateway-memory") } else { task };
    let task = task.start_sh("python3 client.py");
    // Five hundred handshakes beside other work.
    eventually_within(90, "the client has its connections", || task.output().contains("flooded"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway(&task).as_raw_pid())).unwrap();
    task.signal(Signal::TERM);
    Some((kib(&status, "RssAnon:"), task.finish().stdout))
}

#[test]
fn many_connections_whose_client_does_not_read_do_not_fill_the_gateway() {
    let Some((most, receipt)) = memory_with_crowd(false) else { return };
    assert!(receipt.contains("too many bytes wait in all connections together"), "{receipt}");
    let (without, _) = memory_with_crowd(true).unwrap();
    assert!(most < CROWDED && without > CROWDED, "{most} KiB, {without} KiB without the bound");
}
