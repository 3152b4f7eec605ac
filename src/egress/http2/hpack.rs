//! Headers of HTTP/2 in their compressed form (RFC 7541). Read as a whole, with bounds on all that grows; written plainly: without a table, so
//! that nothing of one request is in another, and without a code whose lengths would tell of a secret.

use super::tables::{LENGTHS, STATIC};
use crate::sys::weaken;
use std::collections::VecDeque;

/// The size of the table that a peer may fill: the default of the protocol, which we never change.
const TABLE: usize = 4096;
/// What an entry counts besides its bytes (section 4.1).
const OVERHEAD: usize = 32;
/// All names and values of one message together, counted like that: what a few bytes can unfold to (an HPACK bomb).
pub(super) const MOST: usize = 64 * 1024;

pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Reads the headers of one direction of a connection.
#[derive(Debug)]
pub(super) struct Decoder {
    entries: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder { entries: VecDeque::new(), size: 0, limit: TABLE }
    }

    /// Reads a whole block. After an error the table is not what the peer believes it to be: the connection cannot go on.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Vec<Field>, &'static str> {
        let mut rest = block;
        let (mut fields, mut total) = (Vec::new(), 0);
        while let Some(&first) = rest.first() {
            let field = if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                self.entry(index)?
            } else if first & 0xe0 == 0x20 {
                let limit = integer(&mut rest, 5)?;
                if !fields.is_empty() || limit > TABLE {
                    return Err("a change of the table's size where there is none");
                }
                self.limit = limit;
                self.shrink(limit);
                continue;
            } else {
                let keeps = first & 0x40 != 0;
                let index = integer(&mut rest, if keeps { 6 } else { 4 })?;
                let name = if index == 0 { string(&mut rest)? } else { self.entry(index)?.0 };
                let field = (name, string(&mut rest)?);
                if keeps {
                    self.keep(field.clone());
                }
                field
            };
            total += weight(&field);
            if total > MOST && !weaken::is_off("hpack-bomb") {
                return Err("the headers are too long");
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn entry(&self, index: usize) -> Result<Field, &'static str> {
        let unknown = "a header of a number that nobody gave";
        let place = index.checked_sub(1).ok_or(unknown)?;
        match STATIC.get(place) {
            Some((name, value)) => Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
            None => self.entries.get(place - STATIC.len()).cloned().ok_or(unknown),
        }
    }

    fn keep(&mut self, field: Field) {
        let weight = weight(&field);
        self.shrink(self.limit.saturating_sub(weight));
        if weight <= self.limit {
            self.size += weight;
            self.entries.push_front(field);
        }
    }

    fn shrink(&mut self, limit: usize) {
        while self.size > limit
            && let Some(last) = self.entries.pop_back()
        {
            self.size -= weight(&last);
        }
    }
}

fn weight((name, value): &Field) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// An integer whose first byte has `bits` for it (section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, &'static str> {
    const TORN: &str = "the headers are torn";
    let most = (1_usize << bits) - 1;
    let (&first, mut after) = rest.split_first().ok_or(TORN)?;
    let mut value = usize::from(first) & most;
    if value == most {
        for shift in (0..).step_by(7) {
            let (&byte, more) = after.split_first().ok_or(TORN)?;
            after = more;
            if shift > 21 {
                return Err("a number in the headers is too large");
            }
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = after;
    Ok(value)
}

fn string(rest: &mut &[u8]) -> Result<Vec<u8>, &'static str> {
    let is_coded = rest.first().is_some_and(|byte| byte & 0x80 != 0);
    let length = integer(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or("the headers are torn")?;
    *rest = after;
    if is_coded { decode(text) } else { Ok(text.to_vec()) }
}

/// Huffman's code (section 5.2): what remains at the end must be the beginning of the code of the end, shorter than a byte.
fn decode(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    const LONGEST: u32 = 30;
    const WRONG: &str = "the headers are coded wrongly";
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text {
        for place in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> place & 1);
            count += 1;
            match CODE.symbol(bits, count) {
                Some(256) => return Err(WRONG),
                Some(symbol) => {
                    out.push(symbol as u8);
                    (bits, count) = (0, 0);
                }
                None if count >= LONGEST => return Err(WRONG),
                None => {}
            }
        }
    }
    let is_padding = count < 8 && bits == (1 << count) - 1;
    if is_padding { Ok(out) } else { Err(WRONG) }
}

/// For each length: the first code, and where its symbols begin in their order.
struct Code {
    first: [u32; 32],
    start: [usize; 32],
    symbols: [u16; 257],
}

