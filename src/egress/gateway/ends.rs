//! The end of TLS towards the sandbox. A client that could speak HTTP/2 is answered when the server has said whether it can: both sides of the
//! broker speak the same.

use crate::egress::broker::{HTTP_2, Served};
use rustls::server::{Accepted, Acceptor};
use rustls::{ConnectionCommon, ServerConnection, SideData};
use std::io::{ErrorKind, Read};
use std::rc::Rc;
use std::sync::Arc;

/// How far it is.
enum State {
    /// The client has said hello, and what came after that.
    Waiting(Box<Accepted>, Vec<u8>),
    Open(Box<ServerConnection>),
    Broken,
}

pub(super) struct Inside {
    served: Rc<Served>,
    state: State,
}

impl Inside {
    /// Begins with the client's first bytes. What is to be sent is added to `out`, also where that is why it is refused.
    pub(super) fn begin(
        served: &Rc<Served>,
        mut hello: &[u8],
        (plain, out): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> (Inside, Result<(), rustls::Error>) {
        let mut inside = Inside { served: Rc::clone(served), state: State::Broken };
        let mut acceptor = Acceptor::default();
        let accepted = loop {
            if let Err(cause) = acceptor.read_tls(&mut hello) {
                return (inside, Err(rustls::Error::General(cause.to_string())));
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => break accepted,
                Ok(None) if hello.is_empty() => {
                    return (inside, Err(rustls::Error::General("the hello is torn".into())));
                }
                Ok(None) => {}
                Err((cause, mut alert)) => {
                    // A vector takes everything.
                    let _ = alert.write_all(out);
                    return (inside, Err(cause));
                }
            }
        };
        let is_two = accepted.client_hello().alpn().is_some_and(|mut all| all.any(|each| each == HTTP_2));
        inside.state = State::Waiting(Box::new(accepted), hello.to_vec());
        let done = if is_two { Ok(()) } else { inside.open(false, (plain, out)) };
        (inside, done)
    }

    /// Whether it waits to be told which HTTP the server speaks.
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, State::Waiting(..))
    }

    /// Answers the client's hello, with HTTP/2 or HTTP/1.1.
    pub(super) fn open(&mut self, two: bool, (plain, out): (&mut Vec<u8>, &mut Vec<u8>)) -> Result<(), rustls::Error> {
        let (accepted, rest) = match std::mem::replace(&mut self.state, State::Broken) {
            State::Waiting(accepted, rest) => (accepted, rest),
            other => {
                self.state = other;
                return Ok(());
            }
        };
        let config = if two { &self.served.inside_two } else { &self.served.inside };
        let mut tls = match accepted.into_connection(Arc::clone(config)) {
            Ok(tls) => tls,
            Err((cause, mut alert)) => {
                let _ = alert.write_all(out);
                return Err(cause);
            }
        };
        tls.set_buffer_limit(None); // what waits is bounded by what is read
        let fed = feed(&mut tls, &rest, plain);
        drain(&mut tls, out);
        self.state = State::Open(Box::new(tls));
        fed.map(drop)
    }

    /// The connection, once the client's hello was answered.
    pub(super) fn tls(&mut self) -> Option<&mut ServerConnection> {
        match &mut self.state {
            State::Open(tls) => Some(tls),
            _ => None,
        }
    }

    /// Whether the client can be told anything.
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(tls) if !tls.is_handshaking())
    }
}

/// What a peer's bytes are: added to `plain`; `true` when it has said that no more come.
pub(super) fn feed<Data: SideData>(
    tls: &mut ConnectionCommon<Data>,
    mut bytes: &[u8],
    plain: &mut Vec<u8>,
) -> Result<bool, rustls::Error> {
    let mut closed = false;
    while !bytes.is_empty() {
        match tls.read_tls(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
            Err(cause) => return Err(rustls::Error::General(cause.to_string())),
        }
        let state = tls.process_new_packets()?;
        let start = plain.len();
        plain.resize(start + state.plaintext_bytes_to_read(), 0);
        if state.plaintext_bytes_to_read() > 0 {
            tls.reader().read_exact(&mut plain[start..]).map_err(|cause| rustls::Error::General(cause.to_string()))?;
        }
        closed |= state.peer_has_closed();
    }
    Ok(closed)
}

/// What is to be sent.
pub(super) fn drain<Data: SideData>(tls: &mut ConnectionCommon<Data>, out: &mut Vec<u8>) {
    while tls.wants_write() {
        // A vector takes everything.
        if tls.write_tls(out).is_err() {
            return;
        }
    }
}
