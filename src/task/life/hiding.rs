//! The redactor of a process that enters a task. It gets the values from the supervisor; both keep them in memory only.

use crate::error::Result;
use crate::sandbox::Client;
use crate::task::redact::{Redactor, Stream};
use std::path::{Path, PathBuf};

/// Hides the secrets of one task in two streams.
pub(crate) struct Hiding {
    redactor: Redactor,
    streams: [Stream; 2],
    task: PathBuf,
    known: Vec<(String, Vec<u8>)>,
}

impl Hiding {
    /// For a process of the task in this directory; `interactive` if a user types.
    pub(crate) fn new(task: &Path, interactive: bool) -> Result<Hiding> {
        let streams = [Stream::new(interactive), Stream::new(interactive)];
        let mut hiding = Hiding { redactor: Redactor::new(), streams, task: task.to_owned(), known: Vec::new() };
        hiding.learn(Client::connect(task)?.values()?);
        Ok(hiding)
    }

    fn learn(&mut self, values: Vec<(String, Vec<u8>)>) {
        if values != self.known {
            // Keep old values: they may still appear.
            for (name, value) in &values {
                self.redactor.add(name, value);
            }
            self.known = values;
        }
    }

    /// The visible part of these bytes. A new value is added to the redactor before it is readable inside.
    pub(crate) fn pass(&mut self, error: bool, bytes: &[u8]) -> Vec<u8> {
        if !self.known.is_empty()
            && let Ok(values) = Client::connect(&self.task).and_then(|client| client.values())
        {
            self.learn(values); // an ended task has no new values
        }
        let mut passed = Vec::with_capacity(bytes.len());
        self.redactor.push(&mut self.streams[usize::from(error)], bytes, &mut passed);
        passed
    }

    /// The visible part of a whole text.
    pub(crate) fn text(&self, text: &str) -> String {
        self.redactor.text(text)
    }

    /// The held bytes at the end.
    pub(crate) fn finish(&mut self, error: bool) -> Vec<u8> {
        let mut passed = Vec::new();
        self.redactor.finish(&mut self.streams[usize::from(error)], &mut passed);
        passed
    }
}

impl std::fmt::Debug for Hiding {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Hiding").field("task", &self.task).finish_non_exhaustive()
    }
}
