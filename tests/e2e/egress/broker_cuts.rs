//! A secret that a server repeats, cut in the middle: by HTTP/2's windows, by chunks, by the end of an answer.

use super::broker::VALUE;
use super::world::World;
use crate::support::{Lab, has_program};

/// Asks for `/repeat` with room for so many bytes, waits until the gateway has told what it held back, and gives room for the rest. What came is
/// said with blanks between, so that the redactor of the output does not know it.
const WINDOWS: &str = r#"
import os, socket, ssl, struct, sys, time
def frame(kind, flags, stream, payload=b''): return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
def field(name, value): return b'\x00' + bytes([len(name)]) + name + bytes([len(value)]) + value
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE']); context.set_alpn_protocols(['h2'])
for cut in [20, 24, 30, 43]:
    sock = context.wrap_socket(socket.create_connection(('a.test', 8443)), server_hostname='a.test'); sock.settimeout(0.2)
    own = [(b':method', b'GET'), (b':scheme', b'https'), (b':authority', b'a.test:8443'), (b':path', b'/repeat')]
    sock.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, struct.pack('>HI', 4, cut)) + frame(1, 5, 1, b''.join(field(*each) for each in own)))
    got, told, began, given, ended = b'', b'', time.time(), False, False
    while not ended and time.time() - began < 15:
        try: got += sock.recv(65536)
        except TimeoutError: pass
        while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], 'big'):
            length, kind, flags = int.from_bytes(got[:3], 'big'), got[3], got[4]
            payload, got = got[9:9 + length], got[9 + length:]
            if kind == 0: told += payload; ended = flags & 1
            if kind == 4 and not flags & 1: sock.sendall(frame(4, 1, 0))
        if not given and len(told) == cut: given = True; sock.sendall(frame(8, 0, 1, struct.pack('>I', 1000)))
    print(cut, ' '.join(told.decode()), flush=True)
"#;

fn spaced(text: &str) -> String {
    text.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_window_that_ends_within_the_secret_does_not_bring_it_out() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    if !has_program("python3") {
        return;
    }
    lab.file("work/windows.py", WINDOWS);
    let run = world.brokered(&lab, VALUE, "").sh("python3 windows.py");
    let stars = |count: usize| "*".repeat(count);
    for (cut, told) in [(20, "corr".to_owned() + &stars(24)), (24, stars(28)), (30, stars(28)), (43, stars(28))] {
        let line = format!("{cut} {}", spaced(&format!("you said Bearer {told}")));
        assert!(run.stderr.contains(&line), "no `{line}`: {run:#?}");
    }
    let weak = world.brokered(&lab, VALUE, "").weakened("broker-told").sh("python3 windows.py");
    assert!(weak.stderr.contains(&spaced("battery-staple")), "the attack proves nothing: {weak:#?}");
}
