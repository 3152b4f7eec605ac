//! Captures a courier's answer and errors, and passes its progress on.

use crate::error::Result;
use crate::sandbox::{Sink, Stopped, Stream};
use std::time::{Duration, Instant};

/// Longer than any answer that brig requests.
const ENOUGH: usize = 64 * 1024;
/// A longer line is not a progress line.
const LONGEST_LINE: usize = 1024;
/// Between two lines of progress.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Captured<'run> {
    pub output: Vec<u8>,
    pub error: Vec<u8>,
    /// Unfinished line of standard error.
    line: Vec<u8>,
    has_returned: bool,
    progress: &'run dyn Fn(&str),
    told: Option<Instant>,
    must_end: &'run mut dyn FnMut() -> Option<Stopped>,
}

impl<'run> Captured<'run> {
    /// `must_end` returns the reason to end the courier.
    pub(super) fn new(
        progress: &'run dyn Fn(&str),
        must_end: &'run mut dyn FnMut() -> Option<Stopped>,
    ) -> Captured<'run> {
        let (output, error, line) = (Vec::new(), Vec::new(), Vec::new());
        Captured { output, error, line, has_returned: false, progress, told: None, must_end }
    }

    /// The next line overwrites a transient one, which ends with a carriage return.
    fn end_line(&mut self, is_transient: bool) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        if is_transient || is_progress(&text) {
            if self.told.is_none_or(|told| told.elapsed() >= PAUSE) && line.len() < LONGEST_LINE {
                self.told = Some(Instant::now());
                (self.progress)(text.trim());
            }
        } else if !is_update(&text) {
            keep(&mut self.error, &line);
            keep(&mut self.error, b"\n");
        }
    }
}

/// Whether the line is one of git's counters: `Receiving objects:  12% (3/25)`, `Enumerating objects: 25, done.`
fn is_progress(line: &str) -> bool {
    line.contains("% (") || line.ends_with(", done.")
}

/// A fetched reference, and not a refusal.
fn is_update(line: &str) -> bool {
    line.starts_with("From ") || line.starts_with(' ') && !line.starts_with(" !") && line.contains(" -> ")
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = ENOUGH.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

impl Sink for Captured<'_> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        if stream == Stream::Output {
            keep(&mut self.output, bytes);
            return Ok(());
        }
        for &byte in bytes {
            // ssh ends its lines with both `\r` and `\n`.
            let has_returned = std::mem::take(&mut self.has_returned);
            if has_returned && byte != b'\n' {
                self.end_line(true);
            }
            match byte {
                b'\r' => self.has_returned = true,
                b'\n' => self.end_line(false),
                _ if self.line.len() < ENOUGH => self.line.push(byte),
                _ => {}
            }
        }
        Ok(())
    }

    fn must_end(&mut self) -> Option<Stopped> {
        (self.must_end)()
    }

    fn end(&mut self) -> Result<()> {
        if !self.line.is_empty() {
            self.end_line(false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn progress_is_passed_on_and_is_in_no_error() {
        let told = RefCell::new(Vec::new());
        let tell = |text: &str| told.borrow_mut().push(text.to_owned());
        let mut must_end = || None;
        let mut captured = Captured::new(&tell, &mut must_end);
        let pieces = [
            "remote: Enumerating objects: 25, done.\nReceiving obj",
            "ects:   4% (1/25)\rReceiving objects: 100% (25/25), done.\nFrom https://a.test/x\n",
            " * [new branch]      certificate -> certificate\n ! [rejected] a -> b\nfatal: the",
            " end\r\n",
        ];
        pieces.iter().for_each(|piece| captured.take(Stream::Error, piece.as_bytes()).unwrap());
        captured.end().unwrap();
        assert_eq!(String::from_utf8_lossy(&captured.error), " ! [rejected] a -> b\nfatal: the end\n");
        assert_eq!(*told.borrow(), ["remote: Enumerating objects: 25, done."], "one a second");
    }
}
