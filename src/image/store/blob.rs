//! Every reader checks a blob's digest again, so a blob need not be synced to be safe.

use super::{Store, Temporary};
use crate::error::{Error, Kind, Result};
use crate::files;
use crate::image::Digest;
use crate::image::digest::Hasher;
use crate::image::manifest::{Descriptor, LARGEST_DOCUMENT};
use std::fs::File;
use std::path::Path;

impl Store {
    /// Compares only the size.
    pub(crate) fn has_blob(&self, descriptor: &Descriptor) -> bool {
        std::fs::metadata(self.blob_path(&descriptor.digest)).is_ok_and(|found| found.len() == descriptor.size)
    }

    pub(crate) fn is_whole(&self, descriptor: &Descriptor) -> Result<bool> {
        use std::io::Read;
        if !self.has_blob(descriptor) {
            return Ok(false);
        }
        let (mut file, mut buffer) = (self.open_blob(&descriptor.digest)?, vec![0; 256 << 10]);
        let mut hasher = Hasher::new(descriptor.digest.algorithm());
        loop {
            match file.read(&mut buffer).map_err(|cause| files::failed(cause, "read a blob".into()))? {
                0 => return Ok(hasher.finish() == descriptor.digest),
                count => hasher.update(&buffer[..count]),
            }
        }
    }

    /// Returns whether the content was wrong.
    pub(crate) fn drop_damaged(&self, descriptor: &Descriptor) -> Result<bool> {
        if !self.has_blob(descriptor) || self.is_whole(descriptor)? {
            return Ok(false);
        }
        self.remove_blob(&descriptor.digest).map(|()| true)
    }

    pub(crate) fn remove_blob(&self, digest: &Digest) -> Result<()> {
        let path = self.blob_path(digest);
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                Err(files::failed(cause, format!("remove `{}`", path.display())))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn open_blob(&self, digest: &Digest) -> Result<File> {
        let path = self.blob_path(digest);
        File::open(&path).map_err(|cause| files::failed(cause, format!("open the blob `{digest}`")))
    }

    pub(crate) fn read_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        if descriptor.size > LARGEST_DOCUMENT {
            let size = descriptor.size;
            return Err(Error::new(Kind::Image, format!("{size} bytes are more than {LARGEST_DOCUMENT}")));
        }
        let bytes = files::read_bounded(&self.blob_path(&descriptor.digest), LARGEST_DOCUMENT)?;
        descriptor.check(&bytes)?;
        Ok(bytes)
    }

    pub(crate) fn put_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<()> {
        let work = Temporary::new(self)?;
        let path = work.path().join("blob");
        std::fs::write(&path, bytes).map_err(|cause| files::failed(cause, format!("write the blob `{digest}`")))?;
        self.keep_blob(digest, &path)
    }

    /// The content was checked.
    pub(crate) fn keep_blob(&self, digest: &Digest, path: &Path) -> Result<()> {
        let renamed = std::fs::rename(path, self.blob_path(digest));
        renamed.map_err(|cause| files::failed(cause, format!("keep the blob `{digest}`")))
    }
}
