//! The redactor of a process that enters a task. The supervisor sends the values; both keep them in memory only.

use crate::error::Result;
use crate::sandbox::Client;
use crate::task::redact::{Redactor, Stream};
use std::path::{Path, PathBuf};

pub(crate) struct Hiding {
    redactor: Redactor,
    streams: [Stream; 2],
    task: PathBuf,
    known: Vec<(String, Vec<u8>)>,
}

impl Hiding {
    /// `interactive` if a user types.
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

    /// Returns the visible part. The redactor gets a new value before it is readable inside.
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

    pub(crate) fn text(&self, text: &str) -> String {
        self.redactor.text(text)
    }

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
