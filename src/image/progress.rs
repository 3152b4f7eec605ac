//! Progress events of a pull, load, push or save.

use super::Digest;
use super::source::Blob;
use std::io::Read;

/// A progress event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The store has the blob already.
    There {
        /// Its digest.
        digest: &'a Digest,
        /// Its size in bytes.
        size: u64,
    },
    /// A blob begins.
    Begin {
        /// Its digest.
        digest: &'a Digest,
        /// Its size in bytes.
        size: u64,
    },
    /// More bytes of a blob.
    Advance {
        /// Its digest.
        digest: &'a Digest,
        /// How many bytes.
        bytes: u64,
    },
    /// The blob is complete.
    Done {
        /// Its digest.
        digest: &'a Digest,
        /// Bytes that came from the store instead of the source.
        reused: u64,
    },
    /// A message for the user: a retry, another mirror.
    Note(&'a str),
}

/// The receiver of events. Several threads call it.
pub type Report<'a> = &'a (dyn Fn(Event<'_>) + Sync);

pub(crate) struct ReportingReader<'a> {
    pub(crate) inner: Blob<'a>,
    pub(crate) digest: &'a Digest,
    pub(crate) report: Report<'a>,
}

impl Read for ReportingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        (self.report)(Event::Advance { digest: self.digest, bytes: count as u64 });
        Ok(count)
    }
}
