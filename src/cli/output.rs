//! What is printed: errors in three lines on stderr, tables and `--json` from the same rows on stdout.

use brig::error::Error;
use serde::Serialize;
use std::io::Write;

/// The three lines of an error: what failed, what to do, where to read more.
pub(super) fn error(error: &Error) {
    failure(error.kind().code(), &error.to_string(), error.advice());
}

/// The same for an error that comes from a record.
pub(super) fn failure(code: &str, message: &str, hint: Option<&str>) {
    eprintln!("error: {}", escaped(message));
    if let Some(hint) = hint {
        eprintln!("hint:  {}", escaped(hint));
    }
    eprintln!("code:  {code}   (docs/errors.md#{})", code.to_lowercase());
}

/// One JSON document.
pub(super) fn json<T: Serialize>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => lines([text]),
        Err(cause) => eprintln!("error: print JSON: {cause}"),
    }
}

/// Lines on stdout; a reader that has gone wants no more.
pub(super) fn lines(lines: impl IntoIterator<Item = String>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        if writeln!(out, "{line}").is_err() {
            return;
        }
    }
}

/// Names and values, two columns or one JSON object.
pub(super) fn pairs(rows: &[(String, String)], as_json: bool) {
    if as_json {
        let object: serde_json::Map<_, _> =
            rows.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        return json(&object);
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines(rows.iter().map(|(name, value)| format!("{name:width$}  {}", escaped(value))));
}

/// A header and its rows in columns as wide as needed.
pub(super) fn table<const COLUMNS: usize>(header: [&str; COLUMNS], rows: impl Iterator<Item = [String; COLUMNS]>) {
    let rows: Vec<[String; COLUMNS]> =
        std::iter::once(header.map(str::to_owned)).chain(rows.map(|row| row.map(|cell| escaped(&cell)))).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    lines(rows.iter().map(|row| {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    }));
}

/// At most `length` characters.
pub(super) fn shortened(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length.saturating_sub(1)).chain(['…']).collect()
}

/// Text that may come from a sandbox, without anything that a terminal would obey.
pub(super) fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let safe = !character.is_control() || character == '\t';
            let escape = (!safe).then(|| character.escape_default().collect::<Vec<_>>());
            escape.unwrap_or_else(|| vec![character])
        })
        .collect()
}

/// The same for a stream of bytes, whose lines stay lines: ESC becomes `^[`, as `cat -v` shows it.
pub(super) fn escaped_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut safe = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\n' | b'\t' | b'\r' => safe.push(byte),
            0..0x20 => safe.extend([b'^', byte + 0x40]),
            0x7f => safe.extend(b"^?"),
            _ => safe.push(byte),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        assert_eq!(escaped("a\x1b[2Jb\tc\u{9b}1m"), "a\\u{1b}[2Jb\tc\\u{9b}1m");
        assert_eq!(escaped_bytes(b"a\x1b]0;x\x07\n\x7f"), b"a^[]0;x^G\n^?");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
    }
}
