//! The result: one JSON document at a fixed path in the workspace, checked and put into the receipt.
//!
//! Never: more than a megabyte read.

use super::artifact::Source;
use super::changes::path::TreePath;
use super::changes::tree;
use super::schema::Schema;
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Bounded, Pinned};
use crate::task::redact::Redactor;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Larger files are artifacts.
const LONGEST: u64 = 1 << 20;

/// In the receipt, indented with one item a line: nested items take a hundred times their size in the file.
pub(crate) const LONGEST_WRITTEN: u64 = 16 << 20;

/// The result's path and schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultOptions {
    /// From the workspace's root.
    pub path: String,
    /// A JSON schema. With one, a task without a matching result has not succeeded.
    pub schema: Option<PathBuf>,
}

impl Default for ResultOptions {
    fn default() -> ResultOptions {
        ResultOptions { path: ".brig/result.json".to_owned(), schema: None }
    }
}

pub(crate) struct Expected {
    path: TreePath,
    schema: Option<Schema>,
}

impl ResultOptions {
    /// Returns the first error, before brig makes anything.
    pub(crate) fn read(&self, pinned: &Pinned) -> Result<Expected> {
        let path = TreePath::new(self.path.as_bytes()).map_err(|why| {
            Error::new(Kind::Usage, format!("invalid result path `{}`: {why}", self.path.escape_debug()))
                .hint("name a path from the workspace's root, like .brig/result.json")
        })?;
        let schema = self.schema.as_ref().map(|file| {
            let bytes = files::read_bounded(&pinned.path(file), LONGEST)
                .hint(|| "name a file that you can read, of at most 1 MiB")?;
            Schema::parse(&bytes).doing(|| format!("read the schema `{}`", file.display()))
        });
        Ok(Expected { path, schema: schema.transpose()? })
    }
}

/// A task's own result in the receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Its path.
    pub path: String,
    /// Whether it exists, is JSON, and matches the schema if there is one.
    pub valid: bool,
    /// Its faults.
    pub faults: Vec<String>,
    /// The document with secrets hidden, also one that does not match; `null` without a readable one.
    pub value: Value,
}

impl Expected {
    /// For a required result that cannot exist.
    pub(crate) fn missing(&self) -> Option<TaskResult> {
        self.schema.as_ref().map(|_| self.without("it is not there"))
    }

    fn without(&self, why: &str) -> TaskResult {
        TaskResult { path: self.path.to_string(), valid: false, faults: vec![why.to_owned()], value: Value::Null }
    }

    /// `None` for a missing result that was not required.
    pub(crate) fn take(&self, source: Source<'_>, redactor: &Redactor) -> Option<TaskResult> {
        let bytes = match self.read(source) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return self.missing(),
            Err(why) => return Some(self.without(why)),
        };
        // Invalid JSON is not shown: it may contain a secret.
        let value: Value = match serde_json::from_slice(&bytes) {
            Ok(value) => redactor.value(value),
            Err(cause) => return Some(self.without(&redactor.text(&format!("it is not JSON: {cause}")))),
        };
        if serde_json::to_writer_pretty(Bounded::new(std::io::sink(), LONGEST_WRITTEN), &value).is_err() {
            return Some(self.without("as the receipt would have it, it is longer than 16 MiB"));
        }
        let faults = self.schema.as_ref().map(|schema| schema.faults(&value)).unwrap_or_default();
        Some(TaskResult { path: self.path.to_string(), valid: faults.is_empty(), faults, value })
    }

    fn read(&self, source: Source<'_>) -> Result<Option<Vec<u8>>, &'static str> {
        let gone = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR);
        let parent = match tree::parent(source.upper, &self.path) {
            Ok(parent) => parent,
            Err(errno) if gone(errno) => return Ok(None),
            Err(Errno::LOOP) => return Err("a folder on the way is a link, which is not followed"),
            Err(_) => return Err("it cannot be read"),
        };
        match tree::status(parent.as_fd(), self.path.name()) {
            Ok(Some(status)) if source.form.is_whiteout(&status) => return Ok(None),
            Ok(Some(status)) => match tree::file_type(&status) {
                FileType::RegularFile => {}
                FileType::Symlink => return Err("it is a link, which is not followed"),
                _ => return Err("it is not a regular file"),
            },
            Ok(None) => return Ok(None),
            Err(_) => return Err("it cannot be read"),
        }
        let (file, status) = tree::file(parent.as_fd(), self.path.name()).map_err(|_| "it cannot be read")?;
        if source.form.is_file_whiteout(&file, &status).unwrap_or(false) {
            return Ok(None);
        }
        if tree::size(&status) > LONGEST {
            return Err("it is longer than 1 MiB");
        }
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).map_err(|_| "it cannot be read")?;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_long_only_as_the_receipt_has_it_is_not_taken() {
        let expected = ResultOptions::default().read(&Pinned::default()).unwrap();
        let take = |nested: usize, items: usize| {
            let directory = tempfile::tempdir().unwrap();
            let text = "[".repeat(nested) + &"1,".repeat(items) + "1" + &"]".repeat(nested);
            assert!(text.len() as u64 <= LONGEST);
            std::fs::create_dir(directory.path().join(".brig")).unwrap();
            std::fs::write(directory.path().join(".brig/result.json"), text).unwrap();
            let upper = std::fs::File::open(directory.path()).unwrap();
            let source = Source { upper: upper.as_fd(), form: crate::task::output::changes::Form::Plain };
            expected.take(source, &Redactor::new()).unwrap()
        };
        assert!(take(1, 500_000).valid);
        let long = take(120, 500_000);
        assert!(!long.valid && long.value.is_null() && long.faults[0].contains("longer than 16 MiB"), "{long:?}");
    }
}
