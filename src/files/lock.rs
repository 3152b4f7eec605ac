//! Locks on files with flock(2): the kernel drops them when the holder dies, so a crash never leaves one behind.

use crate::error::{Context, Kind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A held lock; dropping it releases it. A child that inherits the descriptor would hold it too, so it is close-on-exec.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Waits until nobody else holds the lock of `path` (made if missing) and takes it.
    pub(crate) fn wait(path: &Path) -> Result<Lock> {
        let file = open(path)?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        }
        .failing(Kind::Store, || format!("lock `{}`", path.display()))?;
        Ok(Lock(file))
    }

    /// Takes the lock if it is free; `None` if somebody holds it.
    pub(crate) fn attempt(path: &Path) -> Result<Option<Lock>> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno).failing(Kind::Store, || format!("lock `{}`", path.display())),
        }
    }

    /// The locked file itself, for those who keep a line in it.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|cause| super::failed(cause, format!("open the lock `{}`", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_not_given_twice_and_a_dropped_one_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Lock::wait(&path).unwrap();
        assert!(Lock::attempt(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::attempt(&path).unwrap().is_some());
    }
}
