//! A connection with a brokered host: TLS ends here on both sides.
//!
//! A pass reads the client, reads the server, passes requests, passes answers, and sends both sides. No request passes
//! before the server's certificate is verified.

use super::{Back, Connection, DIAL, Front, HELD, Need};
use crate::egress::answers::Answers;
use crate::egress::broker::{Served, expects_continue, written};
use crate::egress::gateway::flow::{Budget, End, Pass};
use crate::egress::gateway::front;
use crate::egress::http::{self, Requests, Step};
use crate::sys::weaken;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{AlertDescription, ClientConnection, ConnectionCommon, Error as TlsError, ServerConnection, SideData};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of one read, and reads of one pass.
const CHUNK: usize = 16 * 1024;
const ROUNDS: usize = 8;
/// How long bytes wait that may begin a secret: [`HOLD_LONG`] from [`LONG`] bytes on.
const HOLD: Duration = Duration::from_millis(50);
const LONG: usize = 8;
const HOLD_LONG: Duration = Duration::from_secs(2);

/// The preface of an HTTP/2 client (RFC 9113, 3.4).
pub(super) const HTTP_2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
pub(super) const HTTP_2_REFUSED: &str =
    "HTTP/2 does not work at a host where brig adds a secret: let the client use HTTP/1.1 with TLS";
const HTTP_2_SERVER: &str =
    "the server takes HTTP/2 only, and brig adds secrets to HTTP/1.1 only: use a server that takes HTTP/1.1";

pub(in crate::egress::gateway) struct Brokered {
    served: Rc<Served>,
    inside: ServerConnection,
    /// Bytes before a whole line or head.
    unread: Vec<u8>,
    outside: Option<ClientConnection>,
    requests: Requests,
    answers: Answers,
    held_since: Instant,
    failed: Option<String>,
    /// Why the server's bytes cannot pass.
    broken: Option<String>,
    /// The client's TLS failed and cannot carry an answer.
    is_broken: bool,
    /// The server's certificate is verified.
    is_open: bool,
    client_is_done: bool,
    server_has_end: bool,
    server_is_done: bool,
    is_closed: bool,
    is_over: bool,
}

impl Brokered {
    fn new(served: Rc<Served>, inside: ServerConnection) -> Brokered {
        Brokered {
            served,
            inside,
            unread: Vec::new(),
            outside: None,
            requests: Requests::new(),
            answers: Answers::new(),
            held_since: Instant::now(),
            failed: None,
            broken: None,
            is_broken: false,
            is_open: false,
            client_is_done: false,
            server_has_end: false,
            server_is_done: false,
            is_closed: false,
            is_over: false,
        }
    }

    fn send_plain(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        // A buffer without a limit accepts everything.
        let _ = self.inside.writer().write_all(bytes);
        drain(&mut self.inside, out);
    }

    pub(in crate::egress::gateway) fn memory(&self) -> usize {
        self.unread.capacity()
    }

    pub(super) fn release_memory(&mut self) {
        self.unread.shrink_to_fit();
    }

    /// For the server's handshake, and for a client that does not read why the server failed.
    pub(super) fn time_out(&mut self) -> Need {
        if self.outside.is_none() || self.is_open || self.failed.is_some() {
            return Need::End(true);
        }
        self.failed = Some("the server does not finish TLS in time".into());
        Need::Again
    }
}

enum ReadResult {
    Bytes(usize),
    Nothing,
    End,
}

