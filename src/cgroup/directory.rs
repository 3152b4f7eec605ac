//! One group's directory, held open: its files are read and written relative to the descriptor, each by one call.

use crate::error::{Context, Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More than any file of a group that we read, but for the lists of processes, which are read in rounds.
const FILE_BYTES: usize = 16 * 1024;

/// More than most counters have; a longer one is read in the ordinary way.
const COUNTER_BYTES: usize = 1024;

/// How often and how long the removal of a group waits for the kernel to let go of its last processes: 1 ms, doubled
/// each time, a second in all.
pub(super) const REMOVE_TRIES: u32 = 10;

#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// Counters that were read once and will be again.
    kept: RefCell<Vec<(String, OwnedFd)>>,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Directory, Errno> {
        let fd = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Directory { fd, path: path.to_path_buf(), kept: RefCell::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a file of the group for writing.
    pub(super) fn writer(&self, file: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens a file of the group for reading.
    pub(super) fn reader(&self, file: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Writes `value` in one call: the kernel takes a write as one order.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        rustix::io::write(self.writer(file)?, value.as_bytes()).map(drop)
    }

    /// [`Directory::write`] with words.
    pub(super) fn set(&self, file: &str, value: &str) -> Result<()> {
        self.write(file, value).map_err(|errno| self.refused(file, value, errno))
    }

    /// Why a write failed, in words.
    pub(super) fn refused(&self, file: &str, value: &str, errno: Errno) -> Error {
        let path = self.path.join(file);
        let error = Error::os(Kind::Cgroup, errno).doing(format!("write `{value}` to `{}`", path.display()));
        match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => error.hint(super::refusal::fix_permission()),
            Errno::NOENT => error.hint("use a kernel that has this limit"),
            Errno::INVAL | Errno::RANGE => error.hint("give a value that this kernel accepts"),
            Errno::BUSY => error.hint("give a limit above what is in use, or end processes of the container first"),
            _ => error,
        }
    }

    /// The whole of a file.
    pub(super) fn read(&self, file: &str) -> Result<String, Errno> {
        read_all(&self.reader(file)?)
    }

    /// A counter's file, which stays open, so that the next reading of it is one call. The kernel makes the text anew for each that begins at 0.
    pub(super) fn count(&self, file: &str) -> Result<String, Errno> {
        let mut kept = self.kept.borrow_mut();
        let at = match kept.iter().position(|(name, _)| name == file) {
            Some(at) => at,
            None => {
                kept.push((file.to_owned(), self.reader(file)?));
                kept.len() - 1
            }
        };
        let mut bytes = [0; COUNTER_BYTES];
        let length = rustix::io::pread(&kept[at].1, &mut bytes, 0)?;
        if length < bytes.len() { Ok(String::from_utf8_lossy(&bytes[..length]).into_owned()) } else { self.read(file) }
    }

    /// [`Directory::read`] with words.
    pub(super) fn get(&self, file: &str) -> Result<String> {
        self.read(file).failing(Kind::Cgroup, || format!("read `{}`", self.path.join(file).display()))
    }

    /// The names of the groups in this one: bytes that a container may have chosen, and then they are not always text.
    pub(super) fn children(&self) -> Result<Vec<OsString>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Opens a group in this one.
    pub(super) fn child(&self, name: impl AsRef<Path>) -> Result<Directory, Errno> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Directory { fd, path: self.path.join(name), kept: RefCell::default() })
    }

    /// Every process of this group and of the groups below it. Those that vanish meanwhile are left out.
    pub(super) fn processes(&self, found: &mut Vec<i32>) -> Result<(), Errno> {
        match self.read("cgroup.procs") {
            Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
            // A threaded group of v2 has no processes of its own: they are listed by its domain.
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let children = match self.children() {
            Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
            other => other?,
        };
        for name in children {
            match self.child(&name) {
                Ok(child) => child.processes(found)?,
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Makes the directory of a group; `false` if there is one already.
pub(super) fn make(path: &Path) -> Result<bool, Errno> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes a group in which nobody is and that has none below. Whether it is gone.
pub(crate) fn remove_empty(path: &Path) -> bool {
    matches!(unlinkat(CWD, path, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
}

/// Removes a group and those below it, children first. One that is gone is fine. While the kernel still counts processes
/// that have ended a group is busy: then it is tried `tries` times again, each time after twice as long.
pub(super) fn remove(path: &Path, tries: u32) -> Result<(), Errno> {
    let mut pause = Duration::from_millis(1);
    for attempt in 1.. {
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if attempt <= tries => {}
            Err(errno) => return Err(errno),
        }
        let children = Directory::open(path).and_then(|directory| directory.children()).unwrap_or_default();
        for name in &children {
            remove(&path.join(name), tries)?;
        }
        if children.is_empty() {
            std::thread::sleep(pause);
            pause *= 2;
        }
    }
    Ok(())
}

pub(super) fn read_all(file: &OwnedFd) -> Result<String, Errno> {
    let mut bytes = vec![0; FILE_BYTES];
    let mut length = 0;
    loop {
        match rustix::io::read(file, &mut bytes[length..])? {
            0 => break,
            more => length += more,
        }
        if length == bytes.len() {
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
