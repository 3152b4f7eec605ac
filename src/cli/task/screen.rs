//! A running task on our own streams.

use crate::cli::output;
use brig::task::Watcher;
use rustix::termios::isatty;
use std::io::Write;
use std::os::fd::BorrowedFd;

/// Passes output on to our own streams.
pub(super) struct Screen {
    /// Whether both streams go to standard error, because standard output is the receipt's.
    only_error: bool,
    /// Whether the command has a terminal of its own, whose bytes are passed on untouched.
    terminal: bool,
    /// For standard output and error, where they are a terminal that is not the sandbox's own.
    escapers: [Option<output::Escaper>; 2],
    gone: [bool; 2],
}

impl Screen {
    pub(super) fn new(only_error: bool, terminal: bool) -> Screen {
        let escapers = [rustix::stdio::stdout(), rustix::stdio::stderr()]
            .map(|stream| (isatty(stream) && !terminal).then(output::Escaper::default));
        Screen { only_error, terminal, escapers, gone: [false, false] }
    }

    fn index(&self, error: bool) -> usize {
        usize::from(error || self.only_error)
    }
}

impl Watcher for Screen {
    fn began(&mut self, id: &str) {
        if self.only_error && isatty(rustix::stdio::stderr()) {
            eprintln!("brig: task {id}");
        }
    }

    fn note(&mut self, text: &str) {
        eprintln!("brig: note: {text}");
    }

    fn output(&mut self, error: bool, bytes: &[u8]) {
        let index = self.index(error);
        if self.gone[index] {
            return;
        }
        // What a sandbox writes never reaches a terminal unescaped, unless the terminal is the sandbox's own.
        let escaped = self.escapers[index].as_mut().map(|escaper| escaper.escape(bytes));
        let bytes = escaped.as_deref().unwrap_or(bytes);
        let written = if index == 1 {
            std::io::stderr().write_all(bytes)
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        };
        // Whoever read our output has gone; the log still has everything.
        self.gone[index] = written.is_err();
    }

    fn gate(&self, error: bool) -> Option<BorrowedFd<'_>> {
        let index = self.index(error);
        let stream = if index == 1 { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
        (!self.gone[index]).then_some(stream)
    }

    fn forward_input(&self) -> bool {
        self.terminal || !isatty(rustix::stdio::stdin())
    }
}
