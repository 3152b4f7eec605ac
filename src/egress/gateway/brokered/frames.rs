//! How answers pass, and the same by HTTP/2: which of the two it is, and how frames pass (`egress::http2` says what becomes of each).

use super::super::connection::{Connection, HELD, Target};
use super::super::ends::drain;
use super::super::front;
use super::{Brokered, HOLD, HOLD_LONG, LONG};
use crate::egress::broker::{HTTP_2, Needles, Served};
use crate::egress::http::Head;
use crate::egress::http2::{Broken, Relay, Rules};
use std::cell::Ref;
use std::io::Write;
use std::time::Instant;

/// What holds for the requests and answers of a connection by HTTP/2.
struct Guard<'all> {
    served: &'all Served,
    target: &'all Target,
}

impl Rules for Guard<'_> {
    fn admit(&mut self, head: &Head) -> Result<Vec<(String, Vec<u8>)>, String> {
        match front::objection(head, &self.target.host, self.target.port) {
            Some(why) => Err(why),
            None => self.served.admit(head),
        }
    }

    fn needles(&self) -> Ref<'_, Needles> {
        self.served.needles()
    }
}

impl Connection {
    /// Answers a hello that waited, when it is known what the server speaks or that there will be none; a refusal is returned.
    pub(super) fn settle_protocol(&mut self, tls: &mut Brokered) -> Option<String> {
        if !tls.inside.waits() || !tls.is_open && tls.failed.is_none() {
            return None;
        }
        let agreed = tls.outside.as_ref().and_then(|outside| outside.alpn_protocol());
        let is_two = tls.failed.is_none() && agreed == Some(HTTP_2);
        tls.two = is_two.then(|| Box::new(Relay::new()));
        if let Err(cause) = tls.inside.open(is_two, (&mut self.held, self.down.buffer())) {
            tls.is_broken = true;
            return Some(format!("TLS of the client: {cause}"));
        }
        self.pass_answers(tls);
        None
    }

    /// Passes on what the server says, and what was held back for too long.
    pub(super) fn pass_answers(&mut self, tls: &mut Brokered) {
        if tls.inside.waits() {
            return;
        }
        let (Some(target), true) = (&self.target, tls.outside.is_some()) else { return };
        let mut rules = Guard { served: &tls.served, target };
        let (mut up, mut down, mut taken) = (Vec::new(), Vec::new(), 0);
        tls.is_behind = false;
        while taken < tls.heard.len() {
            if !self.has_room(up.len(), down.len()) {
                tls.is_behind = true;
                break;
            }
            let bytes = &tls.heard[taken..];
            let step = match &mut tls.two {
                Some(two) => two.server_says(bytes, &mut rules, (&mut up, &mut down)).map_err(|Broken(why)| why),
                None => tls.one.server_says(bytes, &tls.served.needles(), &mut down),
            };
            let status = tls.two.as_mut().map_or_else(|| tls.one.take_status(), |two| two.take_status());
            self.statuses.extend(status);
            match step {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(why) => {
                    tls.broken = Some(format!("the server's answer is not as it must be: {why}"));
                    break;
                }
            }
        }
        tls.heard.drain(..taken);
        let now = Instant::now();
        if taken > 0 {
            tls.held_since = now;
        }
        let waiting = tls.waiting();
        let patience = if waiting < LONG { HOLD } else { HOLD_LONG };
        let is_late = waiting > 0 && now - tls.held_since >= patience;
        let is_over = tls.is_answered && !tls.is_behind;
        match &mut tls.two {
            Some(two) if is_late || is_over => two.release(&rules, &mut down),
            None if is_over => tls.one.end(&tls.served.needles(), &mut down),
            None if is_late => tls.one.release(&tls.served.needles(), &mut down),
            _ => {}
        }
        let Some(outside) = &mut tls.outside else { return };
        // A buffer without a limit takes everything.
        let _ = outside.writer().write_all(&up);
        drain(outside, self.up.buffer());
        if !down.is_empty() {
            tls.say(&down, self.down.buffer());
        }
    }

    /// Passes on what the client asks by HTTP/2; what ends the connection is returned.
    pub(super) fn pass_frames(&mut self, tls: &mut Brokered) -> Option<String> {
        let (Some(two), Some(target), Some(outside)) = (&mut tls.two, &self.target, &mut tls.outside) else {
            return None;
        };
        let mut rules = Guard { served: &tls.served, target };
        let (mut down, mut broken) = (Vec::new(), None);
        while self.up.waiting() < HELD && self.down.waiting() + down.len() < HELD && !self.held.is_empty() {
            let mut up = Vec::new();
            let taken = two.client_says(&self.held, &mut rules, (&mut up, &mut down));
            let _ = outside.writer().write_all(&up);
            drain(outside, self.up.buffer());
            match taken {
                Ok(0) if tls.is_said => self.held.clear(), // it will never be whole
                Ok(0) => break,
                Ok(count) => drop(self.held.drain(..count)),
                Err(Broken(why)) => {
                    broken = Some(why.to_owned());
                    break;
                }
            }
        }
        self.notes.extend(two.take_notes());
        if !down.is_empty() {
            tls.say(&down, self.down.buffer());
        }
        broken
    }
}
