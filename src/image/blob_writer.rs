//! Stores a blob while it is read. A partial blob from a slow source is kept.

use super::manifest::Descriptor;
use super::source::{Blob, Source};
use super::store::Store;
use crate::error::{Error, Kind, Result};
use crate::files;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

pub(crate) struct BlobWriter<'a> {
    store: &'a Store,
    source: &'a dyn Source,
    descriptor: &'a Descriptor,
    /// `None` if the store has the blob.
    file: Option<(PathBuf, File)>,
}

impl<'a> BlobWriter<'a> {
    /// Continues an interrupted download if no other process uses its file.
    pub(crate) fn open(
        store: &'a Store,
        source: &'a dyn Source,
        descriptor: &'a Descriptor,
        work: &Path,
    ) -> Result<BlobWriter<'a>> {
        if store.has_blob(descriptor) {
            return Ok(BlobWriter { store, source, descriptor, file: None });
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
        Ok(BlobWriter { store, source, descriptor, file: Some(kept) })
    }

    /// First the file's bytes, then the source's, which are written to the file. The bytes of other blobs of the store
    /// are added to `reused`, if they may be used.
    pub(crate) fn blob(&mut self, reused: Option<&mut u64>) -> Result<Blob<'_>> {
        let Some((path, file)) = self.file.as_mut() else {
            return Ok(Box::new(self.store.open_blob(&self.descriptor.digest)?));
        };
        let failed = |cause| files::failed(cause, format!("read `{}`", path.display()));
        let there = file.metadata().map_err(failed)?.len();
        // Longer than the blob: useless.
        let there = if there > self.descriptor.size { 0 } else { there };
        file.set_len(there).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let reader = File::open(&*path).map_err(failed)?.take(there);
        let rest = match reused {
            None => self.source.open(self.descriptor, there)?,
            Some(reused) => {
                let (rest, count) = self.source.open_reusing(self.descriptor, there, self.store)?;
                // An interrupted pull may have taken parts of other blobs.
                *reused = count + there;
                rest
            }
        };
        file.seek(SeekFrom::Start(there)).map_err(failed)?;
        Ok(Box::new(reader.chain(TeeReader { rest, file })))
    }

    /// Keeps an incomplete blob only if the source failed: else it would fill the disk, or be wrong.
    pub(crate) fn give_up(self, error: Error) -> Error {
        if let Some((path, _)) = self.file
            && matches!(error.kind(), Kind::Disk | Kind::Image)
        {
            // Report the first error. If this removal fails, `prune` repeats it.
            let _ = std::fs::remove_file(&path);
        }
        error
    }

    pub(crate) fn finish(self, right: bool) -> Result<()> {
        match self.file {
            None => Ok(()),
            Some((path, _)) if right => self.store.keep_blob(&self.descriptor.digest, &path),
            Some((path, _)) => std::fs::remove_file(&path)
                .map_err(|cause| files::failed(cause, format!("remove the wrong blob `{}`", self.descriptor.digest))),
        }
    }
}

struct TeeReader<'a> {
    rest: Blob<'a>,
    file: &'a mut File,
}

impl Read for TeeReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.rest.read(buffer)?;
        let written = self.file.write_all(&buffer[..count]);
        written.map_err(|cause| std::io::Error::other::<Error>(files::failed(cause, "keep a blob".into())))?;
        Ok(count)
    }
}