fn read(end: &mut End, buffer: &mut [u8]) -> Result<ReadResult, Errno> {
    loop {
        return match recv(&end.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((_, 0)) => Ok(ReadResult::End),
            Ok((_, count)) => Ok(ReadResult::Bytes(count)),
            Err(Errno::AGAIN) => {
                end.readable = false;
                Ok(ReadResult::Nothing)
            }
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

impl Connection {
    /// `held` contains the client's first bytes.
    pub(in crate::egress::gateway) fn begin_broker(&mut self, served: Rc<Served>) -> Result<(), String> {
        let hello = std::mem::take(&mut self.held);
        let mut inside = ServerConnection::new(Arc::clone(&served.inside)).map_err(|cause| client_fault(&cause))?;
        inside.set_buffer_limit(None); // reads are bounded
        let begun = feed(&mut inside, &hello, &mut self.held);
        drain(&mut inside, self.down.buffer());
        let mut tls = Brokered::new(served, inside);
        tls.is_broken = begun.is_err();
        self.front = Front::Brokered(Box::new(tls));
        begun.map(drop).map_err(|cause| client_fault(&cause))
    }

    pub(super) fn pass_brokered(&mut self, budget: &mut Budget) -> Result<Need, Errno> {
        let Front::Brokered(mut tls) = std::mem::replace(&mut self.front, Front::Through) else {
            return Ok(Need::End(true));
        };
        let done = self.relay(&mut tls, budget);
        if let Front::Through = self.front {
            self.front = Front::Brokered(tls);
        }
        done
    }

    /// Answers instead of the server, and ends.
    pub(in crate::egress::gateway) fn answer_brokered(&mut self, status: u16, why: &str) -> Need {
        let Front::Brokered(tls) = &mut self.front else { return Need::End(true) };
        if tls.is_broken {
            return self.farewell(Vec::new()); // an alert is in the buffer
        }
        if tls.inside.is_handshaking() {
            return Need::End(true);
        }
        if tls.answers.are_within_one() {
            return self.farewell(Vec::new()); // our text would become a part of the server's
        }
        let mut out = Vec::new();
        tls.send_plain(&http::answer(status, why), &mut out);
        tls.inside.send_close_notify();
        drain(&mut tls.inside, &mut out);
        self.farewell(out)
    }

    fn relay(&mut self, tls: &mut Brokered, budget: &mut Budget) -> Result<Need, Errno> {
        let fault = self.read_client_tls(tls)?;
        drain(&mut tls.inside, self.down.buffer());
        self.down.flush(&mut self.client)?;
        if let Some(why) = fault {
            tls.is_broken = true;
            return Ok(Need::Refuse(why));
        }
        if let Back::Dialling(_) = self.back
            && let Some(need) = self.check_dial()?
        {
            return Ok(need);
        }
        if let Back::Failed(why) = &self.back {
            tls.failed.get_or_insert(why.clone());
        }
        let throttled = tls.failed.is_none() && self.read_server_tls(tls, budget)?;
        if let Some(why) = tls.broken.take() {
            return Ok(Need::Unanswered(why));
        }
        if let Some(why) = &tls.failed {
            // A client without a request would not read an answer.
            let asks = !tls.inside.is_handshaking() && !self.held.is_empty();
            return Ok(match asks {
                true => Need::Unanswered(why.clone()),
                false if self.client_ended => Need::End(true),
                false => Need::Nothing,
            });
        }
        if let Some(why) = self.pass_requests(tls) {
            return Ok(Need::Refuse(why));
        }
        self.send_out(tls, budget, throttled)
    }

    /// Returns a fault of the client's TLS.
    fn read_client_tls(&mut self, tls: &mut Brokered) -> Result<Option<String>, Errno> {
        let mut buffer = [0_u8; CHUNK];
        for _ in 0..ROUNDS {
            if !self.can_read_client() {
                break;
            }
            match read(&mut self.client, &mut buffer)? {
                ReadResult::Bytes(count) => match feed(&mut tls.inside, &buffer[..count], &mut self.held) {
                    Ok(closed) => tls.client_is_done |= closed,
                    Err(cause) => return Ok(Some(client_fault(&cause))),
                },
                ReadResult::Nothing => {}
                ReadResult::End => (self.client_ended, tls.client_is_done) = (true, true),
            }
        }
        Ok(None)
    }

    fn can_read_client(&self) -> bool {
        let is_ready = self.client.readable && !self.client_ended;
        is_ready && self.held.len() < HELD && self.up.waiting() < HELD
    }

    fn can_read_server(&self, tls: &Brokered) -> bool {
        let is_ready = self.server.as_ref().is_some_and(|server| server.readable) && !tls.server_is_done;
        is_ready && (self.down.waiting() < HELD || weaken::is_off("broker-room"))
    }

    /// Returns whether the rate is used up.
    fn read_server_tls(&mut self, tls: &mut Brokered, budget: &mut Budget) -> Result<bool, Errno> {
        let Back::Open = self.back else { return Ok(false) };
        if tls.outside.is_none() {
            match ClientConnection::new(Arc::clone(&tls.served.outside), tls.served.name.clone()) {
                Ok(mut outside) => {
                    outside.set_buffer_limit(None);
                    tls.outside = Some(outside);
                    self.deadline = Some(Instant::now() + DIAL);
                }
                Err(cause) => tls.failed = Some(cause.to_string()),
            }
        }
        let (mut plain, mut throttled, mut buffer) = (Vec::new(), false, [0_u8; CHUNK]);
        for _ in 0..ROUNDS {
            if !self.can_read_server(tls) {
                break;
            }
            let most = budget.available().min(CHUNK);
            throttled = most == 0;
            let (false, Some(server), Some(outside)) = (throttled, &mut self.server, &mut tls.outside) else { break };
            match read(server, &mut buffer[..most])? {
                ReadResult::Bytes(count) => {
                    budget.spend(count);
                    match feed(outside, &buffer[..count], &mut plain) {
                        Ok(closed) => (tls.server_is_done, tls.is_closed) = (closed, closed),
                        Err(_) if tls.is_open => return Err(Errno::PROTO),
                        Err(cause) => {
                            tls.failed = Some(match cause {
                                TlsError::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                                    HTTP_2_SERVER.to_owned()
                                }
                                cause => format!("the server is refused: {cause}"),
                            });
                            drain(outside, self.up.buffer()); // with the alert
                            self.up.flush(server)?;
                        }
                    }
                }
                ReadResult::Nothing => {}
                ReadResult::End if tls.is_open => tls.server_is_done = true,
                ReadResult::End => tls.failed = Some("the server ended the connection within TLS's handshake".into()),
            }
            if tls.failed.is_some() {
                self.deadline = Some(Instant::now() + DIAL);
                return Ok(false);
            }
        }
        if !tls.is_open && tls.outside.as_ref().is_some_and(|outside| !outside.is_handshaking()) {
            tls.is_open = true;
            self.deadline = None;
        }
        tls.unread.append(&mut plain);
        self.pass_answers(tls);
        if tls.server_is_done && !tls.is_over {
            if tls.is_closed {
                tls.inside.send_close_notify();
                drain(&mut tls.inside, self.down.buffer());
            }
            (tls.is_over, self.down.ended) = (true, true);
        }
        Ok(throttled)
    }

    /// Also passes bytes that were held back for too long.
    fn pass_answers(&mut self, tls: &mut Brokered) {
        if tls.outside.is_none() {
            return;
        }
        let (mut down, mut taken) = (Vec::new(), 0);
        while taken < tls.unread.len() {
            let step = tls.answers.read_server(&tls.unread[taken..], &tls.served.needles(), &mut down);
            self.statuses.extend(tls.answers.take_status());
            match step {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(why) => {
                    tls.broken = Some(format!("the server's answer is not as it must be: {why}"));
                    break;
                }
            }
        }
        tls.unread.drain(..taken);
        let now = Instant::now();
        if taken > 0 {
            tls.held_since = now;
        }
        let waiting = tls.answers.waiting();
        let patience = if waiting < LONG { HOLD } else { HOLD_LONG };
        if tls.server_is_done {
            tls.answers.end(&tls.served.needles(), &mut down);
        } else if waiting > 0 && now - tls.held_since >= patience {
            tls.answers.release(&tls.served.needles(), &mut down);
        }
        if !down.is_empty() {
            tls.send_plain(&down, self.down.buffer());
        }
    }

    fn pass_requests(&mut self, tls: &mut Brokered) -> Option<String> {
        let target = self.target.clone()?;
        let outside = tls.outside.as_mut().filter(|_| tls.is_open)?;
        while self.up.waiting() < HELD && !self.held.is_empty() {
            let (length, rewritten) = match (tls.answers.are_over(), tls.answers.are_full()) {
                (true, _) => (self.held.len(), None),
                (false, true) => break,
                (false, false) => match tls.requests.step(&self.held) {
                    Step::More if tls.client_is_done => {
                        self.held.clear(); // the rest never comes
                        break;
                    }
                    Step::More => break,
                    Step::Content(length) => (length, None),
                    Step::Head(head, length) => {
                        if let Some(why) = front::check_request(&head, &target.host, target.port) {
                            return Some(why);
                        }
                        let rewritten = match tls.served.admit(&head) {
                            Ok(fields) => written(&head, &fields),
                            Err(why) => return Some(why),
                        };
                        // Not within another answer: the client sends its content after a while without it.
                        if expects_continue(&head) && tls.answers.are_idle() {
                            let _ = tls.inside.writer().write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                            drain(&mut tls.inside, self.down.buffer());
                        }
                        tls.answers.expect(&head);
                        (length, Some(rewritten))
                    }
                    Step::Invalid(_) if self.held.starts_with(HTTP_2_PREFACE) => return Some(HTTP_2_REFUSED.into()),
                    Step::Invalid(why) => return Some(format!("the request is not as it must be: {why}")),
                },
            };
            let _ = outside.writer().write_all(rewritten.as_deref().unwrap_or(&self.held[..length]));
            drain(outside, self.up.buffer());
            self.held.drain(..length);
        }
        self.held_back = self.up.waiting() >= HELD && !self.held.is_empty();
        if tls.client_is_done && !tls.server_has_end && self.held.is_empty() {
            outside.send_close_notify();
            (tls.server_has_end, self.up.ended) = (true, true);
        }
        drain(outside, self.up.buffer());
        None
    }

    fn send_out(&mut self, tls: &mut Brokered, budget: &mut Budget, throttled: bool) -> Result<Need, Errno> {
        if let (Back::Open, Some(server), Some(outside)) = (&self.back, &mut self.server, &mut tls.outside) {
            drain(outside, self.up.buffer());
            let pass = self.up.flush_within(server, budget)?;
            self.up.close_when_done(server)?;
            self.down.flush(&mut self.client)?;
            self.down.close_when_done(&self.client)?;
            if self.down.closed {
                return Ok(Need::End(!tls.is_closed));
            }
            if throttled || pass == Pass::Throttled || tls.answers.waiting() > 0 {
                return Ok(Need::Later);
            }
        } else if self.client_ended {
            return Ok(Need::End(false));
        }
        let has_room = std::mem::replace(&mut self.held_back, false) && self.up.waiting() < HELD;
        let can_read = has_room || self.can_read_client() || tls.outside.is_some() && self.can_read_server(tls);
        Ok(if can_read { Need::Again } else { Need::Nothing })
    }
}

fn client_fault(cause: &TlsError) -> String {
    match cause {
        TlsError::NoApplicationProtocol => HTTP_2_REFUSED.to_owned(),
        cause => format!("TLS of the client: {cause}"),
    }
}

/// Decrypts into `plain`. Returns whether the peer closed its side.
fn feed<Data: SideData>(
    tls: &mut ConnectionCommon<Data>,
    mut bytes: &[u8],
    plain: &mut Vec<u8>,
) -> Result<bool, TlsError> {
    let mut closed = false;
    while !bytes.is_empty() {
        match tls.read_tls(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
            Err(cause) => return Err(TlsError::General(cause.to_string())),
        }
        let state = tls.process_new_packets()?;
        let start = plain.len();
        plain.resize(start + state.plaintext_bytes_to_read(), 0);
        if state.plaintext_bytes_to_read() > 0 {
            tls.reader().read_exact(&mut plain[start..]).map_err(|cause| TlsError::General(cause.to_string()))?;
        }
        closed |= state.peer_has_closed();
    }
    Ok(closed)
}

fn drain<Data: SideData>(tls: &mut ConnectionCommon<Data>, out: &mut Vec<u8>) {
    while tls.wants_write() {
        // A vector accepts everything.
        if tls.write_tls(out).is_err() {
            return;
        }
    }
}
