//! Where what a sandbox says goes: its log and events, and whoever watches.

use super::event::{Lines, Writer};
use super::pipeline::Watcher;
use crate::error::Result;
use crate::sandbox::{Notice, Sink, Stream};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The writer of the record and the watcher, as one sink.
pub(super) struct Log<'run> {
    pub(super) writer: Writer,
    watcher: &'run mut dyn Watcher,
    progress: Lines,
    /// Looks for progress in the output, where the command speaks stream-json there.
    output: Option<Lines>,
}

impl<'run> Log<'run> {
    pub(super) fn create(
        directory: &Path,
        id: &str,
        stream_json: bool,
        watcher: &'run mut dyn Watcher,
    ) -> Result<Log<'run>> {
        let writer = Writer::create(directory, id)?;
        Ok(Log { writer, watcher, progress: Lines::default(), output: stream_json.then(Lines::default) })
    }

    fn note(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Tick => self.writer.tick(),
            Notice::State(state) => self.writer.put("state", json!({ "state": state })),
            Notice::Stopping(why) => self.writer.put("state", json!({ "state": "stopping", "because": why })),
            Notice::Limit(hit) => self.writer.put("limit", json!(hit)),
            Notice::Usage(sample) => self.writer.bounded("usage", json!(sample)),
            Notice::Exec(command) => self.writer.bounded("exec", json!({ "command": command })),
            Notice::Progress(bytes) => {
                let objects = self.progress.objects(&bytes);
                objects.into_iter().try_for_each(|data| self.writer.bounded("progress", json!({ "data": data })))
            }
        }
    }
}

impl Sink for Log<'_> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        self.writer.output(stream, bytes)?;
        self.watcher.output(stream == Stream::Error, bytes);
        let found = match (&mut self.output, stream) {
            (Some(lines), Stream::Output) => lines.objects(bytes),
            _ => return Ok(()),
        };
        found.into_iter().try_for_each(|data| self.writer.bounded("progress", json!({ "data": data })))
    }

    fn gate(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.watcher.gate(stream == Stream::Error)
    }

    fn notice(&mut self, notice: Notice) -> Result<()> {
        self.note(notice)
    }
}
