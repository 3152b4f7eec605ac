//! Output: errors in three lines on stderr, tables and `--json` from the same rows on stdout.

use brig::error::{Error, Kind};
use brig::task::{is_deceptive, reorders_text};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Mutex;

/// The first error of writing to standard output. A caller with an empty receipt must not see success.
static REFUSED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// The three lines of an error: what failed, what to do, where to read more.
pub(super) fn error(error: &Error) {
    failure(error.kind().code(), &error.to_string(), error.advice());
}

/// The same for an error from a record.
pub(super) fn failure(code: &str, message: &str, hint: Option<&str>) {
    tell!("error: {}", escaped(message));
    if let Some(hint) = hint {
        tell!("hint:  {}", escaped(hint));
    }
    tell!("code:  {code}   (docs/errors.md#{})", code.to_lowercase());
}

/// Prints the errors of a verb that goes on after each, and returns its exit status: 0 only without one.
pub(super) fn failures<'a>(errors: impl IntoIterator<Item = &'a Error>) -> ExitCode {
    let status = |_, each: &Error| {
        error(each);
        ExitCode::from(each.kind().exit_status())
    };
    errors.into_iter().fold(ExitCode::SUCCESS, status)
}

/// The error of a command with `--json`, on standard output, in the receipt's form.
pub(super) fn json_error(code: &str, message: &str, hint: Option<&str>) {
    json(&serde_json::json!({ "error": { "code": code, "message": message, "hint": hint } }));
}

/// One JSON document.
pub(super) fn json<T: Serialize>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => lines([safe_json(&text)]),
        Err(cause) => tell!("error: print JSON: {cause}"),
    }
}

/// One JSON document on one line. `false` when the reader has gone.
pub(super) fn json_line<T: Serialize>(value: &T) -> bool {
    let mut out = std::io::stdout().lock();
    serde_json::to_string(value)
        .is_ok_and(|text| is_taken(writeln!(out, "{}", safe_json(&text)).and_then(|()| out.flush())))
}

/// Whether output was written. A closed reader is not an error; any other cause is kept for [`refused`].
pub(super) fn is_taken(done: std::io::Result<()>) -> bool {
    let Err(cause) = done else { return true };
    if cause.kind() != ErrorKind::BrokenPipe {
        REFUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(cause);
    }
    false
}

/// The error of a command that succeeded but could not print its result.
pub(super) fn refused() -> Option<Error> {
    let cause = REFUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()?;
    let hint = "what was done is done: see `brig task ls`; make room where the output goes";
    Some(Error::os(Kind::Disk, cause).doing("print").hint(hint))
}

/// Escapes DEL, C1 control characters and invisible characters in JSON; serde_json escapes those below U+0020. They
/// occur in strings only, where an escape is valid.
pub(super) fn safe_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{7f}'..='\u{9f}' => push_json(&mut safe, character),
            _ if is_deceptive(character) => push_json(&mut safe, character),
            _ => safe.push(character),
        }
    }
    safe
}

/// A character as a JSON escape: two for one above U+FFFF.
fn push_json(safe: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        safe.push_str(&format!("\\u{unit:04x}"));
    }
}

/// Writes lines to stdout, many with one write(2). A closed reader is not an error.
pub(super) fn lines(lines: impl IntoIterator<Item = String>) {
    const AT_ONCE: usize = 64 << 10; // a pipe's room (pipe(7))
    let mut out = std::io::BufWriter::with_capacity(AT_ONCE, std::io::stdout().lock());
    for line in lines {
        if !is_taken(out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n"))) {
            drop(out.into_parts()); // without a flush, which would fail again
            return;
        }
    }
    is_taken(out.flush());
}

/// Writes one line of data, escaped.
pub(super) fn line(text: &str) {
    lines([escaped(text)]);
}

/// Standard output for a long text. Ignores a closed reader: a pager may show only the beginning.
pub(super) struct Patient<Out: Write>(pub(super) Out);

impl<Out: Write> Write for Patient<Out> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.write(bytes) {
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self.0.flush() {
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
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

/// A size for reading, rounded.
pub(super) fn approximate(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    if step == 0 {
        format!("{bytes} B")
    } else {
        format!(
            "{:.1} {}",
            bytes as f64 / f64::from(1_u32 << (10 * step.min(3))) / if step == 4 { 1024.0 } else { 1.0 },
            units[step as usize]
        )
    }
}

/// A time of a record, to the second.
pub(super) fn moment(time: &str) -> String {
    time.get(..19).unwrap_or(time).replace('T', " ")
}

/// At most `length` characters.
pub(super) fn shortened(text: &str, length: usize) -> String {
    if text.len() <= length || text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length.saturating_sub(1)).chain(['…']).collect()
}

/// Text of a sandbox without terminal sequences and invisible characters.
pub(super) fn escaped(text: &str) -> String {
    if text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        return text.to_owned();
    }
    text.chars()
        .flat_map(|character| {
            let safe = (!character.is_control() && !is_deceptive(character)) || character == '\t';
            let escape = (!safe).then(|| character.escape_default().collect::<Vec<_>>());
            escape.unwrap_or_else(|| vec![character])
        })
        .collect()
}

/// Escapes a stream of bytes and keeps its lines: ESC becomes `^[`, as in `cat -v`. A character may come in two pieces;
/// U+009B, which terminals treat like `ESC [`, must not slip through between them.
///
/// For a command's output: carriage returns stay, as progress bars use them, and so do joiners and selectors of emoji.
/// Text for review ([`Escaper::for_review`]) has neither.
#[derive(Default)]
pub(super) struct Escaper {
    is_for_review: bool,
    /// The beginning of an incomplete character.
    begun: Vec<u8>,
}

