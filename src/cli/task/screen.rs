//! A running task on our own streams.

use super::refusals::Refusals;
use crate::cli::output;
use brig::sandbox::Row;
use brig::task::Watcher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};
use rustix::termios::isatty;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Passes output on to our own streams.
pub(in crate::cli) struct Screen {
    /// Whether both streams go to standard error, because standard output is the receipt's.
    only_error: bool,
    /// Whether the command has a terminal of its own, whose bytes are passed on untouched.
    terminal: bool,
    /// For standard output and error, where they are a terminal that is not the sandbox's own.
    escapers: [Option<output::Escaper>; 2],
    ends: [End; 2],
    /// For the lines about refused hosts.
    refusals: Option<Refusals>,
    /// The task's id.
    id: String,
}

/// One of our own streams.
struct End {
    stream: BorrowedFd<'static>,
    /// Found out when there is something to write: most commands say nothing on one of the two.
    manner: Option<Manner>,
    /// What it has not taken yet.
    kept: Vec<u8>,
    /// Whoever read it has gone; the log still has everything.
    gone: bool,
}

/// How a stream is written without ever waiting for its reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// A file takes everything.
    Whole,
    /// What fits, by RWF_NOWAIT (pipes since 6.4, sockets).
    Fitting,
    /// What anything that poll(2) calls writable takes (PIPE_BUF).
    Little,
}

impl End {
    fn new(stream: BorrowedFd<'static>) -> End {
        End { stream, manner: None, kept: Vec::new(), gone: false }
    }

    fn manner(&mut self) -> Manner {
        let stream = self.stream;
        *self.manner.get_or_insert_with(|| match fstat(stream) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile => Manner::Whole,
            _ => Manner::Fitting,
        })
    }

    /// Writes what can be written now, and keeps the rest.
    fn put(&mut self, bytes: &[u8]) {
        if self.gone {
            return;
        }
        self.go_on();
        let taken = if self.kept.is_empty() { self.give(bytes) } else { 0 };
        self.kept.extend_from_slice(bytes.get(taken..).unwrap_or_default());
    }

    /// Writes of what was kept what can be written now. `true` when nothing was kept: whoever has just written asks poll(2) first.
    fn go_on(&mut self) -> bool {
        if self.kept.is_empty() {
            return true;
        }
        let kept = std::mem::take(&mut self.kept);
        let taken = self.give(&kept);
        self.kept.extend_from_slice(&kept[taken..]);
        false
    }

    fn is_writable(&self) -> bool {
        let mut wait = [PollFd::from_borrowed_fd(self.stream, PollFlags::OUT)];
        matches!(poll(&mut wait, Some(&Timespec::default())), Ok(1..))
    }

    /// How many of the bytes the stream has taken.
    fn give(&mut self, bytes: &[u8]) -> usize {
        const LITTLE: usize = 4096;
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let manner = self.manner();
            let written = match manner {
                Manner::Whole => write(self.stream, rest),
                Manner::Fitting => pwritev2(self.stream, &[IoSlice::new(rest)], u64::MAX, ReadWriteFlags::NOWAIT),
                Manner::Little if !self.is_writable() => Err(Errno::AGAIN),
                Manner::Little => write(self.stream, &rest[..rest.len().min(LITTLE)]),
            };
            match written {
                Ok(count) => taken += count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) if manner == Manner::Fitting => {
                    self.manner = Some(Manner::Little);
                    continue;
                }
                Err(_) => {
                    self.gone = true;
                    return bytes.len();
                }
            }
            if manner == Manner::Little {
                break;
            }
        }
        taken
    }
}

impl Screen {
    pub(in crate::cli) fn new(only_error: bool, terminal: bool) -> Screen {
        let escapers = [rustix::stdio::stdout(), rustix::stdio::stderr()]
            .map(|stream| (isatty(stream) && !terminal).then(output::Escaper::default));
        let ends = [rustix::stdio::stdout(), rustix::stdio::stderr()].map(End::new);
        Screen { only_error, terminal, escapers, ends, refusals: None, id: String::new() }
    }

    /// Shows each host that the gateway refuses.
    pub(in crate::cli) fn showing_refusals(self) -> Screen {
        Screen { refusals: Some(Refusals::default()), ..self }
    }

    fn index(&self, error: bool) -> usize {
        usize::from(error || self.only_error)
    }

