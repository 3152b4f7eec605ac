//! Unpacks each image again from its checked blobs into a second store, and compares the layers file by file.

use super::layer::Limits;
use super::load::{self, FromStore, LoadOptions};
use super::store::{ImageRecord, Lease, Store, Temporary};
use super::{Digest, compare};
use crate::error::{Context, Kind, Result};
use crate::files::Lock;
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
        let options = LoadOptions { limits: Limits::highest(), ..LoadOptions::default() };
        let mut again = match load::add(&shadow, &FromStore(self), &record.manifest, &[], &options, &|_| {}) {
            Ok(again) => again,
            Err(error) => {
                let repaired = repair == Repair::Yes && self.remove_damaged(record)?;
                let fault = if repaired {
                    format!("{error}; the blob is removed: pull or load the image again")
                } else {
                    error.to_string()
                };
                verified.findings.push(Finding { image: record.digest.clone(), fault, repaired: false });
                return Ok(());
            }
        };
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
        if repair == Repair::Yes && !damaged.is_empty() {
            shadow.sync_image(&mut again)?;
        }
        for (chain, fault) in damaged {
            let repaired = repair == Repair::Yes && self.repair_layer(chain, &shadow.layer_path(chain), &work)?;
            let in_use = if repair == Repair::Yes && !repaired { "; in use, not repaired" } else { "" };
            let fault = format!("layer {}: {fault}{in_use}", chain.short());
            verified.findings.push(Finding { image: record.digest.clone(), fault, repaired });
        }
        Ok(())
    }

    /// Skips a layer that a sandbox or a load may have open.
    fn repair_layer(&self, chain: &Digest, fresh: &Path, work: &Temporary) -> Result<bool> {
        let _lock = Lock::wait(&self.path().join("lock"))?;
        if self.reserved()?.digests.contains(chain.hex()) {
            return Ok(false);
        }
        self.replace_layer(chain, fresh, &work.path().join(format!("old-{}", chain.hex())))
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