impl Escaper {
    /// Shows every character, also a carriage return: text for review must not look like other text.
    pub(super) fn for_review() -> Escaper {
        Escaper { is_for_review: true, ..Escaper::default() }
    }

    /// Escapes the next bytes of the stream.
    pub(super) fn escape(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.begun.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.begun);
        let mut safe = Vec::with_capacity(input.len());
        let mut rest = input.as_slice();
        while let Err(cause) = std::str::from_utf8(rest) {
            let (valid, after) = rest.split_at(cause.valid_up_to());
            self.push_text(&mut safe, valid);
            let Some(length) = cause.error_len() else {
                self.begun = after.to_vec();
                return safe;
            };
            push_bytes(&mut safe, &after[..length]);
            rest = &after[length..];
        }
        self.push_text(&mut safe, rest);
        safe
    }

    /// Escapes valid UTF-8.
    fn push_text(&self, safe: &mut Vec<u8>, text: &[u8]) {
        for character in String::from_utf8_lossy(text).chars() {
            let is_hidden = if self.is_for_review { is_deceptive(character) } else { reorders_text(character) };
            match character {
                '\n' | '\t' => safe.push(character as u8),
                '\r' if !self.is_for_review => safe.push(b'\r'),
                '\0'..' ' => safe.extend([b'^', character as u8 + 0x40]),
                '\u{7f}' => safe.extend(b"^?"),
                '\u{80}'..='\u{9f}' => safe.extend(character.escape_unicode().collect::<String>().bytes()),
                _ if is_hidden => safe.extend(character.escape_unicode().collect::<String>().bytes()),
                _ => safe.extend(character.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
    }

    /// The rest of a stream that ended within a character.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut safe = Vec::new();
        push_bytes(&mut safe, &std::mem::take(&mut self.begun));
        safe
    }
}

/// A terminal behind an [`Escaper`] for review.
pub(super) struct Safe<Out: Write> {
    out: Out,
    escaper: Escaper,
}

impl<Out: Write> Safe<Out> {
    pub(super) fn new(out: Out) -> Safe<Out> {
        Safe { out, escaper: Escaper::for_review() }
    }

    /// Writes the rest of a stream that ended within a character.
    pub(super) fn finish(mut self) {
        // A closed terminal is not an error.
        let _ = self.out.write_all(&self.escaper.finish());
    }
}

impl<Out: Write> Write for Safe<Out> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write_all(&self.escaper.escape(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Escapes invalid UTF-8: a terminal without UTF-8 obeys 0x80 to 0x9f.
fn push_bytes(safe: &mut Vec<u8>, bytes: &[u8]) {
    bytes.iter().for_each(|byte| safe.extend(format!("\\x{byte:02x}").bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        assert_eq!(escaped("a\x1b[2Jb\tc\u{9b}1m"), "a\\u{1b}[2Jb\tc\\u{9b}1m");
        assert_eq!(escaped("né\u{202e}\u{200b}\r\u{e0041}"), "né\\u{202e}\\u{200b}\\r\\u{e0041}");
    }

    /// Every character that could make a line of a patch look like another one.
    #[test]
    fn what_is_for_review_shows_every_character() {
        let check = |input: &str, output: &str, review: &str| {
            for (mut escaper, expected) in [(Escaper::default(), output), (Escaper::for_review(), review)] {
                let safe = [escaper.escape(input.as_bytes()), escaper.finish()].concat();
                assert_eq!(String::from_utf8(safe).unwrap(), expected);
            }
        };
        check("evil\rgood\n", "evil\rgood\n", "evil^Mgood\n");
        check("a\r\n", "a\r\n", "a^M\n");
        check("a\u{202e}b\u{2066}c\u{2069}", "a\\u{202e}b\\u{2066}c\\u{2069}", "a\\u{202e}b\\u{2066}c\\u{2069}");
        check("a\u{200b}b\u{ad}c", "a\u{200b}b\u{ad}c", "a\\u{200b}b\\u{ad}c");
        check("\u{feff}\u{e0041}\u{fe0f}é漢", "\u{feff}\u{e0041}\u{fe0f}é漢", "\\u{feff}\\u{e0041}\\u{fe0f}é漢");
    }

    #[test]
    fn a_stream_is_as_safe_however_it_is_cut() {
        let check = |input: &[u8], expected: &str| {
            for cut in 0..=input.len() {
                let mut escaper = Escaper::default();
                let mut safe = escaper.escape(&input[..cut]);
                safe.extend(escaper.escape(&input[cut..]));
                safe.extend(escaper.finish());
                assert_eq!(String::from_utf8(safe).unwrap(), expected, "cut at {cut}");
            }
        };
        check(b"a\x1b]0;x\x07\n\x7f", "a^[]0;x^G\n^?");
        check("ä \u{9b}2J €\r\n".as_bytes(), "ä \\u{9b}2J €\r\n");
        check(b"\x9b2J \xc2", "\\x9b2J \\xc2");
        check(b"\xe2\x82 \xe2\x82\xac", "\\xe2\\x82 €");
    }

    #[test]
    fn json_has_nothing_that_a_terminal_obeys_and_stays_the_same_data() {
        let value = serde_json::json!({"a\u{9b}": "\u{1b}[2J\u{7f}ä\u{202e}\u{200b}\u{e0041}"});
        let text = safe_json(&value.to_string());
        assert!(text.chars().all(|each| !each.is_control() && !is_deceptive(each)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
    }
}
