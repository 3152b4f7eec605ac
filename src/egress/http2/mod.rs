//! HTTP/2 to a host of the broker's, as it passes (RFC 9113). Pure.
//!
//! In: what the client and the server say, and [`Rules`]. Out: what each is told. Streams, windows, pings and settings are those of the two
//! ends: a frame goes on as it is, with the same number and as many bytes, so that nothing waits here and no window has to be counted. Only
//! headers are read and written anew, and the answers' content is looked through.
//! Padding's room is given back at once, and headers unfold: what a peer makes of few bytes is the caller's to bound, by not going on while much waits.
//! A request that is refused never reaches the server; its stream alone is answered with 403.
//! Never: a frame that is understood in two ways, a state that a peer can make grow, a header that HTTP/1.1 behind the server could read otherwise.

mod frame;
mod hpack;
mod request;
mod side;
mod tables;

use super::broker::{Mask, Needles};
use super::http::Head;
use crate::sys::weaken;
use frame::*;
use side::{Block, Side};
use std::cell::Ref;
use std::collections::HashMap;

/// Streams at once; more are refused, as they may be (section 5.1.2).
const MOST_STREAMS: usize = 256;
/// Streams that a client may open and give up, over those that came to an end (rapid reset, CVE-2023-44487).
const MOST_RESETS: u32 = 200;
/// Frames in a row that carry nothing: pings, settings, empty content.
const MOST_EMPTY: u32 = 1000;

/// Bytes that are kept of the client's room for answers of ours.
const RESERVE: usize = 4096;

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

impl From<&'static str> for Broken {
    fn from(why: &'static str) -> Broken {
        Broken(why)
    }
}

/// What holds for the requests and answers of a connection.
pub(super) trait Rules {
    /// The request's headers as the server gets them, or why it does not.
    fn admit(&mut self, head: &Head) -> Result<Vec<(String, Vec<u8>)>, String>;
    /// What is hidden in answers.
    fn needles(&self) -> Ref<'_, Needles>;
}

struct Stream {
    mask: Mask,
    /// What the request's content must still have, where that was said.
    left: Option<u64>,
    client_ended: bool,
    server_ended: bool,
    /// The final head of the answer has come: what headers come now end the stream.
    is_answered: bool,
}

/// One connection.
pub(super) struct Relay {
    client: Side,
    server: Side,
    greeted: bool,
    streams: HashMap<u32, Stream>,
    last: u32,
    resets: u32,
    /// Room of the client's for content that the server does not know of: what our own answers may take.
    reserve: usize,
    /// How much of an answer the client takes on one stream before it has read any.
    first_window: usize,
    /// Refusals since somebody last asked.
    notes: Vec<String>,
    status: Option<u16>,
}

impl Relay {
    pub(super) fn new() -> Relay {
        let (client, server) = (Side::new(), Side::new());
        Relay {
            client,
            server,
            greeted: false,
            streams: HashMap::new(),
            last: 0,
            resets: 0,
            reserve: 0,
            first_window: 65_535,
            notes: Vec::new(),
            status: None,
        }
    }

    /// Why requests were refused since the last question.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The status of an answer that the last step began.
    pub(super) fn take_status(&mut self) -> Option<u16> {
        self.status.take()
    }

    /// Whether bytes are held back that may be the beginning of a secret: how many at most.
    pub(super) fn waiting(&self) -> usize {
        self.streams.values().map(|stream| stream.mask.waiting()).max().unwrap_or(0)
    }

    /// Tells them, because nothing more has come for long.
    pub(super) fn release(&mut self, rules: &dyn Rules, down: &mut Vec<u8>) {
        for (number, stream) in &mut self.streams {
            let mut out = Vec::new();
            stream.mask.release(&rules.needles(), &mut out);
            put_data(down, *number, &out, false);
        }
    }

    /// The last words to a client whose connection cannot go on.
    pub(super) fn farewell(&self, why: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let code = if self.resets > MOST_RESETS || self.client.empty > MOST_EMPTY { CALM } else { PROTOCOL_ERROR };
        put_go_away(&mut out, self.last, code, why);
        out
    }

