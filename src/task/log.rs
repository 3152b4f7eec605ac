//! Where a task's output goes: its log, and whoever watches.

use super::pipeline::Watcher;
use crate::error::{Error, Kind, Result};
use crate::files;
use crate::sandbox::{Sink, Stream};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The log file and the watcher, as one sink.
pub(super) struct Log<'run> {
    file: File,
    watcher: &'run mut dyn Watcher,
}

impl<'run> Log<'run> {
    pub(super) fn create(directory: &Path, watcher: &'run mut dyn Watcher) -> Result<Log<'run>> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(directory.join("output.log"))
            .map_err(|cause| files::failed(cause, "make the log".to_owned()))?;
        Ok(Log { file, watcher })
    }
}

impl Sink for Log<'_> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|cause| {
            Error::os(Kind::Disk, cause).doing("write the log").hint("make room on the disk of the store")
        })?;
        self.watcher.output(stream == Stream::Error, bytes);
        Ok(())
    }

    fn gate(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.watcher.gate(stream == Stream::Error)
    }
}
