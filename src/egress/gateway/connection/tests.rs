use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

#[test]
fn only_a_connection_with_more_than_a_little_ends_for_the_sum() {
    let mut waiting = Waiting::default();
    assert!(!waiting.count(1, MOST));
    assert!(!waiting.count(2, LITTLE));
    assert!(waiting.count(2, LITTLE + 1));
    assert!(!waiting.count(2, 0));
    waiting.forget(1);
    assert!(!waiting.count(3, MOST));
    waiting.forget(4);
    assert_eq!(waiting.sum, MOST);
}

/// A connection with an open server, and the peers of both sides.
fn open_connection(front: Front) -> (Connection, UnixStream, UnixStream) {
    let pair = || {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    };
    let ((client, peer), (server, far)) = (pair(), pair());
    let mut connection = Connection::new(client.into(), front);
    connection.server = Some(End::new(server.into()));
    connection.back = Back::Open;
    connection.target = Some(Target { host: Host::Name("a.example".into()), port: 80, row: 0 });
    for end in [Some(&mut connection.client), connection.server.as_mut()].into_iter().flatten() {
        (end.readable, end.writable) = (true, true);
    }
    (connection, peer, far)
}

#[test]
fn half_closed_client_of_http_waits_for_its_answer() {
    let front = Front::Requests { requests: Requests::new(), count: 0, upgrade: false };
    let (mut connection, mut client, _server) = open_connection(front);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let needs = [(); 3].map(|()| connection.pass(&mut Pipes::default(), &mut Budget::new(None, None)));
    assert_eq!(needs[2], Need::Nothing);
}

#[test]
fn used_up_budget_passes_no_first_bytes() {
    let websocket = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let requests = || Front::Requests { requests: Requests::new(), count: 0, upgrade: false };
    for (front, bytes) in [(Front::Opening, &b"SSH-2.0-me\r\nkeys"[..]), (requests(), websocket)] {
        let (mut connection, mut client, mut server) = open_connection(front);
        client.write_all(bytes).unwrap();
        let mut budget = Budget::new(None, Some(5));
        let needs = [(); 3].map(|()| connection.pass(&mut Pipes::default(), &mut budget));
        assert_eq!(needs[2], Need::Later);
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.read(&mut [0; 100]).unwrap(), 5);
        assert!(server.read(&mut [0; 100]).is_err());
    }
}

#[test]
fn timed_out_dial_into_the_sandbox_keeps_its_socket() {
    let (mut connection, ..) = open_connection(Front::Through);
    (connection.back, connection.inward) = (Back::Dialling(VecDeque::new()), true);
    assert_eq!(connection.time_out(), Need::End(true));
    assert!(connection.server.is_some());
}

#[test]
fn denial_of_an_address_covers_connections_that_lead_there_by_name() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (mut connection, ..) = open_connection(Front::Opening);
    let later: SocketAddr = "192.0.2.1:443".parse().unwrap();
    assert_eq!(connection.dial([address, later].into()), Need::Watch);
    let check = |rule: &str, expected| {
        assert_eq!(connection.is_denied(&Rule::parse(rule).unwrap()), expected, "{rule}");
    };
    check(&format!("127.0.0.0/8:{}", address.port()), true);
    check(&format!("localhost:{}", address.port()), true);
    check("127.0.0.1", true);
    check("192.0.2.1:443", true);
    check("192.0.2.1:80", false);
    check("192.0.2.2", false);
    check("a.example:80", true);
}
