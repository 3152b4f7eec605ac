//! An image in use, and the lock that keeps it.
//!
//! A file that needs the image for longer has a note in the image's directory, `holders/NAME`, with its path in the
//! store. The note counts while that file exists, so a crash between the two leaves nothing to mend.

use super::{ImageRecord, Store};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability};
use crate::image::Digest;
use crate::image::config::{Accounts, ImageConfig};
use crate::image::form::Form;
use crate::image::union::Stack;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const HOLDERS: &str = "holders";
const LONGEST_PATH: u64 = 4096;

/// `prune` keeps the image while this exists.
#[derive(Debug)]
pub struct Image {
    /// The manifest's digest.
    pub digest: Digest,
    /// The directories of the layers, topmost first, as overlayfs expects.
    pub layers: Vec<PathBuf>,
    /// The on-disk form of the layers: marks and owners.
    pub form: Form,
    /// The image's config.
    pub config: ImageConfig,
    /// Bytes of its layers' tars, unpacked.
    pub size: u64,
    lease: Lease,
}

/// A shared lock on an image. A process that outlives this one and uses the layers needs its descriptor. When the last
/// copy is closed, `prune` may remove the image.
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

    /// Read from the layers without mounting them.
    pub fn accounts(&self) -> Result<Accounts> {
        Accounts::of(&Stack::open(&self.layers, self.form)?)
    }
}

impl Store {
    pub(crate) fn leased(&self, record: ImageRecord, lease: Lease) -> Image {
        Image {
            digest: record.digest.clone(),
            layers: self.layer_directories(&record),
            form: self.form,
            config: record.config,
            size: record.size,
            lease,
        }
    }

    /// Keeps an image while the store has a file at `path`, relative to the store. `name` replaces an earlier note.
    /// Needs the image's lock, so that `prune` sees the note.
    pub(crate) fn hold(&self, image: &Image, name: &str, path: &Path) -> Result<()> {
        let folder = self.image_path(&image.digest).join(HOLDERS);
        files::create_directories(&folder, 0o700)?;
        files::replace(&folder.join(name), path.as_os_str().as_bytes(), 0o600, Durability::Synced)
    }

    /// Removes notes whose file is gone. Needs the image's exclusive lock, under which no process makes a note.
    pub(super) fn is_held(&self, digest: &Digest) -> Result<bool> {
        let folder = self.image_path(digest).join(HOLDERS);
        let entries = match std::fs::read_dir(&folder) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(|cause| files::failed(cause, format!("list `{}`", folder.display())))?,
        };
        let mut is_held = false;
        for entry in entries {
            let note = entry.map_err(|cause| files::failed(cause, format!("list `{}`", folder.display())))?.path();
            let held = files::read_bounded(&note, LONGEST_PATH)?;
            if self.path.join(OsStr::from_bytes(&held)).exists() {
                is_held = true;
            } else {
                std::fs::remove_file(&note)
                    .map_err(|cause| files::failed(cause, format!("remove `{}`", note.display())))?;
            }
        }
        Ok(is_held)
    }

    /// Checks that the directory was not removed before the lock.
    pub(crate) fn lease(&self, digest: &Digest) -> Result<Lease> {
        let path = self.image_path(digest);
        let gone = || Error::new(Kind::NotFound, "it was removed just now");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => gone(),
            errno => Error::os(Kind::Store, errno),
        })?;
        retry_on_intr(|| flock(&directory, FlockOperation::LockShared)).failing(Kind::Store, || "lock it")?;
        let held = fstat(&directory).failing(Kind::Store, || "look at it")?;
        match stat(&path) {
            Ok(named) if named.st_ino == held.st_ino => Ok(Lease(directory)),
            _ => Err(gone()),
        }
    }
}
