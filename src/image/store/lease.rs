//! An image in use: what a sandbox mounts, and the lock that keeps it.

use super::{ImageRecord, Store};
use crate::error::{Context, Error, Kind, Result};
use crate::image::Digest;
use crate::image::config::{Accounts, ImageConfig};
use crate::image::form::Form;
use crate::image::union::Stack;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// An image that `prune` keeps while this exists.
#[derive(Debug)]
pub struct Image {
    /// The manifest's digest.
    pub digest: Digest,
    /// The directories of the layers, topmost first, as overlayfs expects its lower layers.
    pub layers: Vec<PathBuf>,
    /// The on-disk form of the layers: marks and owners.
    pub form: Form,
    /// The image's config.
    pub config: ImageConfig,
    /// Bytes of its layers' tars, unpacked.
    pub size: u64,
    lease: Lease,
}

/// A shared lock on an image. A process that outlives this one and uses the layers needs its descriptor. When the
/// last copy is closed, also by a crash, `prune` may remove the image.
#[derive(Debug)]
pub struct Lease(OwnedFd);

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Image {
    /// The lock.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The lock alone, for a caller that keeps it.
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    /// The image's users and groups, read from its layers without mounting them.
    pub fn accounts(&self) -> Result<Accounts> {
        Accounts::of(&Stack::open(&self.layers, self.form)?)
    }
}

impl Store {
    /// The image of a record, with its lock.
    pub(crate) fn leased(&self, record: ImageRecord, lease: Lease) -> Image {
        Image {
            digest: record.digest.clone(),
            layers: record.chain.iter().rev().map(|chain| self.layer_path(chain).join("fs")).collect(),
            form: self.form,
            config: record.config,
            size: record.size,
            lease,
        }
    }

    /// Takes a shared lock on an image's directory, and checks that the directory was not removed meanwhile.
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
