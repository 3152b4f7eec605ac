//! What an image that is on its way needs, so that `prune` leaves it alone while nothing of it has a name yet.
//!
//! A reservation is a list in a temporary directory, which is locked by its process and so gone with it. It is made under the store's shared
//! lock, and then that lock is given back: a download of an hour holds nobody up.

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

/// Digests that a living process will need; dropping it lets them go.
#[derive(Debug)]
pub(crate) struct Reservation {
    _directory: Temporary,
}

/// What all living processes have reserved.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reserved {
    /// Chains of layers, digests of blobs and of manifests alike, in hexadecimal.
    pub(crate) digests: BTreeSet<String>,
}

impl Store {
    /// Keeps these from `prune`.
    pub(crate) fn reserve<'all>(&self, digests: impl Iterator<Item = &'all Digest>) -> Result<Reservation> {
        let directory = Temporary::new(self)?;
        let reserved = Reserved { digests: digests.map(|digest| digest.hex().to_owned()).collect() };
        let _moment = self.writing()?; // `prune` has decided, or will see it
        files::replace(&directory.path().join(NAME), &to_json(&reserved)?, 0o600, Durability::Cached)?;
        Ok(Reservation { _directory: directory })
    }

    /// All that is reserved. Asked under the exclusive lock.
    pub(super) fn reserved(&self) -> Result<Reserved> {
        let mut all = Reserved::default();
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
                continue; // its process is gone
            }
            let file = path.join(String::from_utf8_lossy(name).as_ref()).join(NAME);
            // Most temporary directories are no reservations, and one may end at this moment.
            let Ok(bytes) = files::read_bounded(&file, LARGEST_RECORD) else { continue };
            if let Ok(reserved) = serde_json::from_slice::<Reserved>(&bytes) {
                all.digests.extend(reserved.digests);
            }
        }
        Ok(all)
    }
}
