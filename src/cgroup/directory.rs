//! The open directory of one group. Each file is read or written by one call.

use crate::error::{Context, Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More than any file except lists of processes, which take several reads.
const FILE_BYTES: usize = 16 * 1024;

/// Enough for most counters, and small enough for the stack.
const COUNTER_BYTES: usize = 1024;

/// While the kernel still counts ended processes: 1 ms, doubled each time, a second in all.
pub(super) const REMOVE_TRIES: u32 = 10;

#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    counters: RefCell<Vec<(String, OwnedFd)>>,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Directory, Errno> {
        let fd = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Directory { fd, path: path.to_path_buf(), counters: RefCell::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn writer(&self, file: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    }

    pub(super) fn reader(&self, file: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// In one call: the kernel parses each write by itself.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        rustix::io::write(self.writer(file)?, value.as_bytes()).map(drop)
    }

    /// [`Directory::write`] with a full error.
    pub(super) fn set(&self, file: &str, value: &str) -> Result<()> {
        self.write(file, value).map_err(|errno| self.refused(file, value, errno))
    }

    pub(super) fn refused(&self, file: &str, value: &str, errno: Errno) -> Error {
        let path = self.path.join(file);
        let error = Error::os(Kind::Cgroup, errno).doing(format!("write `{value}` to `{}`", path.display()));
        match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => error.hint(permission_hint()),
            Errno::NOENT => error.hint("use a kernel that has this limit"),
            Errno::INVAL | Errno::RANGE => error.hint("give a value that this kernel accepts"),
            Errno::BUSY => error.hint("give a limit above what is in use, or end processes of the container first"),
            _ => error,
        }
    }

    pub(super) fn read(&self, file: &str) -> Result<String, Errno> {
        read_all(&self.reader(file)?)
    }

    /// Keeps the file open: the next reading is one call. The kernel formats the text anew for each read at offset 0.
    pub(super) fn count(&self, file: &str) -> Result<String, Errno> {
        let mut counters = self.counters.borrow_mut();
        let at = match counters.iter().position(|(name, _)| name == file) {
            Some(at) => at,
            None => {
                counters.push((file.to_owned(), self.reader(file)?));
                counters.len() - 1
            }
        };
        let mut bytes = [0; COUNTER_BYTES];
        let length = rustix::io::pread(&counters[at].1, &mut bytes, 0)?;
        if length < bytes.len() {
            return Ok(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        read_all(&counters[at].1)
    }

    /// [`Directory::read`] with a full error.
    pub(super) fn get(&self, file: &str) -> Result<String> {
        self.read(file).failing(Kind::Cgroup, || format!("read `{}`", self.path.join(file).display()))
    }

    /// A container may have chosen names that are not UTF-8.
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

    pub(super) fn child(&self, name: impl AsRef<Path>) -> Result<Directory, Errno> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Directory { fd, path: self.path.join(name), counters: RefCell::default() })
    }

    /// Includes groups below; skips those that vanish meanwhile.
    pub(super) fn processes(&self, found: &mut Vec<i32>) -> Result<(), Errno> {
        let mut add = |file: Result<OwnedFd, Errno>| match file.and_then(|file| read_all(&file)) {
            Ok(text) => {
                found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
                Ok(())
            }
            // A threaded v2 group lists no process: its domain does.
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        };
        add(self.reader("cgroup.procs"))?;
        self.walk(|parent, name| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            add(openat(parent, Path::new(name).join("cgroup.procs"), flags, Mode::empty()))
        })
    }

    /// Calls `each` with the parent and the name of every group below, children first; skips those that vanish. A
    /// container may have made groups deeper than a path or our descriptors reach: this holds two.
    fn walk(&self, mut each: impl FnMut(BorrowedFd<'_>, &OsStr) -> Result<(), Errno>) -> Result<(), Errno> {
        let vanished = |errno| matches!(errno, Errno::NOENT | Errno::NODEV);
        let listed = |directory: &Directory| match directory.children() {
            Err(errno) if vanished(errno) => Ok(Vec::new()),
            other => other,
        };
        // The names on the way, and the children that are left at each level.
        let (mut way, mut left) = (Vec::new(), vec![listed(self)?]);
        let mut here = self.child(".")?;
        while let Some(children) = left.last_mut() {
            if let Some(name) = children.pop() {
                match here.child(&name) {
                    Ok(child) => {
                        left.push(listed(&child)?);
                        way.push(name);
                        here = Directory { path: PathBuf::new(), ..child };
                    }
                    Err(errno) if vanished(errno) => {}
                    Err(errno) => return Err(errno),
                }
                continue;
            }
            left.pop();
            if let Some(name) = way.pop() {
                here = here.child("..")?;
                each(here.fd(), &name)?;
            }
        }
        Ok(())
    }
}

/// `false` if it exists.
pub(super) fn make(path: &Path) -> Result<bool, Errno> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns whether the group is gone. A group with processes or groups below stays.
pub(crate) fn remove_empty(path: &Path) -> bool {
    matches!(unlinkat(CWD, path, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
}

/// Removes a group and those below it. A missing group is not an error. A busy group is retried `tries` times, each
/// time after twice the pause.
pub(super) fn remove(path: &Path, tries: u32) -> Result<(), Errno> {
    match remove_one(CWD, path, 0) {
        Err(Errno::BUSY) if tries > 0 => {}
        other => return other,
    }
    if let Ok(directory) = Directory::open(path) {
        directory.walk(|parent, name| remove_one(parent, name.as_ref(), tries))?;
    }
    remove_one(CWD, path, tries)
}

fn remove_one(parent: BorrowedFd<'_>, name: &Path, tries: u32) -> Result<(), Errno> {
    let mut pause = Duration::from_millis(1);
    for attempt in 0.. {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => break,
            Err(Errno::BUSY) if attempt < tries => {}
            other => return other,
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Ok(())
}

fn read_all(file: &OwnedFd) -> Result<String, Errno> {
    let mut bytes = vec![0; FILE_BYTES];
    let mut length = 0;
    loop {
        match rustix::io::pread(file, &mut bytes[length..], length as u64)? {
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

pub(super) fn permission_hint() -> String {
    let has_systemd = Path::new("/run/systemd/system").exists();
    let fix = match (rustix::process::geteuid().is_root(), has_systemd) {
        (true, _) => "mount the cgroup file system writable; inside a container, give it a separate group to manage",
        (false, true) => "systemd-run --user --scope -p Delegate=yes brig …",
        (false, false) => "run as root, or have root chown a group to you and start you in a child of it",
    };
    fix.to_owned()
}