    /// One step with what the client says: how many bytes were taken, 0 if more must come.
    pub(super) fn client_says(
        &mut self,
        bytes: &[u8],
        rules: &mut dyn Rules,
        (up, down): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<usize, Broken> {
        if !self.greeted {
            if !PREFACE.starts_with(&bytes[..bytes.len().min(PREFACE.len())]) {
                return Err(Broken("the client begins otherwise than HTTP/2 does"));
            }
            if bytes.len() < PREFACE.len() {
                return Ok(0);
            }
            self.greeted = true;
            up.extend_from_slice(PREFACE);
            return Ok(PREFACE.len());
        }
        let Some(frame) = Frame::first(bytes)? else { return Ok(0) };
        self.client.check(&frame)?;
        let length = HEAD + frame.payload.len();
        match frame.kind {
            DATA => self.client_data(&frame, (up, down))?,
            HEADERS | CONTINUATION => {
                if let Some(block) = self.client.take(&frame)? {
                    self.request(&block, rules, (up, down))?;
                }
            }
            RESET => {
                if frame.stream > self.last {
                    return Err(Broken("a stream ends that did not begin"));
                }
                if self.streams.remove(&frame.stream).is_some() {
                    self.resets += 1;
                    put(up, RESET, 0, frame.stream, frame.payload);
                }
                if self.resets > MOST_RESETS && !weaken::is_off("http2-resets") {
                    return Err(Broken("many requests were given up at once"));
                }
            }
            SETTINGS => {
                settings(&frame, true, up);
                self.first_window = first_window(&frame).unwrap_or(self.first_window);
            }
            PING | GO_AWAY => put(up, frame.kind, frame.flags & ACKNOWLEDGED, 0, frame.payload),
            WINDOW if frame.stream == 0 => self.give(&frame, up)?,
            WINDOW if self.streams.contains_key(&frame.stream) => put(up, WINDOW, 0, frame.stream, frame.payload),
            PUSH => return Err(Broken("a client pushes")),
            _ => {} // of a stream that is over, or of an extension that both ends would have to know
        }
        Ok(length)
    }

    fn client_data(&mut self, frame: &Frame<'_>, (up, down): (&mut Vec<u8>, &mut Vec<u8>)) -> Result<(), Broken> {
        if frame.stream > self.last {
            return Err(Broken("content without a request"));
        }
        let (content, padding) = frame.unpadded()?;
        let ends = frame.has(END_STREAM);
        let Some(stream) = self.streams.get_mut(&frame.stream).filter(|stream| !stream.client_ended) else {
            // The server never sees these. Who was refused may say all the same what it wanted to: some clients take a reset for the answer.
            put_window(down, 0, frame.payload.len());
            put_window(down, frame.stream, if ends { 0 } else { frame.payload.len() });
            return Ok(());
        };
        let short = stream.left.is_some_and(|left| left < content.len() as u64 || ends && left > content.len() as u64);
        if short && !weaken::is_off("http2-length") {
            // Whoever passes this on as HTTP/1.1 would take the rest for another request (section 8.1.1).
            self.streams.remove(&frame.stream);
            self.notes.push("the request's content is not as long as was said".into());
            put_reset(up, frame.stream, PROTOCOL_ERROR);
            put_reset(down, frame.stream, PROTOCOL_ERROR);
            put_window(down, 0, frame.payload.len());
            return Ok(());
        }
        stream.left = stream.left.map(|left| left.saturating_sub(content.len() as u64));
        stream.client_ended = ends;
        put_window(down, 0, padding);
        put_window(down, frame.stream, padding);
        if !content.is_empty() || ends {
            put_data(up, frame.stream, content, ends);
        }
        self.settle(frame.stream);
        Ok(())
    }

    fn request(
        &mut self,
        block: &Block,
        rules: &mut dyn Rules,
        (up, down): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), Broken> {
        let fields = self.client.decoder.read(&block.bytes)?;
        if block.stream <= self.last {
            if self.streams.remove(&block.stream).is_some() {
                self.notes.push("a trailer".into()); // it could name another host to a careless server
                put_reset(up, block.stream, PROTOCOL_ERROR);
                put_reset(down, block.stream, PROTOCOL_ERROR);
            }
            return Ok(());
        }
        if block.stream.is_multiple_of(2) {
            return Err(Broken("a client's stream has an even number"));
        }
        self.last = block.stream;
        if self.streams.len() >= MOST_STREAMS {
            put_reset(down, block.stream, REFUSED);
            return Ok(());
        }
        let read = request::read(fields, block.ends);
        let admitted =
            read.map_err(str::to_owned).and_then(|(head, left)| Ok((request::write(rules.admit(&head)?, &head), left)));
        match admitted {
            Ok((fields, left)) => {
                let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
                let is_first = !std::mem::replace(&mut self.server.has_written, true);
                put_headers(up, block.stream, &hpack::write(&fields, is_first), block.ends);
                let stream = Stream {
                    mask: Mask::new(),
                    left,
                    client_ended: block.ends,
                    server_ended: false,
                    is_answered: false,
                };
                self.streams.insert(block.stream, stream);
            }
            Err(why) => {
                self.answer(block.stream, &why, down);
                self.notes.push(why);
            }
        }
        Ok(())
    }

    /// The client has room for more. A little of it is kept for answers of ours: the server counts on all that it hears of.
    fn give(&mut self, frame: &Frame<'_>, up: &mut Vec<u8>) -> Result<(), Broken> {
        let room = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff) as usize;
        if room == 0 {
            return Err(Broken("room for nothing"));
        }
        let kept = RESERVE.saturating_sub(self.reserve).min(room);
        self.reserve += kept;
        put_window(up, 0, room - kept);
        Ok(())
    }

