//! A range of 65,536 host ids for one sandbox of the machine's root: nobody's accounts, nobody's files, no other sandbox's.
//!
//! The ranges lie in 0x70000000..0x7FFD0000, which systemd's UIDS-GIDS table leaves unused. One byte of a lock file stands for each; the lock
//! is held by the supervisor, so it is free when that is gone, and then the kernel is ending the sandbox (fcntl(2), open file description
//! locks).

use crate::error::{Context, Error, Kind, Result};
use crate::files;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const FIRST: u32 = 0x7000_0000;
const SLOTS: u32 = 0x0FFD;

/// A range that is ours until the last process that holds it is gone.
#[derive(Debug)]
pub(crate) struct Range {
    /// The first host id.
    pub base: u32,
    /// Holds the lock.
    _lock: OwnedFd,
}

impl Range {
    /// How many ids.
    pub(crate) const SIZE: u32 = 65_536;

    /// Takes a range that nobody uses. `directory` is one for the whole machine, whatever the store.
    pub(crate) fn take(directory: &Path) -> Result<Range> {
        files::create_directories(directory, 0o700)?;
        let path = directory.join("id-ranges");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)
            .failing(Kind::UserNamespace, || format!("open the lock `{}`", path.display()))?;
        let delegated = delegated_to_others();
        // Starting at a place of our own keeps many that start at once from trying the same slots.
        let start = std::process::id() % SLOTS;
        for slot in (0..SLOTS).map(|step| (start + step) % SLOTS) {
            let base = FIRST + slot * Self::SIZE;
            if delegated
                .iter()
                .any(|&(first, count)| u64::from(base) < first + count && first < u64::from(base + Self::SIZE))
            {
                continue;
            }
            let lock = libc::flock {
                l_type: libc::F_WRLCK as libc::c_short,
                l_whence: libc::SEEK_SET as libc::c_short,
                l_start: slot.into(),
                l_len: 1,
                l_pid: 0,
            };
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)) {
                Ok(_) => return Ok(Range { base, _lock: file.into() }),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {}
                Err(errno) => return Err(errno).failing(Kind::UserNamespace, || format!("lock `{}`", path.display())),
            }
        }
        Err(Error::new(Kind::UserNamespace, "all 4,093 ranges of host ids are in use").hint("stop some sandboxes"))
    }
}

/// What /etc/subuid and /etc/subgid give to accounts. A line that does not parse gives nothing to anybody.
fn delegated_to_others() -> Vec<(u64, u64)> {
    let parse = |line: &str| {
        let mut fields = line.split(':').skip(1).map(str::trim);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ["/etc/subuid", "/etc/subgid"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| text.lines().filter_map(parse).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_never_share_a_range() {
        let directory = tempfile::tempdir().unwrap();
        let held: Vec<_> = (0..40).map(|_| Range::take(directory.path()).unwrap()).collect();
        let mut bases: Vec<_> = held.iter().map(|range| range.base).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), held.len());
        assert!(bases.iter().all(|base| base % 65_536 == 0 && *base < 0x7FFD_0000));
    }
}
