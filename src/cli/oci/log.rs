//! The errors for runc's callers: a log file of JSON lines or of text, and stderr.

use brig::error::{Error, Kind, Result};
use brig::task::is_deceptive;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

/// The log of one command.
pub(super) struct Log {
    file: Option<File>,
    is_json: bool,
    is_debug: bool,
}

impl Log {
    /// Opens the caller's file, if there is one.
    pub(super) fn open(path: Option<PathBuf>, format: Option<&str>, is_debug: bool) -> Result<Log> {
        let is_json = match format {
            None | Some("" | "text") => false,
            Some("json") => true,
            Some(other) => return Err(Error::new(Kind::Usage, format!("invalid log-format: {other}"))),
        };
        let open = |path: PathBuf| {
            let opened = OpenOptions::new().append(true).create(true).mode(0o644).open(&path);
            opened.map_err(|cause| Error::os(Kind::Usage, cause).doing(format!("open the log `{}`", path.display())))
        };
        Ok(Log { file: path.map(open).transpose()?, is_json, is_debug })
    }

    /// A log on stderr.
    pub(super) fn plain() -> Log {
        Log { file: None, is_json: false, is_debug: false }
    }

    /// Whether it is a file that a program reads.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Writes an error on one line, which callers take as the reason.
    pub(super) fn error(&self, message: &str) {
        self.line("error", message);
        if self.file.is_some() {
            let is_terminal = rustix::termios::isatty(rustix::stdio::stderr());
            let _ = match is_terminal {
                true => writeln!(std::io::stderr(), "{}", quoted(message).trim_matches('"')),
                false => writeln!(std::io::stderr(), "{message}"),
            };
        }
    }

    /// Writes a warning for people: to stderr, or on request. A caller may take every line of its file as an error.
    pub(super) fn warn(&self, message: &str) {
        if self.is_debug || self.file.is_none() {
            self.line("warning", message);
        }
    }

    /// Writes a debug note if the caller asks for it.
    pub(super) fn debug(&self, message: &str) {
        if self.is_debug {
            self.line("debug", message);
        }
    }

    /// Writes runc's messages of each start, around the `notes` of this one. `last` follows when init is ready.
    pub(super) fn debug_start(&self, notes: &[String], last: &str) {
        self.debug("runc exeseal: using /proc/self/exe clone");
        self.debug("=> nsexec container setup");
        self.debug("child process in init()");
        notes.iter().for_each(|note| self.debug(note));
        self.debug(last);
    }

    fn line(&self, level: &str, message: &str) {
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let line = if self.is_json {
            serde_json::json!({"level": level, "msg": message, "time": time.to_string()}).to_string()
        } else {
            format!("time=\"{time}\" level={level} msg={}", quoted(message))
        };
        // A failed write of the log cannot be reported.
        let _ = match &self.file {
            Some(file) => (&*file).write_all(format!("{line}\n").as_bytes()),
            // One write: other processes write to the same stream.
            None => std::io::stderr().write_all(format!("{line}\n").as_bytes()),
        };
    }
}

/// In double quotes, without terminal control characters.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for each in text.chars() {
        match each {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            each if each.is_control() || is_deceptive(each) => quoted.extend(each.escape_default()),
            each => quoted.push(each),
        }
    }
    quoted.push('"');
    quoted
}
