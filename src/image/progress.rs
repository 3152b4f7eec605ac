//! What is going on, for whoever shows it.

use super::Digest;
use super::source::Blob;
use std::io::Read;

/// One step of a pull, load, push or save.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A blob is there already.
    There {
        /// Which.
        digest: &'a Digest,
        /// Its bytes.
        size: u64,
    },
    /// A blob is on its way.
    Begin {
        /// Which.
        digest: &'a Digest,
        /// Its bytes.
        size: u64,
    },
    /// More bytes of it.
    Advance {
        /// Which.
        digest: &'a Digest,
        /// How many.
        bytes: u64,
    },
    /// It is there.
    Done {
        /// Which.
        digest: &'a Digest,
    },
    /// Something worth a line: a retry, another mirror.
    Note(&'a str),
}

/// Who is told. Called from several threads.
pub type Report<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// A blob that reports what is read of it.
pub(crate) struct Watched<'a> {
    pub(crate) inner: Blob<'a>,
    pub(crate) digest: &'a Digest,
    pub(crate) report: Report<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        (self.report)(Event::Advance { digest: self.digest, bytes: count as u64 });
        Ok(count)
    }
}
