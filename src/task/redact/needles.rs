//! The forms of a secret's value.

use super::SHORTEST;
use super::written::{in_base32, in_bytes, in_html, in_one_case, in_shells, in_utf_16};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use std::collections::HashSet;

#[derive(Clone)]
pub(super) struct Needle {
    bytes: Box<[u8]>,
    name: usize,
    /// Whether programs break lines within it, as base64(1) does.
    wraps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    No,
    /// The text ends inside a possible match.
    Begun,
    /// A match of this length in the text.
    Whole(usize),
}

/// An earlier line break would hold back each line that ends in the form's first letters. A shifted form finds the
/// value without them.
const BEFORE_BREAK: usize = 4;
/// Line breaks in a row within a match: a terminal writes a blank line between two pieces. More would hold back a text
/// of line breaks.
pub(super) const MOST_BREAKS: usize = 4;
/// The least length of a line of a multi-line value, such as a key, to search alone.
const LINE: usize = 16;

impl Needle {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_vec()
    }

    /// The number of the value's name.
    pub(super) fn name(&self) -> usize {
        self.name
    }

    pub(super) fn same_as(&self, other: &Needle) -> bool {
        self.bytes == other.bytes && self.wraps == other.wraps
    }

    /// What a text may have before the byte at `index`.
    fn breaks(&self, index: usize) -> &'static [u8] {
        match self.bytes[index] {
            b'\n' => b"\r",
            _ if self.wraps && index >= BEFORE_BREAK => b"\r\n",
            _ => b"",
        }
    }

    /// Passes on the first [`SHORTEST`] bytes of each text that matches.
    pub(super) fn openings(&self, add: &mut impl FnMut([u8; SHORTEST])) {
        self.open([0; SHORTEST], 0, 0, add);
    }

    fn open(&self, mut opening: [u8; SHORTEST], at: usize, index: usize, add: &mut impl FnMut([u8; SHORTEST])) {
        if at == SHORTEST {
            return add(opening);
        }
        opening[at] = self.bytes[index];
        self.open(opening, at + 1, index + 1, add);
        for &byte in self.breaks(index) {
            opening[at] = byte;
            self.open(opening, at + 1, index, add);
        }
    }

    /// Accepts line breaks: a terminal writes `\r\n` for `\n`.
    pub(super) fn compare(&self, text: &[u8]) -> Compared {
        if text.starts_with(&self.bytes) {
            return Compared::Whole(self.bytes.len());
        }
        let mut at = 0;
        for (index, &wanted) in self.bytes.iter().enumerate() {
            let most = at + MOST_BREAKS;
            loop {
                match text.get(at) {
                    None => return Compared::Begun,
                    Some(&byte) if byte == wanted => break,
                    Some(byte) if at < most && self.breaks(index).contains(byte) => at += 1,
                    Some(_) => return Compared::No,
                }
            }
            at += 1;
        }
        Compared::Whole(at)
    }
}

/// Each form once; empty for a value that is too short.
pub(super) fn forms(value: &[u8], name: usize) -> Vec<Needle> {
    let mut all: Vec<(Vec<u8>, bool)> = Vec::new();
    let trimmed = value.trim_ascii();
    if trimmed.len() < SHORTEST {
        return Vec::new();
    }
    let mut wholes = vec![trimmed];
    if trimmed.contains(&b'\n') {
        wholes.extend(trimmed.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| line.len() >= LINE));
    }
    for whole in wholes {
        all.push((whole.to_vec(), false));
        all.extend(in_base64(whole).into_iter().map(|form| (form, true)));
        // Without its last byte it is a part of the big-endian form, too.
        if let Some([utf_16 @ .., _]) = in_utf_16(whole).first().map(Vec::as_slice) {
            all.extend(in_base64(utf_16).into_iter().map(|form| (form, true)));
        }
        all.extend(in_hex(whole).into_iter().chain(in_base32(whole)).map(|form| (form, true)));
        let plain = in_urls(whole).into_iter().chain(in_json(whole)).chain(in_html(whole)).chain(in_shells(whole));
        let bytes = in_bytes(whole).into_iter().chain(in_utf_16(whole)).chain(in_one_case(whole));
        all.extend(plain.chain(bytes).map(|form| (form, false)));
    }
    let (mut needles, mut known) = (Vec::new(), HashSet::new());
    for (bytes, wraps) in all {
        let shifted = (wraps && !is_base32(&bytes)).then(|| bytes[BEFORE_BREAK - 1..].to_vec());
        for bytes in [Some(bytes), shifted].into_iter().flatten() {
            if bytes.len() >= SHORTEST && known.insert(bytes.clone()) {
                needles.push(Needle { bytes: bytes.into(), name, wraps });
            }
        }
    }
    needles
}

/// There are many such forms; up to three of their letters before a line break stay visible.
fn is_base32(form: &[u8]) -> bool {
    form.iter().all(|byte| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(byte))
}

/// The letters that do not depend on the neighbouring bytes, at each of three offsets (RFC 4648).
fn in_base64(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let padded = [&vec![0; before], value].concat();
        let first = (before * 8).div_ceil(6);
        let end = padded.len() * 8 / 6;
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            forms.push(engine.encode(&padded).as_bytes()[first..end].to_vec());
        }
    }
    forms
}

fn in_hex(value: &[u8]) -> [Vec<u8>; 2] {
    let hex = |upper: bool| {
        value
            .iter()
            .flat_map(|byte| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") }.into_bytes())
            .collect()
    };
    [hex(false), hex(true)]
}

/// Bytes that URLs leave unescaped: by RFC 3986, encodeURIComponent, Python's quote, encodeURI.
const KEPT: [&[u8]; 4] = [b"-._~", b"-._~!'()*", b"-._~/", b"-._~!'()*;/?:@&=+$,#"];

fn in_urls(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for kept in KEPT {
        for upper in [true, false] {
            for space in [&b"%20"[..], b"+"] {
                let escape = |&byte: &u8| match byte {
                    b' ' => space.to_vec(),
                    _ if byte.is_ascii_alphanumeric() || kept.contains(&byte) => vec![byte],
                    _ if upper => format!("%{byte:02X}").into_bytes(),
                    _ => format!("%{byte:02x}").into_bytes(),
                };
                forms.push(value.iter().flat_map(escape).collect());
            }
        }
    }
    forms
}

/// As serde and JavaScript write it, with slashes escaped (PHP), in ASCII (Python), and safe for HTML (Go).
fn in_json(value: &[u8]) -> Vec<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(value) else { return Vec::new() };
    let Ok(quoted) = serde_json::to_string(text) else { return Vec::new() };
    let plain = quoted[1..quoted.len() - 1].to_owned();
    let ascii = |text: &str, also: &[char]| -> String {
        let escape = |character: char| {
            if character.is_ascii() && !also.contains(&character) {
                return character.to_string();
            }
            character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        };
        text.chars().map(escape).collect()
    };
    let html: String = plain
        .chars()
        .map(|each| if "<>&".contains(each) { format!("\\u{:04x}", u32::from(each)) } else { each.to_string() })
        .collect();
    let forms = [plain.replace('/', "\\/"), ascii(&plain, &[]), ascii(&plain, &['<', '>', '&']), html, plain];
    // A string in a string, as in a log of JSON lines that quotes an answer.
    let twice = forms.clone().map(|form| form.replace('\\', "\\\\").replace('"', "\\\""));
    forms.into_iter().chain(twice).map(String::into_bytes).collect()
}
