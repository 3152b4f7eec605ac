//! Unpacks each image again from its checked blobs into a second store, and compares the layers file by file.

use super::load::{self, FromStore, LoadOptions};
use super::store::{ImageRecord, Lease, Store, Temporary};
use super::{Digest, compare};
use crate::error::{Context, Kind, Result};
use crate::files::{self, Lock};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A fault.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The image with the fault.
    pub image: Digest,
    /// The fault in words.
    pub fault: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// The result of `verify`.
#[derive(Debug, Default, Serialize)]
pub struct Verified {
    /// Checked images.
    pub images: u64,
    /// Compared layers.
    pub layers: u64,
    /// Faults, if any.
    pub findings: Vec<Finding>,
}

/// Whether faults are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Only reports them.
    No,
    /// Replaces damaged layers that are not in use. Removes damaged blobs: the next pull or load fetches them.
    Yes,
}

impl Store {
    /// Checks every image, or the named ones.
    pub fn verify(&self, images: &[String], repair: Repair) -> Result<Verified> {
        let records = match images {
            [] => self.images()?,
            some => some.iter().map(|text| self.find(text)).collect::<Result<Vec<_>>>()?,
        };
        let mut verified = Verified::default();
        for record in records {
            // An image may be removed meanwhile.
            let Ok(lease) = self.lease(&record.digest) else { continue };
            verified.images += 1;
            self.verify_image(&record, lease, repair, &mut verified)?;
        }
        Ok(verified)
    }

    fn verify_image(&self, record: &ImageRecord, lease: Lease, repair: Repair, verified: &mut Verified) -> Result<()> {
        let work = Temporary::new(self)?;
        let shadow = Store::open(&work.path().join("store"))?;
        let again = load::add(&shadow, &FromStore(self), &record.manifest, &[], &LoadOptions::default(), &|_| {});
        if let Err(error) = again {
            let repaired = repair == Repair::Yes && self.remove_damaged(record)?;
            let fault = if repaired {
                format!("{error}; the blob is removed: pull or load the image again")
            } else {
                error.to_string()
            };
            verified.findings.push(Finding { image: record.digest.clone(), fault, repaired: false });
            return Ok(());
        }
        let mut damaged = Vec::new();
        for chain in &record.chain {
            verified.layers += 1;
            let (ours, fresh) = (self.layer_path(chain), shadow.layer_path(chain));
            let fault = match open(&ours.join("fs")) {
                Ok(ours) => compare::difference(ours.as_fd(), open(&fresh.join("fs"))?.as_fd(), "/")?,
                Err(_) => Some("it is missing".to_owned()),
            };
            let fault = match fault {
                None if self.layer(chain)?.is_none() => {
                    Some("its record is missing or from before a restart".to_owned())
                }
                fault => fault,
            };
            damaged.extend(fault.map(|fault| (chain, fault)));
        }
        drop(lease); // this lease would block the repair
        for (chain, fault) in damaged {
            let repaired = repair == Repair::Yes && self.replace_layer(chain, &shadow.layer_path(chain), &work)?;
            let in_use = if repair == Repair::Yes && !repaired { "; in use, not repaired" } else { "" };
            let fault = format!("layer {}: {fault}{in_use}", chain.short());
            verified.findings.push(Finding { image: record.digest.clone(), fault, repaired });
        }
        Ok(())
    }

    /// Skips a layer that a sandbox or a load may have open. An overlay's lower directory must not change, and the old
    /// one is deleted.
    fn replace_layer(&self, chain: &Digest, fresh: &Path, work: &Temporary) -> Result<bool> {
        let _lock = Lock::wait(&self.path().join("lock"))?;
        if self.reserved()?.digests.contains(chain.hex()) {
            return Ok(false);
        }
        let mut alone = Vec::new();
        for image in self.images()?.iter().filter(|image| image.chain.contains(chain)) {
            match self.lock_alone(&image.digest)? {
                Some(lock) => alone.push(lock),
                None => return Ok(false),
            }
        }
        let failed = |cause| files::failed(cause, format!("replace the layer `{}`", chain.short()));
        let ours = self.layer_path(chain);
        if ours.exists() {
            std::fs::rename(&ours, work.path().join(format!("old-{}", chain.hex()))).map_err(failed)?;
        }
        std::fs::rename(fresh, &ours).map_err(failed)?;
        Ok(true)
    }

    fn remove_damaged(&self, record: &ImageRecord) -> Result<bool> {
        let mut removed = false;
        for blob in record.blobs() {
            if !self.is_whole(blob)? {
                self.remove_blob(&blob.digest)?;
                removed = true;
            }
        }
        Ok(removed)
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Store, || format!("open `{}`", path.display()))
}
