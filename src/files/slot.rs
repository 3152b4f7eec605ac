//! Numbers that one process each can hold, as bytes of a lock file (fcntl(2), open file description locks). A number is
//! free when its holder exits, also after a crash.

use super::{create_directories, failed};
use crate::error::Result;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Slot {
    pub number: u32,
    _lock: OwnedFd,
}

impl Slot {
    /// Reserves a free number below `count` that `fits`; `None` if all are taken.
    pub(crate) fn take(
        directory: &Path,
        name: &str,
        count: u32,
        mut fits: impl FnMut(u32) -> bool,
    ) -> Result<Option<Slot>> {
        create_directories(directory, 0o700)?;
        let path = directory.join(name);
        let step = || format!("lock `{}`", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)
            .map_err(|cause| failed(cause, step()))?;
        // Keeps simultaneous starts from trying the same slots.
        let start = std::process::id() % count;
        for number in (0..count).map(|step| (start + step) % count).filter(|number| fits(*number)) {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(number))) {
                Ok(_) => return Ok(Some(Slot { number, _lock: file.into() })),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {}
                Err(errno) => return Err(failed(errno.into(), step())),
            }
        }
        Ok(None)
    }

    pub(crate) fn is_free(directory: &Path, name: &str, number: u32) -> bool {
        let Ok(file) = File::open(directory.join(name)) else { return true };
        let mut lock = byte(number);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok() && lock.l_type == libc::F_UNLCK as libc::c_short
    }
}

fn byte(number: u32) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number.into(),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_holder_and_is_free_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let take = || Slot::take(directory.path(), "slots", 2, |_| true).unwrap();
        let (one, two) = (take().unwrap(), take().unwrap());
        assert_ne!(one.number, two.number);
        assert!(take().is_none());
        assert!(!Slot::is_free(directory.path(), "slots", one.number));
        let number = one.number;
        drop(one);
        assert!(Slot::is_free(directory.path(), "slots", number));
        assert_eq!(take().unwrap().number, number);
        assert!(Slot::take(directory.path(), "slots", 9, |number| number == 7).unwrap().unwrap().number == 7);
    }
}
