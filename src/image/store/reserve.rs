//! A reservation keeps the parts of an unfinished image from `prune`: a list in a temporary directory, whose lock ends
//! with its process. The store's shared lock is only held to make it: an hour of download blocks no other process.

use super::{LARGEST_RECORD, Store, Temporary, to_json};
use crate::error::{Context, Kind, Result};
use crate::files::{self, Durability, Names};
use crate::image::Digest;
use crate::image::form::open_child;
use crate::sys::weaken;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

const NAME: &str = "reserved.json";

/// Dropping it releases the digests.
#[derive(Debug)]
pub(crate) struct Reservation {
    _directory: Temporary,
}

/// The reservations of all living processes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reservations {
    /// Chains of layers, digests of blobs and manifests, in hexadecimal.
    pub(crate) digests: BTreeSet<String>,
}

impl Store {
    pub(crate) fn reserve<'all>(&self, digests: impl Iterator<Item = &'all Digest>) -> Result<Reservation> {
        let directory = Temporary::new(self)?;
        let reserved = Reservations { digests: digests.map(|digest| digest.hex().to_owned()).collect() };
        let _moment = self.writing()?; // `prune` has decided before, or will see it
        files::replace(&directory.path().join(NAME), &to_json(&reserved)?, 0o600, Durability::Cached)?;
        Ok(Reservation { _directory: directory })
    }

    /// Needs the exclusive lock of the store.
    pub(crate) fn reserved(&self) -> Result<Reservations> {
        let mut all = Reservations::default();
        if weaken::is_off("image-reservation") {
            return Ok(all);
        }
        let path = self.path.join("temporary");
        let parent = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| files::failed(errno.into(), format!("open `{}`", path.display())))?;
        for (name, _) in Names::of(&parent).failing(Kind::Store, || "list a directory")?.iter() {
            let name = name.to_bytes();
            let Ok(directory) = open_child(parent.as_fd(), name) else { continue };
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                continue; // its process has ended
            }
            let file = path.join(String::from_utf8_lossy(name).as_ref()).join(NAME);
            // Most directories are not reservations, and one may end at this moment.
            let Ok(bytes) = files::read_bounded(&file, LARGEST_RECORD) else { continue };
            if let Ok(reserved) = serde_json::from_slice::<Reservations>(&bytes) {
                all.digests.extend(reserved.digests);
            }
        }
        Ok(all)
    }
}
