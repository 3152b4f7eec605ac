//! A directory that a living process locks. The lock ends with the process, so an unlocked directory is left from a
//! crash and may be removed.

use super::Store;
use crate::error::{Context, Kind, Result};
use crate::files::{self, Names};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = ".brig-";

/// Removed on drop. Results are renamed to their place before.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    directory: OwnedFd,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Temporary {
    pub(crate) fn new(store: &Store) -> Result<Temporary> {
        Temporary::in_directory(&store.path.join("temporary"))
    }

    pub(crate) fn in_directory(parent: &Path) -> Result<Temporary> {
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let moment = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
            let path = parent.join(format!("{PREFIX}{}-{number}-{moment:x}", std::process::id()));
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(files::failed(errno.into(), format!("make `{}`", path.display()))),
            }
            // Another process's sweep may remove it between these calls: try again.
            let directory = match open(&path) {
                Err(error) if error.errno() == Some(Errno::NOENT.raw_os_error()) => continue,
                other => other?,
            };
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() && path.exists() {
                return Ok(Temporary { path, directory });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn make(&self, name: &str) -> Result<OwnedFd> {
        let made = rustix::fs::mkdirat(&self.directory, name, Mode::RWXU);
        made.map_err(|errno| files::failed(errno.into(), format!("make `{}/{name}`", self.path.display())))?;
        open(&self.path.join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The next writer sweeps the rest. An error here must not hide an earlier one.
        if let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name())
            && let Ok(parent) = open(parent)
        {
            let _ = files::remove_entry(parent.as_fd(), name.as_encoded_bytes());
        }
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Store, || format!("open `{}`", path.display()))
}

impl Store {
    /// Directories of killed commands, which [`Store::sweep`] removes.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path.join("temporary")).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        let is_free =
            |path: &PathBuf| open(path).is_ok_and(|it| flock(it, FlockOperation::NonBlockingLockShared).is_ok());
        named.map(|entry| entry.path()).filter(is_free).collect()
    }

    /// Returns the number of removed leftovers of crashes.
    pub(crate) fn sweep(&self) -> Result<u64> {
        let parent = open(&self.path.join("temporary"))?;
        let mut swept = 0;
        for (name, _) in Names::of(&parent).failing(Kind::Store, || "list a directory")?.iter() {
            let name = name.to_bytes();
            if !name.starts_with(PREFIX.as_bytes()) {
                continue;
            }
            let Ok(directory) = crate::image::form::open_child(parent.as_fd(), name) else { continue };
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                files::remove_entry(parent.as_fd(), name)?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}