    fn line(&self, text: &str) -> String {
        // Our terminal is raw while the command has one: a line needs its carriage return.
        let (before, after) = if self.terminal { ("\r\x1b[K", "\r") } else { ("", "") };
        format!("{before}brig: {}{after}", output::escaped(text))
    }
}

/// Letters of a line about the progress: a longer one would be two lines, of which only the last is written over.
const LINE: usize = 70;

impl Watcher for Screen {
    fn is_foreground(&self) -> bool {
        true
    }

    fn began(&mut self, id: &str) {
        id.clone_into(&mut self.id);
        if self.only_error && isatty(rustix::stdio::stderr()) {
            tell!("brig: task {id}");
        }
    }

    fn note(&mut self, text: &str) {
        tell!("{}", self.line(&format!("note: {text}")));
    }

    fn hint(&mut self, text: &str) {
        if isatty(rustix::stdio::stderr()) {
            self.note(text);
        }
    }

    fn progress(&mut self, text: &str) {
        if isatty(rustix::stdio::stderr()) {
            let text: String = output::escaped(text).chars().take(LINE).collect();
            let text = if text.is_empty() { text } else { format!("brig: {text}") };
            // To the beginning of the line, and clear it (ECMA-48, CR and EL).
            let _ = write(rustix::stdio::stderr(), format!("\r\x1b[K{text}").as_bytes());
        }
    }

    fn refused(&mut self, row: &Row) {
        let line = self.refusals.as_mut().and_then(|refusals| refusals.line(row, &self.id, Instant::now()));
        if let Some(line) = line {
            // The supervisor must not wait for a reader of these lines: its limits would not be in force.
            let line = self.line(&line) + "\n";
            self.ends[1].put(line.as_bytes());
        }
    }

    fn output(&mut self, error: bool, bytes: &[u8]) {
        let index = self.index(error);
        // What a sandbox writes never reaches a terminal unescaped, unless the terminal is the sandbox's own.
        let escaped = self.escapers[index].as_mut().map(|escaper| escaper.escape(bytes));
        self.ends[index].put(escaped.as_deref().unwrap_or(bytes));
    }

    fn go_on(&mut self, error: bool) -> bool {
        let index = self.index(error);
        self.ends[index].go_on()
    }

    fn gate(&self, error: bool) -> Option<BorrowedFd<'_>> {
        let end = &self.ends[self.index(error)];
        (!end.gone).then_some(end.stream)
    }

    fn forward_input(&self) -> bool {
        self.terminal || !isatty(rustix::stdio::stdin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    /// A reader that takes its time gets every byte once, and the writer never waits for it.
    #[test]
    fn what_does_not_fit_is_kept_and_comes_in_its_order() {
        for manner in [Manner::Fitting, Manner::Little] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let writer: &'static _ = Box::leak(Box::new(writer));
            let text: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
            let mut end = End { manner: Some(manner), ..End::new(writer.as_fd()) };
            let mut came = Vec::new();
            for piece in text.chunks(50_000) {
                end.put(piece);
                loop {
                    let mut gate = [PollFd::from_borrowed_fd(writer.as_fd(), PollFlags::OUT)];
                    if poll(&mut gate, Some(&Timespec::default())).unwrap() == 0 {
                        let mut some = [0; 30_000];
                        let count = reader.read(&mut some).unwrap();
                        came.extend_from_slice(&some[..count]);
                    } else if end.go_on() {
                        break;
                    }
                }
            }
            let left = text.len() - came.len();
            reader.take(left as u64).read_to_end(&mut came).unwrap();
            assert!(came == text);
        }
    }

    #[test]
    fn full_pipe_is_not_waited_for() {
        for manner in [Manner::Fitting, Manner::Little] {
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            let capacity = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
            writer.write_all(&vec![b' '; capacity]).unwrap();
            let writer: &'static _ = Box::leak(Box::new(writer));
            let mut end = End { manner: Some(manner), ..End::new(writer.as_fd()) };
            end.put(b"one ");
            assert!(!end.go_on() && end.kept == b"one ");
            reader.read_exact(&mut vec![0; capacity]).unwrap();
            end.put(b"two");
            let mut text = [0; 7];
            reader.read_exact(&mut text).unwrap();
            assert_eq!((&text, end.kept.len()), (b"one two", 0));
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_written_to_no_more() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let writer: &'static _ = Box::leak(Box::new(writer));
        let mut end = End::new(writer.as_fd());
        end.put(b"nobody");
        assert!(end.gone && end.kept.is_empty() && end.go_on());
    }
}
