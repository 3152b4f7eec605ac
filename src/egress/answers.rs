//! Hides needles in the HTTP/1.1 answers of a brokered host (RFC 9112, section 6). Pure.
//!
//! The search covers each head and trailer alone, and content across the borders of its chunks: chunks are written
//! again, without extensions.
//! Never passes an answer with an ambiguous end, an unrequested answer, or an unrequested change of protocol.

use super::broker::{Mask, Needles, asks_to_change};
use super::http::{self, Content, Head, LONGEST_HEAD};
use crate::sys::weaken;
use std::collections::VecDeque;

/// Outstanding requests; further ones wait.
const MOST_ASKED: usize = 256;
/// In bytes, with the chunk's extensions.
const LONGEST_SIZE: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// No content follows.
    Head,
    /// May change the protocol.
    Change,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    /// Content until the connection ends.
    Close,
    Size,
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    Trailers,
    /// Another protocol follows.
    Changed,
}

#[derive(Debug)]
pub(super) struct Answers {
    asked: VecDeque<RequestKind>,
    state: State,
    mask: Mask,
    status: Option<u16>,
}

impl Answers {
    pub(super) fn new() -> Answers {
        Answers { asked: VecDeque::new(), state: State::Head, mask: Mask::new(), status: None }
    }

    pub(super) fn expect(&mut self, head: &Head) {
        self.asked.push_back(match head.method.as_str() {
            "HEAD" => RequestKind::Head,
            _ if asks_to_change(head) => RequestKind::Change,
            _ => RequestKind::Other,
        });
    }

    /// Whether requests must wait: many answers are outstanding, or another protocol may follow.
    pub(super) fn are_full(&self) -> bool {
        self.asked.len() >= MOST_ASKED || self.asked.back() == Some(&RequestKind::Change)
    }

    pub(super) fn are_over(&self) -> bool {
        self.state == State::Changed
    }

    pub(super) fn are_idle(&self) -> bool {
        self.asked.is_empty() && self.state == State::Head
    }

    /// Whether the client has a part of an answer.
    pub(super) fn are_within_one(&self) -> bool {
        self.state != State::Head
    }

    pub(super) fn waiting(&self) -> usize {
        self.mask.waiting()
    }

    /// The status that the last step read.
    pub(super) fn take_status(&mut self) -> Option<u16> {
        self.status.take()
    }

