//! A blob on its way into the store: kept while it passes by, and, from a slow source, kept even if the rest does not come,
//! so that the next try goes on where this one ended.

use super::manifest::Descriptor;
use super::source::{Blob, Source};
use super::store::Store;
use crate::error::{Error, Kind, Result};
use crate::files;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where a blob comes from and where it is kept.
pub(crate) struct Keeping<'a> {
    store: &'a Store,
    source: &'a dyn Source,
    descriptor: &'a Descriptor,
    /// The file that it is kept in, unless the store has it already.
    file: Option<(PathBuf, File)>,
}

impl<'a> Keeping<'a> {
    /// Chooses the file: one that a broken download has left, if nobody else is at it; else one in `work`.
    pub(crate) fn open(
        store: &'a Store,
        source: &'a dyn Source,
        descriptor: &'a Descriptor,
        work: &Path,
    ) -> Result<Keeping<'a>> {
        if store.has_blob(descriptor) {
            return Ok(Keeping { store, source, descriptor, file: None });
        }
        let open = |path: PathBuf| -> Result<(PathBuf, File)> {
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(|cause| files::failed(cause, format!("open `{}`", path.display())))?;
            Ok((path, file))
        };
        let mut kept = open(match source.is_slow() {
            true => store.path().join("temporary").join(format!("partial-{}", descriptor.digest.hex())),
            false => work.join("blob"),
        })?;
        if flock(&kept.1, FlockOperation::NonBlockingLockExclusive).is_err() {
            kept = open(work.join("blob"))?;
        }
        Ok(Keeping { store, source, descriptor, file: Some(kept) })
    }

    /// The blob's bytes: what is there from the file, the rest from the source and into the file.
    pub(crate) fn blob(&mut self) -> Result<Blob<'_>> {
        let Some((path, file)) = self.file.as_mut() else {
            return Ok(Box::new(self.store.open_blob(&self.descriptor.digest)?));
        };
        let failed = |cause| files::failed(cause, format!("read `{}`", path.display()));
        let there = file.metadata().map_err(failed)?.len();
        // Longer than it can be: of no use.
        let there = if there > self.descriptor.size { 0 } else { there };
        file.set_len(there).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let reader = File::open(&*path).map_err(failed)?.take(there);
        let rest = self.source.open(self.descriptor, there)?;
        file.seek(SeekFrom::Start(there)).map_err(failed)?;
        Ok(Box::new(reader.chain(Kept { rest, file })))
    }

    /// The blob has not been read to its end. What has come is kept for the next try if the source is why; not if the disk is, which
    /// it would go on filling, or the content, of which more would come.
    pub(crate) fn give_up(self, error: Error) -> Error {
        if let Some((path, _)) = self.file
            && matches!(error.kind(), Kind::Disk | Kind::Image)
        {
            // Why it was given up is worth more than why it could not be removed, which `prune` does too.
            let _ = std::fs::remove_file(&path);
        }
        error
    }

    /// Gives the blob its name if it was right; throws it away if it was complete and wrong.
    pub(crate) fn finish(self, right: bool) -> Result<()> {
        match self.file {
            None => Ok(()),
            Some((path, _)) if right => self.store.keep_blob(&self.descriptor.digest, &path),
            Some((path, _)) => std::fs::remove_file(&path)
                .map_err(|cause| files::failed(cause, format!("remove the wrong blob `{}`", self.descriptor.digest))),
        }
    }
}

/// What passes is written too.
struct Kept<'a> {
    rest: Blob<'a>,
    file: &'a mut File,
}

impl Read for Kept<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.rest.read(buffer)?;
        let written = self.file.write_all(&buffer[..count]);
        written.map_err(|cause| std::io::Error::other::<Error>(files::failed(cause, "keep a blob".into())))?;
        Ok(count)
    }
}
