//! `tmpcopyup`: a tmpfs that starts with a copy of the directory that it covers. The tree may be hostile: the walk of
//! `files` follows no symlink.

use crate::error::{Context, Kind, Result};
use crate::files::{self, Bounds, DIRECTORY, Names, Walk, WalkStep, open_directory};
use crate::mounts::resolve::NEW_FILE;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags, chmodat, chownat, fgetxattr, flistxattr, fsetxattr,
    linkat, mkdirat, mknodat, openat, readlinkat, statat, symlinkat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const DEEPEST: usize = 512;

/// The path below the top; `None` is the status of the top.
struct Level {
    path: Vec<u8>,
    status: Option<Stat>,
}

/// `from` is an `O_PATH` descriptor, `to` the root of a mount.
pub(super) fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    let step = || "copy a directory";
    let from = openat(from, ".", DIRECTORY, Mode::empty()).failing(Kind::Mount, || "read the covered directory")?;
    let open_copy = || openat(to, ".", DIRECTORY, Mode::empty()).failing(Kind::Mount, || "open the new tmpfs");
    let mut links = Links { top: open_copy()?, first: HashMap::new() };
    let mut walk = Walk::<2, Level>::new(Bounds { depth: DEEPEST, ..Bounds::NONE });
    let names = Names::of(&from).failing(Kind::Mount, step)?;
    let level = Level { path: Vec::new(), status: None };
    walk.enter([Some(from), Some(open_copy()?)], names, level).failing(Kind::Mount, step)?;
    while let Some(next) = walk.next().failing(Kind::Mount, step)? {
        let (from, to) = walk.side(0).and_then(|from| Ok((from, walk.side(1)?))).failing(Kind::Internal, step)?;
        let Some(level) = walk.state() else { break };
        if next == WalkStep::End {
            attributes(from, to)?;
            if let Some(status) = &level.status {
                set_owner_and_mode(to, c".", status).failing(Kind::Mount, step)?;
            }
            continue;
        }
        let status = statat(from, walk.name(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Mount, step)?;
        let path = [&level.path, b"/".as_slice(), walk.name().to_bytes()].concat();
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            if !links.make(to, walk.name(), &status, path) {
                copy_file(from, to, walk.name(), &status)?;
            }
            continue;
        }
        mkdirat(to, walk.name(), Mode::RWXU).failing(Kind::Mount, step)?;
        let inner = open_directory(from, walk.name()).failing(Kind::Mount, step)?;
        let copy = open_directory(to, walk.name()).failing(Kind::Mount, step)?;
        let names = Names::of(&inner).failing(Kind::Mount, step)?;
        let level = Level { path, status: Some(status) };
        walk.enter([Some(inner), Some(copy)], names, level).failing(Kind::Mount, step)?;
    }
    Ok(())
}

/// Each further name of a file links to the first copy. Copies would multiply the bytes of the tmpfs.
struct Links {
    top: OwnedFd,
    first: HashMap<(u64, u64), Vec<u8>>,
}

impl Links {
    /// `false` if the file must be copied.
    fn make(&mut self, to: BorrowedFd<'_>, name: &CStr, status: &Stat, path: Vec<u8>) -> bool {
        if status.st_nlink < 2 {
            return false;
        }
        let key = (status.st_dev, status.st_ino);
        if let Some(first) = self.first.get(&key) {
            // Only directories of this copy are on the path. A file with a path too long for the call is copied.
            return linkat(&self.top, &first[1..], to, name, AtFlags::empty()).is_ok();
        }
        self.first.insert(key, path);
        false
    }
}

fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, status: &Stat) -> Result<()> {
    let step = || "copy a file";
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => {
            let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let source = File::from(openat(from, name, read, Mode::empty()).failing(Kind::Mount, step)?);
            let copy = File::from(openat(to, name, NEW_FILE, Mode::RUSR | Mode::WUSR).failing(Kind::Mount, step)?);
            files::copy_data(&source, &copy, status).failing(Kind::Mount, step)?;
            attributes(source.as_fd(), copy.as_fd())?;
        }
        FileType::Symlink => {
            let target = readlinkat(from, name, Vec::new()).failing(Kind::Mount, step)?;
            symlinkat(target.as_c_str(), to, name).failing(Kind::Mount, step)?;
        }
        kind => {
            let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
            mknodat(to, name, kind, mode, status.st_rdev).failing(Kind::Mount, step)?;
        }
    }
    set_owner_and_mode(to, name, status).failing(Kind::Mount, step)
}

fn set_owner_and_mode(at: BorrowedFd<'_>, name: &CStr, status: &Stat) -> std::result::Result<(), Errno> {
    // The owner first: chown clears the setuid bit.
    let (uid, gid) = (Uid::from_raw(status.st_uid), Gid::from_raw(status.st_gid));
    chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Symlink {
        return Ok(());
    }
    chmodat(at, name, Mode::from_raw_mode(status.st_mode & 0o7777), AtFlags::empty())
}

/// Those that the tmpfs refuses are left out, as cp(1) does.
fn attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    let mut names = vec![0_u8; 64 << 10];
    let Ok(length) = flistxattr(from, &mut names[..]) else { return Ok(()) };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 << 10];
        let Ok(size) = fgetxattr(from, name, &mut value[..]) else { continue };
        match fsetxattr(to, name, &value[..size], XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(errno) => return Err(errno).failing(Kind::Mount, || "copy an extended attribute"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};

    #[test]
    fn holes_links_and_hard_links_are_copied_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("from/a/b")).unwrap();
        std::fs::create_dir(at("to")).unwrap();
        let file = File::create(at("from/a/b/holes")).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"middle", 1 << 29).unwrap();
        std::fs::hard_link(at("from/a/b/holes"), at("from/again")).unwrap();
        symlink("/etc", at("from/a/link")).unwrap();
        let open = |name: &str| OwnedFd::from(File::open(at(name)).unwrap());
        copy(&open("from"), &open("to")).unwrap();
        let (one, other) = (at("to/a/b/holes").metadata().unwrap(), at("to/again").metadata().unwrap());
        assert_eq!((one.ino(), one.len(), one.nlink()), (other.ino(), 1 << 30, 2));
        assert!(one.blocks() < 1000, "the holes were filled");
        let mut bytes = [0; 6];
        File::open(at("to/again")).unwrap().read_exact_at(&mut bytes, 1 << 29).unwrap();
        assert_eq!((&bytes, std::fs::read_link(at("to/a/link")).unwrap()), (b"middle", "/etc".into()));
    }
}