    /// Answers 403: with the reason as its content, if there is room for that, and in a header in any case.
    fn answer(&mut self, stream: u32, why: &str, down: &mut Vec<u8>) {
        let why: String = why.chars().map(|each| if (' '..='~').contains(&each) { each } else { '?' }).collect();
        let mut body = format!("brig: {why}\n");
        if body.len() > self.reserve.min(self.first_window) {
            body.clear();
        }
        self.reserve -= body.len();
        let length = body.len().to_string();
        let fields: [(&[u8], &[u8]); 4] = [
            (b":status", b"403"),
            (b"content-type", b"text/plain"),
            (b"content-length", length.as_bytes()),
            (b"brig", why.trim().as_bytes()),
        ];
        let is_first = !std::mem::replace(&mut self.client.has_written, true);
        put_headers(down, stream, &hpack::write(&fields, is_first), body.is_empty());
        if !body.is_empty() {
            put_data(down, stream, body.as_bytes(), true);
        }
    }

    /// One step with what the server says: how many bytes were taken, 0 if more must come.
    pub(super) fn server_says(
        &mut self,
        bytes: &[u8],
        rules: &mut dyn Rules,
        (up, down): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<usize, Broken> {
        let Some(frame) = Frame::first(bytes)? else { return Ok(0) };
        self.server.check(&frame)?;
        let length = HEAD + frame.payload.len();
        match frame.kind {
            DATA => {
                let (content, padding) = frame.unpadded()?;
                let ends = frame.has(END_STREAM);
                match self.streams.get_mut(&frame.stream).filter(|stream| !stream.server_ended) {
                    Some(stream) => {
                        let mut out = Vec::with_capacity(content.len());
                        stream.mask.pass(&rules.needles(), content, &mut out);
                        if ends {
                            stream.mask.finish(&rules.needles(), &mut out);
                        }
                        stream.server_ended = ends;
                        put_window(up, 0, padding);
                        put_window(up, frame.stream, padding);
                        put_data(down, frame.stream, &out, ends);
                        self.settle(frame.stream);
                    }
                    // Given up meanwhile: the client never sees these.
                    None => put_window(up, 0, frame.payload.len()),
                }
            }
            HEADERS | CONTINUATION => {
                if let Some(block) = self.server.take(&frame)? {
                    self.response(&block, rules, down)?;
                }
            }
            RESET if self.streams.remove(&frame.stream).is_some() => {
                self.resets = self.resets.saturating_sub(1);
                put(down, RESET, 0, frame.stream, frame.payload);
            }
            RESET => {} // of a stream that has ended already
            SETTINGS => settings(&frame, false, down),
            PING => put(down, PING, frame.flags & ACKNOWLEDGED, 0, frame.payload),
            GO_AWAY => put(down, GO_AWAY, 0, 0, &frame.payload[..8]), // its words could be the secret's
            WINDOW if frame.stream == 0 || self.streams.contains_key(&frame.stream) => {
                put(down, WINDOW, 0, frame.stream, frame.payload);
            }
            PUSH => return Err(Broken("the server pushes, although it was told not to")),
            _ => {}
        }
        Ok(length)
    }

    fn response(&mut self, block: &Block, rules: &mut dyn Rules, down: &mut Vec<u8>) -> Result<(), Broken> {
        let fields = self.server.decoder.read(&block.bytes)?;
        let Some(stream) = self.streams.get_mut(&block.stream).filter(|stream| !stream.server_ended) else {
            return Ok(());
        };
        let status = fields.iter().find(|(name, _)| name == b":status").map(|(_, value)| value.as_slice());
        if stream.is_answered != status.is_none() || stream.is_answered && !block.ends {
            return Err(Broken("the server's headers are not an answer's"));
        }
        stream.is_answered = status.is_none_or(|status| !status.starts_with(b"1"));
        let number = status.filter(|status| status.len() == 3 && stream.is_answered);
        self.status = number.and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
        let needles = rules.needles();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (needles.hidden(name), needles.hidden(value))).collect();
        if block.ends {
            let mut rest = Vec::new();
            stream.mask.finish(&needles, &mut rest);
            put_data(down, block.stream, &rest, false);
        }
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let is_first = !std::mem::replace(&mut self.client.has_written, true);
        put_headers(down, block.stream, &hpack::write(&fields, is_first), block.ends);
        stream.server_ended = block.ends;
        self.settle(block.stream);
        Ok(())
    }

