//! flock(2): the kernel releases a lock when its holder exits, also after a crash.

use crate::error::{Context, Kind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Close-on-exec: a child with the descriptor would hold the lock, too.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

#[derive(Debug)]
pub(crate) enum Attempt {
    Taken(Lock),
    Held,
    Missing,
}

impl Lock {
    /// Creates `path` if it is missing.
    pub(crate) fn wait(path: &Path) -> Result<Lock> {
        let file = open(path, true)?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .failing(Kind::Store, || format!("lock `{}`", path.display()))?;
        Ok(Lock { file })
    }

    /// Calls `pause` until the lock is free. `pause` waits for a moment; its error ends the wait.
    pub(crate) fn wait_while(path: &Path, mut pause: impl FnMut() -> Result<()>) -> Result<Lock> {
        let file = open(path, true)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { file }),
                Err(Errno::WOULDBLOCK) => pause()?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).failing(Kind::Store, || format!("lock `{}`", path.display())),
            }
        }
    }

    /// Records a use as the file's modification time.
    pub(crate) fn touch(&self) {
        // An item with an old time may be removed and made again, without a loss.
        let _ = self.file.set_modified(std::time::SystemTime::now());
    }

    /// Never creates the file: a query must not leave files.
    pub(crate) fn attempt(path: &Path) -> Result<Attempt> {
        let file = match open(path, false) {
            Ok(file) => file,
            Err(error) if error.kind() == Kind::NotFound => return Ok(Attempt::Missing),
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Attempt::Taken(Lock { file })),
            Err(Errno::WOULDBLOCK) => Ok(Attempt::Held),
            Err(errno) => Err(errno).failing(Kind::Store, || format!("lock `{}`", path.display())),
        }
    }
}

fn open(path: &Path, make: bool) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(make)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path);
    opened.map_err(|cause| super::failed(cause, format!("open the lock `{}`", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_not_given_twice_and_a_dropped_one_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(matches!(Lock::attempt(&path).unwrap(), Attempt::Missing));
        assert!(!path.exists());
        let held = Lock::wait(&path).unwrap();
        assert!(matches!(Lock::attempt(&path).unwrap(), Attempt::Held));
        let mut pauses = 0;
        let given_up = Lock::wait_while(&path, || {
            pauses += 1;
            if pauses < 3 { Ok(()) } else { Err(crate::error::Error::new(Kind::State, "enough")) }
        });
        assert_eq!((given_up.unwrap_err().kind(), pauses), (Kind::State, 3));
        drop(held);
        assert!(matches!(Lock::attempt(&path).unwrap(), Attempt::Taken(_)));
    }
}
