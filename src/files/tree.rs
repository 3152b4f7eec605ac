//! Trees of any width and depth, visited and removed with a handful of descriptors: a checkout can have folders by the thousand, beside and below one another,
//! and the usual soft limit is 1,024 (getrlimit(2), `RLIMIT_NOFILE`).
//!
//! Never: a path of the whole way down, which can be longer than the kernel takes; a link that is followed; a descriptor for each level.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is done at each place of a tree. `at` is the directory that holds `name`.
pub(crate) trait Visitor {
    /// What ends the walk.
    type Error;
    /// The error of a walk that cannot read the tree.
    fn failed(&self, cause: io::Error) -> Self::Error;
    /// Visits an entry of any kind.
    fn entry(&mut self, at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<(), Self::Error>;
    /// The walk goes into this directory now.
    fn enter(&mut self, _name: &CStr) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Everything in this directory was visited, and the walk is in `at` again.
    fn leave(&mut self, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Self::Error>;
}

/// A directory on the way down.
struct Level {
    name: CString,
    /// Device and inode: the way up must lead there.
    identity: (u64, u64),
    /// Its directories that were not visited yet.
    rest: Vec<CString>,
}

/// Visits everything below a directory that no other process changes meanwhile. The entries of a directory come before what is in them.
pub(crate) fn walk<V: Visitor>(top: OwnedFd, visitor: &mut V) -> Result<(), V::Error> {
    let mut here = top;
    let mut way = vec![list(&here, CString::default(), visitor)?];
    while let Some(level) = way.last_mut() {
        if let Some(name) = level.rest.pop() {
            here = openat(&here, &name, DIRECTORY, Mode::empty()).map_err(|errno| visitor.failed(errno.into()))?;
            visitor.enter(&name)?;
            way.push(list(&here, name, visitor)?);
            continue;
        }
        let Some(done) = way.pop() else { break };
        let Some(above) = way.last() else { break };
        here = openat(&here, c"..", DIRECTORY, Mode::empty()).map_err(|errno| visitor.failed(errno.into()))?;
        if identity(&here).map_err(|errno| visitor.failed(errno.into()))? != above.identity {
            return Err(visitor.failed(io::Error::other("a directory was moved while it was read")));
        }
        visitor.leave(here.as_fd(), &done.name)?;
    }
    Ok(())
}

fn list<V: Visitor>(here: &OwnedFd, name: CString, visitor: &mut V) -> Result<Level, V::Error> {
    let mut rest = Vec::new();
    for entry in Dir::read_from(here).map_err(|errno| visitor.failed(errno.into()))? {
        let entry = entry.map_err(|errno| visitor.failed(errno.into()))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => statat(here, name, AtFlags::SYMLINK_NOFOLLOW)
                .map(|status| FileType::from_raw_mode(status.st_mode))
                .map_err(|errno| visitor.failed(errno.into()))?,
            known => known,
        };
        visitor.entry(here.as_fd(), name, kind)?;
        if kind == FileType::Directory {
            rest.push(name.to_owned());
        }
    }
    let identity = identity(here).map_err(|errno| visitor.failed(errno.into()))?;
    Ok(Level { name, identity, rest })
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    fstat(directory).map(|status| (status.st_dev, status.st_ino))
}

/// Removes a directory with everything in it; whether it was there. A link in its place is an error.
pub(crate) fn remove_directory(path: &Path) -> io::Result<bool> {
    struct Remove;
    impl Visitor for Remove {
        type Error = io::Error;
        fn failed(&self, cause: io::Error) -> io::Error {
            cause
        }
        fn entry(&mut self, at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> io::Result<()> {
            if kind == FileType::Directory { Ok(()) } else { unlink(at, name, AtFlags::empty()) }
        }
        fn leave(&mut self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
            unlink(at, name, AtFlags::REMOVEDIR)
        }
    }
    fn unlink<P: rustix::path::Arg>(at: BorrowedFd<'_>, name: P, flags: AtFlags) -> io::Result<()> {
        match unlinkat(at, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
    let top = match openat(CWD, path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        opened => opened?,
    };
    walk(top, &mut Remove)?;
    unlink(CWD, path, AtFlags::REMOVEDIR).map(|()| true)
}

/// What a tree takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Files, directories and links below it.
    pub entries: u64,
    /// Bytes on the disk.
    pub bytes: u64,
    /// The deepest level.
    pub depth: usize,
}

/// Bytes of a tree, or of a file, on the disk. What cannot be read counts nothing.
pub(crate) fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(status) = std::fs::symlink_metadata(path) else { return 0 };
    let inside = if status.is_dir() { contents(path).unwrap_or_default().bytes } else { 0 };
    status.blocks() * 512 + inside
}

/// Counts a tree. What vanishes meanwhile, or cannot be read, counts nothing.
pub(crate) fn contents(path: &Path) -> io::Result<Contents> {
    #[derive(Default)]
    struct Count(Contents, usize);
    impl Visitor for Count {
        type Error = io::Error;
        fn failed(&self, cause: io::Error) -> io::Error {
            cause
        }
        fn entry(&mut self, at: BorrowedFd<'_>, name: &CStr, _: FileType) -> io::Result<()> {
            let Ok(status) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
            self.0.entries += 1;
            self.0.bytes += status.st_blocks as u64 * 512;
            self.0.depth = self.0.depth.max(self.1 + 1);
            Ok(())
        }
        fn enter(&mut self, _: &CStr) -> io::Result<()> {
            self.1 += 1;
            Ok(())
        }
        fn leave(&mut self, _: BorrowedFd<'_>, _: &CStr) -> io::Result<()> {
            self.1 -= 1;
            Ok(())
        }
    }
    let mut count = Count::default();
    walk(openat(CWD, path, DIRECTORY, Mode::empty())?, &mut count)?;
    Ok(count.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{mkdirat, open};
    use rustix::process::{Resource, getrlimit, setrlimit};

    /// A tree of `depth` levels, far deeper than a path can be long, with `width` folders at its top.
    fn make(top: &Path, depth: usize, width: usize) {
        std::fs::create_dir(top).unwrap();
        for number in 0..width {
            std::fs::create_dir(top.join(format!("w{number}"))).unwrap();
            std::fs::write(top.join(format!("w{number}/file")), "x").unwrap();
        }
        let mut here = open(top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&here, "folder", Mode::RWXU).unwrap();
            here = openat(&here, "folder", DIRECTORY, Mode::empty()).unwrap();
        }
        rustix::fs::symlinkat("/etc", &here, "link").unwrap();
    }

    #[test]
    fn a_wide_and_deep_tree_is_counted_and_removed_with_few_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        make(&top, 3000, 1500);
        let lowered = rustix::process::Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, lowered).unwrap();
        let found = contents(&top).unwrap();
        assert_eq!((found.entries, found.depth), (3000 + 1 + 2 * 1500, 3001));
        assert!(remove_directory(&top).unwrap() && !top.exists());
        assert!(!remove_directory(&top).unwrap());
        assert!(Path::new("/etc").exists());
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("real")).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("real", &link).unwrap();
        remove_directory(&link).unwrap_err();
        assert!(directory.path().join("real").exists());
    }
}
