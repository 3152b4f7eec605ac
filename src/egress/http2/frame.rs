//! Frames of HTTP/2 (RFC 9113, section 4 and 6): their heads, and the few that we write ourselves.

/// What a client says first (section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HEAD: usize = 9;
/// The longest frame: the default of the protocol, which we let nobody raise.
pub(super) const LONGEST: usize = 16_384;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GO_AWAY: u8 = 7;
pub(super) const WINDOW: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

/// Flags; the first means another thing with settings and pings.
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACKNOWLEDGED: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const WITH_PRIORITY: u8 = 0x20;

/// Reasons (section 7).
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const REFUSED: u32 = 7;
pub(super) const CALM: u32 = 11;

/// One frame as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'all> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: &'all [u8],
}

impl Frame<'_> {
    /// The first frame, if it is whole.
    pub(super) fn first(bytes: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if length > LONGEST {
            return Err("a frame is too long");
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let payload = bytes.get(HEAD..HEAD + length);
        Ok(payload.map(|payload| Frame { kind: head[3], flags: head[4], stream, payload }))
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload without its padding, and how many bytes that was (section 6.1).
    pub(super) fn unpadded(&self) -> Result<(&[u8], usize), &'static str> {
        if !self.has(PADDED) {
            return Ok((self.payload, 0));
        }
        let (&length, rest) = self.payload.split_first().ok_or("a frame is torn")?;
        let kept = rest.len().checked_sub(usize::from(length)).ok_or("a frame has more padding than bytes")?;
        Ok((&rest[..kept], usize::from(length) + 1))
    }
}

/// Writes a frame.
pub(super) fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Writes headers, in as many frames as it takes.
pub(super) fn put_headers(out: &mut Vec<u8>, stream: u32, block: &[u8], ends: bool) {
    let mut parts = block.chunks(LONGEST).peekable();
    let (mut kind, mut flags) = (HEADERS, if ends { END_STREAM } else { 0 });
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        put(out, kind, flags, stream, part);
        (kind, flags) = (CONTINUATION, 0);
    }
}

/// Writes content, in as many frames as it takes; at least one if the stream ends with it.
pub(super) fn put_data(out: &mut Vec<u8>, stream: u32, bytes: &[u8], ends: bool) {
    let mut parts = bytes.chunks(LONGEST).peekable();
    if parts.peek().is_none() && ends {
        put(out, DATA, END_STREAM, stream, &[]);
    }
    while let Some(part) = parts.next() {
        let flags = if ends && parts.peek().is_none() { END_STREAM } else { 0 };
        put(out, DATA, flags, stream, part);
    }
}

/// Gives a sender room that it used for nothing.
pub(super) fn put_window(out: &mut Vec<u8>, stream: u32, bytes: usize) {
    if bytes > 0 {
        put(out, WINDOW, 0, stream, &(bytes as u32).to_be_bytes());
    }
}

/// Ends one stream.
pub(super) fn put_reset(out: &mut Vec<u8>, stream: u32, code: u32) {
    put(out, RESET, 0, stream, &code.to_be_bytes());
}

/// Ends the connection, with words for people.
pub(super) fn put_go_away(out: &mut Vec<u8>, last: u32, code: u32, why: &str) {
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend(code.to_be_bytes());
    payload.extend(why.bytes().take(1024));
    put(out, GO_AWAY, 0, 0, &payload);
}