    /// Returns how many bytes it took, 0 if more must come.
    pub(super) fn read_server(
        &mut self,
        bytes: &[u8],
        needles: &Needles,
        out: &mut Vec<u8>,
    ) -> Result<usize, &'static str> {
        let within = |left: u64| left.min(bytes.len() as u64) as usize;
        match self.state {
            _ if bytes.is_empty() => Ok(0),
            // A server of HTTP/2 begins with a frame of settings for stream 0 (RFC 9113, 3.4).
            State::Head if matches!(bytes, [0, _, _, 4, _, 0, 0, 0, 0, ..]) => {
                Err("it is HTTP/2, and brig adds secrets to HTTP/1.1 only")
            }
            State::Head => {
                let Some(Section { lines, length }) = section(bytes)? else { return Ok(0) };
                self.state = self.begin(&lines)?;
                out.extend(needles.hidden(&bytes[..length]));
                Ok(length)
            }
            State::Length(left) => {
                let count = within(left);
                self.mask.pass(needles, &bytes[..count], out);
                self.state = State::Length(left - count as u64);
                if self.state == State::Length(0) {
                    self.mask.finish(needles, out);
                    self.state = State::Head;
                }
                Ok(count)
            }
            State::Close | State::Changed => {
                self.mask.pass(needles, bytes, out);
                Ok(bytes.len())
            }
            State::Size => {
                let Some(text) = http::line(bytes, LONGEST_SIZE)? else { return Ok(0) };
                self.state = match http::chunk_size(text).ok_or("the size of a chunk is not a number")? {
                    0 => State::Trailers,
                    size => State::Chunk(size),
                };
                Ok(text.len() + 2)
            }
            State::Chunk(left) => {
                let (count, mut told) = (within(left), Vec::new());
                self.mask.pass(needles, &bytes[..count], &mut told);
                put_chunk(out, &told);
                self.state = if count as u64 == left { State::ChunkEnd } else { State::Chunk(left - count as u64) };
                Ok(count)
            }
            State::ChunkEnd => match bytes {
                [b'\r'] => Ok(0),
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(2)
                }
                _ => Err("a chunk does not end where it should"),
            },
            State::Trailers => {
                let Some(Section { lines, length }) = section(bytes)? else { return Ok(0) };
                fields(&lines)?;
                self.end(needles, out);
                out.extend_from_slice(b"0\r\n");
                out.extend(needles.hidden(&bytes[..length]));
                self.state = State::Head;
                Ok(length)
            }
        }
    }

    fn begin(&mut self, lines: &[&[u8]]) -> Result<State, &'static str> {
        let (first, rest) = lines.split_first().ok_or("an empty line before the answer")?;
        let (status, is_old) = status(first)?;
        let fields = fields(rest)?;
        let asked = *self.asked.front().ok_or("an answer without a request")?;
        match status {
            101 if asked != RequestKind::Change => return Err("a change of protocol without a request"),
            100 | 102..200 => return Ok(State::Head), // the final answer follows
            _ => {}
        }
        self.asked.pop_front();
        self.status = Some(status);
        if status == 101 || weaken::is_off("broker-chunks") {
            return Ok(State::Changed);
        }
        if asked == RequestKind::Head || matches!(status, 204 | 304) {
            return Ok(State::Head);
        }
        let says_length =
            ["content-length", "transfer-encoding"].iter().any(|name| http::values(&fields, name).next().is_some());
        Ok(match http::content(&fields, is_old)? {
            _ if !says_length => State::Close,
            Content::Length(0) => State::Head,
            Content::Length(length) => State::Length(length),
            Content::Chunked => State::Size,
        })
    }

    /// Sends held bytes after a long pause.
    pub(super) fn release(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        let mut told = Vec::new();
        self.mask.release(needles, &mut told);
        self.put(out, &told);
    }

    pub(super) fn end(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        let mut told = Vec::new();
        self.mask.finish(needles, &mut told);
        self.put(out, &told);
    }

    fn put(&self, out: &mut Vec<u8>, content: &[u8]) {
        match self.state {
            State::Size | State::Chunk(_) | State::ChunkEnd | State::Trailers => put_chunk(out, content),
            State::Head | State::Length(_) | State::Close | State::Changed => out.extend_from_slice(content),
        }
    }
}

fn put_chunk(out: &mut Vec<u8>, content: &[u8]) {
    if !content.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
    }
}

/// Up to the first empty line, which `length` includes.
struct Section<'all> {
    lines: Vec<&'all [u8]>,
    length: usize,
}

/// `None` until the section is whole.
fn section(bytes: &[u8]) -> Result<Option<Section<'_>>, &'static str> {
    let (mut at, mut lines) = (0, Vec::new());
    while let Some(text) = http::plain_line(&bytes[at..], LONGEST_HEAD)? {
        at += text.len() + 2;
        if at > LONGEST_HEAD {
            break;
        }
        if text.is_empty() {
            return Ok(Some(Section { lines, length: at }));
        }
        lines.push(text);
    }
    if bytes.len() > LONGEST_HEAD { Err("the head is too long") } else { Ok(None) }
}

/// Returns the status, and whether it is HTTP/1.0.
fn status(line: &[u8]) -> Result<(u16, bool), &'static str> {
    let is_old = match line.get(..9) {
        Some(b"HTTP/1.1 ") => false,
        Some(b"HTTP/1.0 ") => true,
        _ => return Err("it begins otherwise than HTTP/1.1 does"),
    };
    match line[9..] {
        [one @ b'1'..=b'9', two @ b'0'..=b'9', three @ b'0'..=b'9']
        | [one @ b'1'..=b'9', two @ b'0'..=b'9', three @ b'0'..=b'9', b' ', ..] => {
            let digit = |byte: u8| u16::from(byte - b'0');
            Ok((digit(one) * 100 + digit(two) * 10 + digit(three), is_old))
        }
        _ => Err("the status is not a number"),
    }
}

/// Only values contain bytes that are not UTF-8, and nothing reads those.
fn fields(lines: &[&[u8]]) -> Result<Vec<(String, String)>, &'static str> {
    lines.iter().map(|line| http::field(&String::from_utf8_lossy(line))).collect()
}

#[cfg(test)]
mod tests;
