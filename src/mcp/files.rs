//! Files of a sandbox, within a result's bounds, with secrets hidden.

use crate::error::{Error, Kind, Result};
use crate::host::is_off;
use crate::task::{Hiding, Live};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::{self, Write};
use std::path::Path;

/// The redactor must see every byte before the offset.
const LARGEST_OFFSET: u64 = 64 << 20;
pub(super) const MAX_ENTRIES: usize = 1000;

#[derive(Debug)]
pub(super) struct Part {
    pub content: String,
    pub is_base64: bool,
    pub length: usize,
    pub has_more: bool,
}

/// Offsets count the bytes of the redacted file: a secret cannot be cut in two.
pub(super) fn read(live: &Live, path: &Path, offset: u64, most: usize) -> Result<Part> {
    if offset > LARGEST_OFFSET {
        let words = format!("`offset` is {offset}, and at most {LARGEST_OFFSET} bytes of a file can be passed over");
        return Err(Error::new(Kind::Usage, words).hint("use a command such as `tail -c` or `dd` with exec"));
    }
    let mut window = Window { hiding: live.hiding()?, skip: offset, most, kept: Vec::new(), has_more: false };
    match live.read_file(path, &mut window) {
        Ok(_) => window.finish(),
        // The window ended the copy itself.
        Err(_) if window.has_more => {}
        Err(error) => return Err(error),
    }
    let length = window.kept.len();
    Ok(match text(&window.kept) {
        Some(content) => Part { content, is_base64: false, length, has_more: window.has_more },
        None => Part { content: STANDARD.encode(&window.kept), is_base64: true, length, has_more: window.has_more },
    })
}

/// The first and last character may be cut; `None` for other data.
fn text(bytes: &[u8]) -> Option<String> {
    const LONGEST: usize = 4;
    let is_rest = |byte: &u8| byte & 0xc0 == 0x80;
    let begin = bytes.iter().take(LONGEST - 1).take_while(|byte| is_rest(byte)).count();
    let whole = &bytes[begin..];
    let end = match std::str::from_utf8(whole) {
        Ok(_) => whole.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return None,
    };
    let text = std::str::from_utf8(&whole[..end]).ok()?;
    // A text with a zero byte is data.
    (!text.contains('\0')).then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// What is between two offsets of a redacted stream.
struct Window {
    hiding: Hiding,
    skip: u64,
    most: usize,
    kept: Vec<u8>,
    has_more: bool,
}

impl Window {
    fn take(&mut self, bytes: &[u8]) {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= skipped as u64;
        let wanted = &bytes[skipped..];
        let taken = wanted.len().min(self.most - self.kept.len());
        self.kept.extend_from_slice(&wanted[..taken]);
        self.has_more |= taken < wanted.len();
    }

    fn finish(&mut self) {
        let rest = self.hiding.finish(false);
        self.take(&rest);
    }
}

impl Write for Window {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let visible = if is_off("mcp-redaction") { bytes.to_vec() } else { self.hiding.pass(false, bytes) };
        self.take(&visible);
        if self.has_more { Err(io::Error::other("the part is complete")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn decode(content: &str, encoding: Option<&str>) -> Result<Vec<u8>> {
    match encoding {
        None | Some("utf-8") => Ok(content.as_bytes().to_vec()),
        Some("base64") => STANDARD.decode(content).map_err(|cause| {
            Error::new(Kind::Usage, format!("`content` is not base64: {cause}"))
                .hint("encode it, or leave `encoding` out")
        }),
        Some(other) => {
            Err(Error::new(Kind::Usage, format!("`encoding` is `{}`", other.escape_debug()))
                .hint("use utf-8 or base64"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_is_text_and_other_data_is_not() {
        let check = |bytes: &[u8], expected: Option<&str>| assert_eq!(text(bytes).as_deref(), expected, "{bytes:?}");
        check(b"plain\n", Some("plain\n"));
        check("ü".as_bytes(), Some("ü"));
        check(&"ü".as_bytes()[1..], Some("\u{fffd}"));
        check(&"aü".as_bytes()[..2], Some("a\u{fffd}"));
        check(b"a\xffb", None);
        check(b"a\0b", None);
        check(b"", Some(""));
    }
}