    /// Forgets a stream that is over.
    fn settle(&mut self, number: u32) {
        if self.streams.get(&number).is_some_and(|stream| stream.client_ended && stream.server_ended) {
            self.streams.remove(&number);
            self.resets = self.resets.saturating_sub(1);
        }
    }
}

/// How much of an answer the client takes on a new stream, if the settings say so.
fn first_window(frame: &Frame<'_>) -> Option<usize> {
    const FIRST_WINDOW: [u8; 2] = [0, 4];
    let (all, _) = frame.payload.as_chunks::<6>();
    let found = all.iter().rev().find(|each| each[..2] == FIRST_WINDOW)?;
    Some(u32::from_be_bytes(*found.last_chunk()?) as usize)
}

/// Passes on those settings that are between the two ends; the others are ours, and stay at their defaults.
fn settings(frame: &Frame<'_>, is_client: bool, out: &mut Vec<u8>) {
    const ENABLE_PUSH: [u8; 2] = [0, 2];
    const STREAMS: [u8; 2] = [0, 3];
    const FIRST_WINDOW: [u8; 2] = [0, 4];
    const HEADERS_AT_MOST: [u8; 2] = [0, 6];
    if frame.has(ACKNOWLEDGED) {
        return put(out, SETTINGS, ACKNOWLEDGED, 0, &[]);
    }
    let (all, _) = frame.payload.as_chunks::<6>();
    let mut kept: Vec<u8> = Vec::new();
    for each in all {
        if [STREAMS, FIRST_WINDOW, HEADERS_AT_MOST].contains(&[each[0], each[1]]) {
            kept.extend_from_slice(each);
        }
    }
    if is_client {
        kept.extend_from_slice(&[ENABLE_PUSH[0], ENABLE_PUSH[1], 0, 0, 0, 0]);
    }
    put(out, SETTINGS, 0, 0, &kept);
}

#[cfg(test)]
mod attacks;
