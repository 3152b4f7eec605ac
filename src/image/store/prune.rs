//! Removes images without a name, layers and blobs without an image, and leftovers of crashes.
//!
//! The exclusive lock covers the decision and renames. The deletion, which may take seconds, follows. A locked image
//! stays with all its parts.

use super::reserve::Reservations;
use super::{Store, Temporary};
use crate::error::{Context, Kind, Result};
use crate::files::{self, Attempt, Lock};
use crate::image::Digest;
use crate::sys::weaken;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The removed items.
#[derive(Debug, Default, Serialize)]
pub struct Pruned {
    /// Images without a name.
    pub images: Vec<Digest>,
    /// Images without a name that are in use.
    pub in_use: Vec<Digest>,
    /// Layers without an image.
    pub layers: u64,
    /// Blobs without an image.
    pub blobs: u64,
    /// Bytes of those blobs, and of those layers' tars.
    pub bytes: u64,
    /// Leftovers of crashed processes.
    pub leftovers: u64,
}

impl Store {
    /// Removes unused items.
    pub fn prune(&self) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let trash = Temporary::new(self)?;
        {
            let _lock = Lock::wait(&self.path.join("lock"))?;
            let reserved = self.reserved()?; // before the names: a finished reservation has a name
            let named: BTreeSet<Digest> = self.names()?.into_iter().map(|(_, digest)| digest).collect();
            // By their directories: a record may be unreadable.
            for (name, _) in list(&self.path.join("images"))? {
                let parsed =
                    ["sha256", "sha512"].iter().find_map(|algorithm| format!("{algorithm}:{name}").parse().ok());
                let Some(digest): Option<Digest> = parsed else { continue };
                if named.contains(&digest) || reserved.digests.contains(&name) {
                    continue;
                }
                match self.set_aside(&digest, trash.path())? {
                    true => pruned.images.push(digest),
                    false => pruned.in_use.push(digest),
                }
            }
            self.set_aside_unused(&trash, &reserved, &mut pruned)?;
            pruned.leftovers = self.sweep()? + self.sweep_partial()?;
        }
        drop(trash);
        Ok(pruned)
    }

    /// Also removes its layers and blobs if no other image has them. `false` if the image has a name or is in use.
    pub(crate) fn remove_image(&self, digest: &Digest) -> Result<bool> {
        let trash = Temporary::new(self)?;
        let _lock = Lock::wait(&self.path.join("lock"))?;
        let reserved = self.reserved()?;
        // Another process may have named it before the lock.
        if reserved.digests.contains(digest.hex()) || self.names()?.iter().any(|(_, named)| named == digest) {
            return Ok(false);
        }
        if !self.set_aside(digest, trash.path())? {
            return Ok(false);
        }
        self.set_aside_unused(&trash, &reserved, &mut Pruned::default())?;
        Ok(true)
    }

    /// `false` if the image is locked, or a file of the store needs it. A process that waits for the lock sees that the
    /// directory has gone.
    fn set_aside(&self, digest: &Digest, trash: &Path) -> Result<bool> {
        let Some(_alone) = self.lock_alone(digest)? else { return Ok(false) };
        if self.is_held(digest)? && !weaken::is_off("image-holders") {
            return Ok(false);
        }
        away(&self.image_path(digest), trash)?;
        Ok(true)
    }

    /// `None` if the image is in use. Needs the exclusive lock of the store.
    pub(crate) fn lock_alone(&self, digest: &Digest) -> Result<Option<OwnedFd>> {
        let path = self.image_path(digest);
        let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = opened.failing(Kind::Store, || format!("open the image `{}`", digest.short()))?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if !weaken::is_off("image-lease") => Ok(None),
            Err(Errno::WOULDBLOCK) | Ok(()) => Ok(Some(directory)),
            Err(errno) => Err(errno).failing(Kind::Store, || format!("lock the image `{}`", digest.short())),
        }
    }

    fn set_aside_unused(&self, trash: &Temporary, reserved: &Reservations, pruned: &mut Pruned) -> Result<()> {
        let images = self.images()?;
        let layers: BTreeSet<&str> = images.iter().flat_map(|image| image.chain.iter().map(Digest::hex)).collect();
        for (name, path) in list(&self.path.join("layers"))? {
            if !layers.contains(name.as_str()) && !reserved.digests.contains(&name) {
                let digest = format!("sha256:{name}").parse::<Digest>();
                pruned.bytes +=
                    digest.ok().and_then(|digest| self.layer(&digest).ok().flatten()).map_or(0, |layer| layer.size);
                away(&path, trash.path())?;
                pruned.layers += 1;
            }
        }
        let blobs: BTreeSet<&str> =
            images.iter().flat_map(|image| image.blobs().map(|blob| blob.digest.hex())).collect();
        for folder in ["sha256", "sha512"] {
            for (name, path) in list(&self.path.join("blobs").join(folder))? {
                if !blobs.contains(name.as_str()) && !reserved.digests.contains(&name) {
                    pruned.bytes += std::fs::metadata(&path).map_or(0, |found| found.len());
                    away(&path, trash.path())?;
                    pruned.blobs += 1;
                }
            }
        }
        Ok(())
    }

    fn sweep_partial(&self) -> Result<u64> {
        let mut swept = 0;
        for (name, path) in list(&self.path.join("temporary"))? {
            let ours = name.starts_with("partial-") || name.starts_with("image-");
            // A download continues in a locked one, or other processes wait for it.
            if ours && matches!(Lock::attempt(&path)?, Attempt::Taken(_)) {
                std::fs::remove_file(&path)
                    .map_err(|cause| files::failed(cause, format!("remove `{}`", path.display())))?;
                swept += u64::from(name.starts_with("partial-"));
            }
        }
        Ok(swept)
    }
}

fn list(path: &Path) -> Result<Vec<(String, std::path::PathBuf)>> {
    let failed = |cause| files::failed(cause, format!("list `{}`", path.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(found)
}

fn away(path: &Path, trash: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default();
    // An image and a layer may have the same digits.
    let kind = path.parent().and_then(Path::file_name).unwrap_or_default();
    let folder = trash.join(kind);
    files::create_directories(&folder, 0o700)?;
    std::fs::rename(path, folder.join(name))
        .map_err(|cause| files::failed(cause, format!("remove `{}`", path.display())))
}
