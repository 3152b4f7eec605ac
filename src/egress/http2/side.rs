//! What one peer of a connection may say, and at which point.

use super::frame::*;
use super::hpack::{self, Decoder};
use super::{Broken, MOST_EMPTY};
use crate::sys::weaken;

/// Frames of one message's headers (a flood of CONTINUATION).
const MOST_PARTS: usize = 16;
/// Headers of which not all frames have come.
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends: bool,
    pub(super) parts: usize,
    pub(super) bytes: Vec<u8>,
}

/// One direction.
pub(super) struct Side {
    pub(super) decoder: Decoder,
    pub(super) block: Option<Block>,
    /// Whether headers were written to the other end.
    pub(super) has_written: bool,
    pub(super) has_settings: bool,
    pub(super) empty: u32,
}

impl Side {
    pub(super) fn new() -> Side {
        Side { decoder: Decoder::new(), block: None, has_written: false, has_settings: false, empty: 0 }
    }

    /// Takes a frame of headers; the whole block when it is there.
    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<Option<Block>, Broken> {
        let part = match frame.kind {
            HEADERS => {
                let (mut payload, _) = frame.unpadded()?;
                if frame.has(WITH_PRIORITY) {
                    payload = payload.get(5..).ok_or("a frame is torn")?;
                }
                let ends = frame.has(END_STREAM);
                self.block = Some(Block { stream: frame.stream, ends, parts: 0, bytes: Vec::new() });
                payload
            }
            _ => frame.payload,
        };
        let block = self
            .block
            .as_mut()
            .filter(|block| block.stream == frame.stream)
            .ok_or("headers go on that did not begin")?;
        block.parts += 1;
        block.bytes.extend_from_slice(part);
        let is_long = block.parts > MOST_PARTS || block.bytes.len() > hpack::MOST;
        if is_long && !weaken::is_off("http2-parts") {
            return Err(Broken("the headers are too long"));
        }
        Ok(if frame.has(END_HEADERS) { self.block.take() } else { None })
    }

    /// Whether the frame may come at this point.
    pub(super) fn check(&mut self, frame: &Frame<'_>) -> Result<(), Broken> {
        if self.block.is_some() != (frame.kind == CONTINUATION) {
            return Err(Broken("headers and other frames are mixed"));
        }
        if !self.has_settings && (frame.kind != SETTINGS || frame.has(ACKNOWLEDGED)) {
            return Err(Broken("the first frame has no settings"));
        }
        self.has_settings = true;
        let is_of_stream = matches!(frame.kind, DATA | HEADERS | RESET | PRIORITY | CONTINUATION | PUSH);
        let is_of_all = matches!(frame.kind, SETTINGS | PING | GO_AWAY);
        if is_of_stream && frame.stream == 0 || is_of_all && frame.stream != 0 {
            return Err(Broken("a frame is for the wrong stream"));
        }
        let length = frame.payload.len();
        let fits = match frame.kind {
            RESET | WINDOW => length == 4,
            PING => length == 8,
            PRIORITY => length == 5,
            SETTINGS => length.is_multiple_of(6) && (length == 0 || !frame.has(ACKNOWLEDGED)),
            GO_AWAY => length >= 8,
            _ => true,
        };
        if !fits {
            return Err(Broken("a frame has the wrong length"));
        }
        match frame.kind {
            PING | SETTINGS if frame.has(ACKNOWLEDGED) => {}
            PING | SETTINGS | PRIORITY => self.empty += 1,
            DATA if length == 0 && !frame.has(END_STREAM) => self.empty += 1,
            DATA | HEADERS | WINDOW => self.empty = 0,
            _ => {}
        }
        if self.empty > MOST_EMPTY && !weaken::is_off("http2-empty") {
            return Err(Broken("many frames that say nothing"));
        }
        Ok(())
    }
}
