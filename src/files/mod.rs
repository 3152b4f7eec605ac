//! Atomic replacement, locks, tree walks, and sockets between brig's processes.
//!
//! Only brig writes below the store and the state directory. Hostile paths, in a container's root or a workspace, go
//! through `mounts::resolve`.

mod channel;
mod copy;
pub(crate) mod hash;
mod lock;
mod memory;
mod names;
mod parallel;
mod patterns;
mod pinned;
mod slot;
mod tree;
mod walk;

#[cfg(test)]
pub(crate) use crate::sys::skip;
pub(crate) use channel::{Channel, Packet};
pub(crate) use copy::{copy_data, next_data, times};
pub(crate) use lock::{Attempt, Lock};
pub(crate) use memory::{memory_of, new_memory, new_sealable_memory, read_memory, take_memory, write_memory};
pub(crate) use names::{Names, has_entries};
pub(crate) use parallel::{in_parallel, lost};
pub(crate) use patterns::{HiddenMatcher, Patterns};
pub(crate) use pinned::Pinned;
pub(crate) use slot::Slot;
pub(crate) use tree::{Contents, bytes_on_disk, contents, empty_directory, remove_directory, remove_entry};
pub(crate) use walk::{Bounds, DIRECTORY, LeftDirectory, Step as WalkStep, Stop, Walk, open_directory};

use crate::error::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

/// Whether poll(2) finds one of `flags` until `end`. A signal does not end the wait.
pub(crate) fn is_ready_by(file: impl AsFd, flags: PollFlags, end: Instant) -> Result<bool, Errno> {
    retry_on_intr(|| {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        poll(&mut [PollFd::new(&file, flags)], Some(&left))
    })
    .map(|ready| ready > 0)
}

/// The fields of `/proc/PID/stat` from the third on (proc_pid_stat(5)). The second one, the name, may contain anything.
pub(crate) fn fields_of(stat: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let name = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(&stat[name + 1..]).ok()?.split_ascii_whitespace())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The page cache is enough: after a power cut the process that the file describes is gone, too.
    Cached,
    /// fsync(2) before the file gets its name.
    Synced,
}

/// Atomic: a temporary name, then rename(2).
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()> {
    replace_by(path, mode, durability, |file| file.write_all(bytes))
}

pub(crate) fn replace_by(
    path: &Path,
    mode: u32,
    durability: Durability,
    write: impl FnOnce(&mut fs::File) -> std::io::Result<()>,
) -> Result<()> {
    let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
    let written = (|| {
        // An existing file may be a link or left by a crash.
        let make = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
        let mut file = match make() {
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                fs::remove_file(&temporary)?;
                make()?
            }
            made => made?,
        };
        write(&mut file)?;
        if durability == Durability::Synced {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The error below matters more.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(|cause| failed(cause, format!("write `{}`", path.display())))
}

/// Fails beyond the limit that [`read_bounded`] enforces.
pub(crate) struct Bounded<Out> {
    out: Out,
    left: u64,
}

impl<Out> Bounded<Out> {
    pub(crate) fn new(out: Out, limit: u64) -> Bounded<Out> {
        Bounded { out, left: limit }
    }
}

impl<Out: Write> Write for Bounded<Out> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let longer = || std::io::Error::other("it would be longer than what is read back");
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(longer)?;
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Like mkdir -p.
pub(crate) fn create_directories(path: &Path, mode: u32) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|cause| failed(cause, format!("make the directory `{}`", path.display())))
}

/// A file longer than `limit` bytes is foreign or corrupt.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| {
        // Room for the whole file and its end; std would begin with 32 bytes.
        bytes.reserve(file.metadata()?.len().min(limit) as usize + 64);
        file.take(limit + 1).read_to_end(&mut bytes)
    });
    let length = read.map_err(|cause| failed(cause, format!("read `{}`", path.display())))?;
    if length as u64 > limit {
        return Err(
            Error::new(Kind::Record, format!("longer than {limit} bytes")).doing(format!("read `{}`", path.display()))
        );
    }
    Ok(bytes)
}

/// A link or a FIFO in place of a regular file would be another owner's choice.
pub(crate) fn read_plain(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    use std::io::{Error, Read};
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    match file.take(limit + 1).read_to_end(&mut bytes)? as u64 > limit {
        true => Err(Error::other(format!("longer than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Resolves `.` and `..` by the letter.
pub(crate) fn clean_path(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    clean
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    hash::hexadecimal(&hash::sha256(bytes))
}

/// The user must free a full disk; the store is at fault for other errors.
pub(crate) fn failed(cause: std::io::Error, step: String) -> Error {
    let kind = match cause.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Kind::Disk,
        Some(libc::ENOENT) => Kind::NotFound,
        _ => Kind::Store,
    };
    Error::os(kind, cause).doing(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_whole_and_leaves_no_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        replace(&path, b"one", 0o600, Durability::Cached).unwrap();
        replace(&path, b"two", 0o600, Durability::Synced).unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(read_bounded(&path, 2).unwrap_err().kind(), Kind::Record);
    }

    #[test]
    fn a_file_is_ready_at_once_or_not_until_the_end() {
        let end = Instant::now() + std::time::Duration::from_millis(20);
        let (read, write) = std::io::pipe().unwrap();
        assert_eq!(is_ready_by(&read, PollFlags::IN, end), Ok(false));
        assert!(Instant::now() >= end);
        assert_eq!(is_ready_by(&write, PollFlags::OUT, end), Ok(true));
    }

    #[test]
    fn fields_of_a_process_begin_after_any_name() {
        let fields = |stat: &'static [u8]| fields_of(stat).map(Iterator::collect::<Vec<_>>);
        assert_eq!(fields(b"7 (a) \xff( )) S 1 2\n").unwrap(), ["S", "1", "2"]);
        assert_eq!(fields(b"7 (a"), None);
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let error = replace(Path::new("/proc/nope/x"), b"", 0o600, Durability::Cached).unwrap_err();
        assert!(error.to_string().starts_with("write `/proc/nope/x`: "), "{error}");
    }
}
