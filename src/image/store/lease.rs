//! An image in use: what a sandbox mounts, and the lock that keeps it there.

use super::Store;
use crate::error::{Context, Error, Kind, Result};
use crate::image::config::{Accounts, ImageConfig};
use crate::image::form::Form;
use crate::image::union::Stack;
use crate::image::{Digest, load};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// An image that stays as long as this lives.
#[derive(Debug)]
pub struct Image {
    /// The manifest's digest.
    pub digest: Digest,
    /// The directories of the layers, topmost first: as overlayfs wants its lower layers.
    pub layers: Vec<PathBuf>,
    /// How those lie on disk: which overlay marks, whose files.
    pub form: Form,
    /// What the image says about how to run it.
    pub config: ImageConfig,
    /// Bytes of its layers' tars, unpacked.
    pub size: u64,
    lease: Lease,
}

/// A shared lock on an image. Give its descriptor to whatever outlives this process and uses the layers; when the last
/// copy is closed, by a crash too, `prune` may remove the image.
#[derive(Debug)]
pub struct Lease(OwnedFd);

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Image {
    /// The lock, to be kept or handed on.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The image without its lock's guard, for those who keep the lock elsewhere.
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    /// The image's users and groups, read from its layers without mounting them.
    pub fn accounts(&self) -> Result<Accounts> {
        Accounts::of(&Stack::open(&self.layers, self.form)?)
    }
}

impl Store {
    /// The image that `text` means, locked against `prune`. Takes no lock that anybody else could wait for. Layers that a
    /// power cut may have torn are made again first.
    pub fn resolve(&self, text: &str) -> Result<Image> {
        let mut record = self.find(text)?;
        let lease = self.lease(&record.digest).map_err(|error| error.doing(format!("use the image `{text}`")))?;
        if !record.is_trusted() {
            record = load::rebuild(self, &record)?;
        }
        Ok(Image {
            digest: record.digest.clone(),
            layers: record.chain.iter().rev().map(|chain| self.layer_path(chain).join("fs")).collect(),
            form: self.form,
            config: record.config,
            size: record.size,
            lease,
        })
    }

    /// Takes a shared lock on an image's directory, and makes sure that the directory is still the image's.
    pub(crate) fn lease(&self, digest: &Digest) -> Result<Lease> {
        let path = self.image_path(digest);
        let gone = || Error::new(Kind::NotFound, "it was removed just now");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => gone(),
            errno => Error::os(Kind::Store, errno),
        })?;
        loop {
            match flock(&directory, FlockOperation::LockShared) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        }
        .failing(Kind::Store, || "lock it")?;
        let held = fstat(&directory).failing(Kind::Store, || "look at it")?;
        match stat(&path) {
            Ok(named) if named.st_ino == held.st_ino => Ok(Lease(directory)),
            _ => Err(gone()),
        }
    }
}
