//! The redactor in the process of somebody who enters a task: it asks the supervisor for the values, which are in memory only, there and here.

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
    /// For a process of the task in this directory; `interactive` if somebody types at it.
    pub(crate) fn new(task: &Path, interactive: bool) -> Result<Hiding> {
        let streams = [Stream::new(interactive), Stream::new(interactive)];
        let mut hiding = Hiding { redactor: Redactor::new(), streams, task: task.to_owned(), known: Vec::new() };
        hiding.learn(Client::connect(task)?.values()?);
        Ok(hiding)
    }

    fn learn(&mut self, values: Vec<(String, Vec<u8>)>) {
        if values != self.known {
            // Old ones stay: what was replaced may still come.
            for (name, value) in &values {
                self.redactor.add(name, value);
            }
            self.known = values;
        }
    }

    /// What of these bytes may be seen. A secret that was replaced is hidden before its new value can be read inside, so whoever asks first knows it.
    pub(crate) fn pass(&mut self, error: bool, bytes: &[u8]) -> Vec<u8> {
        if !self.known.is_empty()
            && let Ok(values) = Client::connect(&self.task).and_then(|client| client.values())
        {
            self.learn(values); // a task that is over has no new ones
        }
        let mut passed = Vec::with_capacity(bytes.len());
        self.redactor.push(&mut self.streams[usize::from(error)], bytes, &mut passed);
        passed
    }

    /// What is held back at the end.
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