impl Code {
    const fn new() -> Code {
        let (mut first, mut start, mut symbols) = ([0_u32; 32], [0_usize; 32], [0_u16; 257]);
        let (mut length, mut next, mut placed) = (1, 0_u32, 0);
        while length < 32 {
            next <<= 1;
            (first[length], start[length]) = (next, placed);
            let mut symbol = 0;
            while symbol < 257 {
                if LENGTHS[symbol] as usize == length {
                    symbols[placed] = symbol as u16;
                    placed += 1;
                    next += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        Code { first, start, symbols }
    }

    fn symbol(&self, bits: u32, count: u32) -> Option<u16> {
        let length = count as usize;
        let offset = bits.checked_sub(self.first[length])? as usize;
        let place = self.start[length] + offset;
        (place < *self.start.get(length + 1)?).then(|| self.symbols[place])
    }
}

static CODE: Code = Code::new();

/// Writes headers, each as it is. The first block of a connection says that no table is used.
pub(super) fn write(fields: &[(&[u8], &[u8])], is_first: bool) -> Vec<u8> {
    const NO_TABLE: u8 = 0x20;
    /// Nobody on the way may keep it (section 7.1.3).
    const NEVER_KEPT: u8 = 0x10;
    let mut out = if is_first { vec![NO_TABLE] } else { Vec::new() };
    for (name, value) in fields {
        out.push(NEVER_KEPT);
        for text in [name, value] {
            let length = text.len();
            if length < 0x7f {
                out.push(length as u8);
            } else {
                out.push(0x7f);
                let mut rest = length - 0x7f;
                while rest >= 0x80 {
                    out.push((rest & 0x7f) as u8 | 0x80);
                    rest >>= 7;
                }
                out.push(rest as u8);
            }
            out.extend_from_slice(text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    fn text(fields: &[Field]) -> String {
        let line =
            |(name, value): &Field| format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        fields.iter().map(line).collect()
    }

    #[test]
    fn the_examples_of_the_specification_are_read() {
        // RFC 7541, C.4: three requests with one table, in Huffman's code.
        let mut decoder = Decoder::new();
        let first = decoder.read(&bytes("828684418cf1e3c2e5f23a6ba0ab90f4ff")).unwrap();
        assert_eq!(text(&first), ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n");
        let second = decoder.read(&bytes("828684be5886a8eb10649cbf")).unwrap();
        assert_eq!(text(&second).lines().last(), Some("cache-control: no-cache"));
        let third = decoder.read(&bytes("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")).unwrap();
        assert_eq!(
            text(&third),
            ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value\n"
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let long = vec![b'x'; 5000];
        let block = write(&[(b":method", b"GET"), (b"x-long", &long), (b"empty", b"")], true);
        let fields = Decoder::new().read(&block).unwrap();
        assert_eq!(fields[1], (b"x-long".to_vec(), long));
        assert_eq!(fields.len(), 3);
    }

    #[test]
    fn headers_that_unfold_without_end_are_refused() {
        // One entry of 4,000 bytes, then its number a thousand times: 1 KiB that would be 4 MiB.
        let mut bomb = vec![0x40, 1, b'x'];
        bomb.extend([0x7f, 0xa1, 0x1e]);
        bomb.extend(vec![b'y'; 4000]);
        bomb.extend(vec![0xbe; 1000]);
        assert_eq!(Decoder::new().read(&bomb), Err("the headers are too long"));
    }

    #[test]
    fn what_is_torn_or_wrong_is_refused() {
        for (block, why) in [
            ("80", "nobody gave"),
            ("be", "nobody gave"),
            ("ff", "torn"),
            ("ffffffffffff7f", "too large"),
            ("4005", "torn"),
            ("3fe2ff03", "where there is none"),
            ("8220", "where there is none"),
            ("0081ff00", "coded wrongly"),
            ("0084ffffffff00", "coded wrongly"),
        ] {
            let refused = Decoder::new().read(&bytes(block)).unwrap_err();
            assert!(refused.contains(why), "{block}: {refused}");
        }
    }

    #[test]
    fn the_table_never_grows_beyond_its_size() {
        let mut decoder = Decoder::new();
        for round in 0..1000 {
            let mut block = vec![0x40, 4];
            block.extend(format!("{round:04}").bytes());
            block.extend([100]);
            block.extend([b'v'; 100]);
            decoder.read(&block).unwrap();
            assert!(decoder.size <= TABLE);
        }
        decoder.read(&[0x20]).unwrap();
        assert_eq!((decoder.size, decoder.entries.len()), (0, 0));
    }
}
