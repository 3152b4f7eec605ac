//! git's binary patch: whole contents in base 85. As in git, both directions are written, so that the patch can be
//! reversed.
//!
//! The deflate stream has stored blocks only: the format requires zlib but not compression, and binary files rarely get
//! smaller.

use crate::files::hash::{hexadecimal, sha1};
use std::io::{self, Write};

const NO_BLOB: &str = "0000000000000000000000000000000000000000";

/// RFC 1924's digits, as git uses them.
const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Bytes of a line before encoding; its first letter is their number.
const LINE: usize = 52;
const BLOCK: usize = 65535;

/// Follows the line that names the blobs.
pub(super) fn write(old: &[u8], new: &[u8], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "GIT binary patch")?;
    for bytes in [new, old] {
        writeln!(out, "literal {}", bytes.len())?;
        write_lines(&stored(bytes), out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// SHA-1 is git's choice; nothing here relies on it.
pub(super) fn blob(content: Option<&[u8]>) -> String {
    let Some(bytes) = content else { return NO_BLOB.to_owned() };
    hexadecimal(&sha1(&[format!("blob {}\0", bytes.len()).as_bytes(), bytes]))
}

/// A zlib stream of stored blocks (RFC 1950, RFC 1951 section 3.2.4).
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = bytes.chunks(BLOCK).peekable();
    if blocks.peek().is_none() {
        stream.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        let last = u8::from(blocks.peek().is_none());
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        stream.push(last);
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    stream.extend(adler32(bytes).to_be_bytes());
    stream
}

fn adler32(bytes: &[u8]) -> u32 {
    const BASE: u32 = 65521;
    let (mut low, mut high) = (1_u32, 0_u32);
    // 5552 is the most bytes that cannot overflow 32 bits (RFC 1950's example divides each time).
    for part in bytes.chunks(5552) {
        for byte in part {
            low += u32::from(*byte);
            high += low;
        }
        low %= BASE;
        high %= BASE;
    }
    high << 16 | low
}

fn write_lines(stream: &[u8], out: &mut impl Write) -> io::Result<()> {
    for line in stream.chunks(LINE) {
        let length = u8::try_from(line.len()).unwrap_or(0);
        let mut text = vec![if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 }];
        for group in line.chunks(4) {
            let mut word = [0_u8; 4];
            word[..group.len()].copy_from_slice(group);
            let mut number = u32::from_be_bytes(word);
            let mut digits = [0_u8; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            text.extend(digits);
        }
        text.push(b'\n');
        out.write_all(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_have_the_names_that_git_gives() {
        assert_eq!(blob(Some(b"")), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(blob(Some(b"hello\n")), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn adler_is_that_of_the_specification() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(adler32(b""), 1);
    }
}
