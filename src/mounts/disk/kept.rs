//! Prepares a disk of an earlier sandbox for a new one. An agent wrote the tree: every step uses descriptors, follows
//! no link, and opens one directory at a time at any depth.

use super::format::DIRECTORIES;
use super::resize::{has_size, resize};
use super::template::{Image, Template, copy_allocated};
use super::unclean::{is_clean, mark_clean, repair};
use super::{DiskFile, Size};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Bounds, DIRECTORY, Walk, WalkStep};
use crate::spec::root::{Ids, MOUNTS, SUBMOUNTS, VOLUMES};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Uid, chmodat, chownat, flock, fsync, linkat, mkdirat,
    open, openat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The upper half of an id is its sandbox's range (`ns::range`).
const RANGE: u32 = !0xffff;

/// `/tmp`, and what overlayfs keeps for itself: a `volatile` mount refuses the work directory of an earlier one.
const EMPTIED: [&str; 3] = ["tmp", "workspace/work", "root/work"];
/// A broker's changes of the certificates: each sandbox makes them again if needed.
const REMOVED: [&str; 2] = ["certificates/upper", "certificates/work"];
/// Their ids move to the new sandbox's range.
const SHIFTED: [&str; 4] = ["home", "workspace/upper", "files", "root/upper"];

/// setuid and setgid.
const SPECIAL: u32 = 0o6000;

/// The kernel unmounts asynchronously.
const IN_USE: Duration = Duration::from_secs(10);

/// Locked. The loop device holds the same open file, so the lock ends with the device: two mounts of one ext4 would
/// destroy it.
pub(super) fn image(template: &Template, live: &Path, size: Size, file: &DiskFile) -> Result<Image> {
    let made = match file {
        DiskFile::Unnamed => return template.image(live, size),
        DiskFile::New(path) => whole(path, |file| template.copy_to(file, live, size))?,
        DiskFile::Kept(path) => {
            let old = clean(path, FlockOperation::NonBlockingLockExclusive)?;
            if has_size(&old, size)? { old } else { resize(&old, live, size, path)? }
        }
        DiskFile::Copy { of, to } => {
            let old = clean(of, FlockOperation::NonBlockingLockShared)?;
            let is_same = has_size(&old, size)?;
            if is_same { whole(to, |file| copy_allocated(of, file))? } else { resize(&old, live, size, to)? }
        }
    };
    Ok(Image::lasting(made))
}

/// Named when it is filled: a killed maker leaves no part of one.
fn whole(path: &Path, fill: impl FnOnce(OwnedFd) -> Result<OwnedFd>) -> Result<OwnedFd> {
    let step = || format!("make the disk `{}`", path.display());
    let directory = path.parent().unwrap_or(Path::new("."));
    let mode = Mode::from_raw_mode(0o600);
    let mut is_named = false;
    let file = match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        // A file system without unnamed files, open(2).
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            is_named = true;
            open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, mode)
        }
        other => other,
    }
    .failing(Kind::Disk, step)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).failing(Kind::Disk, step)?;
    let file = fill(file)?;
    if !is_named {
        give_name(&file, path).failing(Kind::Disk, step)?;
    }
    Ok(file)
}

/// `path` must be free (open(2), O_TMPFILE).
fn give_name(file: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Unnamed: a crash leaves nothing of it.
pub(crate) struct ImageCopy(OwnedFd);

impl ImageCopy {
    /// The file system of `image` is written out, and no process may write meanwhile.
    pub(crate) fn make(image: &Path, directory: &Path) -> Result<ImageCopy> {
        let empty = Self::empty(directory)?;
        let copy = copy_allocated(image, empty.0)?;
        mark_clean(&copy)?;
        Ok(ImageCopy(copy))
    }

    /// For the archive of a disk in memory.
    pub(crate) fn empty(directory: &Path) -> Result<ImageCopy> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let step = || format!("make a file without a name in `{}`", directory.display());
        open(directory, flags, Mode::from_raw_mode(0o600)).failing(Kind::Disk, step).map(ImageCopy)
    }

    pub(crate) fn file(&self) -> Result<OwnedFd> {
        self.0.try_clone().failing(Kind::Disk, || "keep a copy of the files open")
    }

    /// A power cut may lose the name, and leaves no part.
    pub(crate) fn keep(self, path: &Path) -> Result<()> {
        let step = || format!("keep `{}`", path.display());
        fsync(&self.0).failing(Kind::Disk, step)?;
        give_name(&self.0, path).failing(Kind::Disk, step)
    }
}

/// A disk that was in use when the machine stopped is repaired first.
fn clean(path: &Path, lock: FlockOperation) -> Result<OwnedFd> {
    let file = held(path, lock, IN_USE)?;
    if is_clean(&file)? {
        return Ok(file);
    }
    drop(file);
    let file = held(path, FlockOperation::NonBlockingLockExclusive, IN_USE)?;
    // Another process may have repaired it.
    if !is_clean(&file)? {
        repair(path)?;
    }
    flock(&file, lock).failing(Kind::Disk, || format!("open the kept disk `{}`", path.display()))?;
    Ok(file)
}

/// Waits for the end of the last mount.
fn held(path: &Path, lock: FlockOperation, time: Duration) -> Result<OwnedFd> {
    let step = || format!("open the kept disk `{}`", path.display());
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).failing(Kind::Disk, step)?;
    let end = Instant::now() + time;
    loop {
        match flock(&file, lock) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::new(Kind::State, "another `resume` or `fork` of its task uses it")
                    .doing(step())
                    .hint("repeat the command when the other one has ended"));
            }
            Err(errno) => return Err(errno).failing(Kind::Disk, step),
        }
    }
}

pub(super) fn renew(root: BorrowedFd<'_>, user: Ids) -> Result<()> {
    let step = || "renew a kept disk";
    // Every sandbox has this one. Root gives it to the user when it mounts it, after the renewal.
    let owner = statat(root, "tmp", AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?.st_uid;
    for name in EMPTIED {
        let directory = openat(root, name, DIRECTORY, Mode::empty()).failing(Kind::Disk, step)?;
        empty(directory)?;
    }
    let of_mounts = SUBMOUNTS.iter().chain(&MOUNTS).chain(&VOLUMES);
    let of_mounts = of_mounts.flat_map(|name| ["upper", "work"].map(|part| format!("{name}/{part}")));
    for name in REMOVED.map(str::to_owned).into_iter().chain(of_mounts) {
        let name = name.as_str();
        let directory = match openat(root, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            other => other.failing(Kind::Disk, step)?,
        };
        empty(directory)?;
        unlinkat(root, name, AtFlags::REMOVEDIR).failing(Kind::Disk, step)?;
    }
    for (name, mode) in DIRECTORIES {
        match mkdirat(root, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, step),
        }
    }
    let shift = Shift { to: user.uid & RANGE };
    if owner != 0 && owner & RANGE == shift.to {
        return Ok(());
    }
    // Root's until the next mount: a renewal that was interrupted starts again.
    let root_user = (Some(Uid::ROOT), Some(Gid::ROOT));
    chownat(root, "tmp", root_user.0, root_user.1, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?;
    for name in SHIFTED {
        let directory = openat(root, name, DIRECTORY, Mode::empty()).failing(Kind::Disk, step)?;
        shift.tree(directory)?;
    }
    Ok(())
}

fn empty(directory: OwnedFd) -> Result<()> {
    files::empty_directory(directory).failing(Kind::Disk, || "empty a directory of a kept disk")
}

struct Shift {
    to: u32,
}

impl Shift {
    /// From any range: after an interrupted renewal the ids are of several.
    fn id(&self, id: u32) -> u32 {
        if id & RANGE == 0 { id } else { self.to | (id & !RANGE) }
    }

    fn tree(&self, directory: OwnedFd) -> Result<()> {
        let step = || "walk the directories of a kept disk";
        let mut walk = Walk::through(directory, Bounds::NONE, ()).failing(Kind::Disk, step)?;
        while let Some(next) = walk.next().failing(Kind::Disk, step)? {
            let WalkStep::Entry(kind) = next else { continue };
            self.one(walk.side(0).failing(Kind::Disk, step)?, walk.name())?;
            if kind == FileType::Directory {
                walk.descend(()).failing(Kind::Disk, step)?;
            }
        }
        self.one(walk.side(0).failing(Kind::Disk, step)?, c"")
    }

    fn one(&self, directory: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        let step = || "give a file of a kept disk to its new user";
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let status = statat(directory, name, flags).failing(Kind::Disk, step)?;
        let (uid, gid) = (self.id(status.st_uid), self.id(status.st_gid));
        if (uid, gid) == (status.st_uid, status.st_gid) {
            return Ok(());
        }
        let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(directory, name, user, group, flags).failing(Kind::Disk, step)?;
        // chown(2) clears these bits, and file capabilities, which belong to the old range.
        let mode = status.st_mode & 0o7777;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        let is_inside = [uid, gid].iter().all(|id| id & RANGE == self.to);
        if !is_file || mode & SPECIAL == 0 || !is_inside {
            return Ok(());
        }
        // The bits give the rights of an id of this sandbox, and no other. No other process has the disk, so the name
        // is still this file's.
        chmodat(directory, name, Mode::from_raw_mode(mode), AtFlags::empty()).failing(Kind::Disk, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn disk_in_use_is_an_error_that_tells_what_to_do() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        let lock = |how| held(disk.path(), how, Duration::ZERO);
        let copying = lock(FlockOperation::NonBlockingLockShared).unwrap();
        drop(lock(FlockOperation::NonBlockingLockShared).unwrap());
        let error = lock(FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert!(error.to_string().contains("another `resume` or `fork`"), "{error}");
        assert!(error.advice().is_some() && error.kind() == Kind::State);
        drop(copying);
        lock(FlockOperation::NonBlockingLockExclusive).unwrap();
    }

    #[test]
    fn only_ids_of_a_range_are_shifted() {
        let shift = Shift { to: 0x7005_0000 };
        let check = |id, expected| assert_eq!(shift.id(id), expected, "{id:#x}");
        check(0x7000_03e8, 0x7005_03e8);
        check(0x7000_0000, 0x7005_0000);
        check(0x7000_ffff, 0x7005_ffff);
        check(0x7001_0000, 0x7005_0000);
        check(0x7005_03e8, 0x7005_03e8);
        check(0, 0);
        check(1000, 1000);
    }

    #[test]
    fn interrupted_renewal_is_completed_by_the_next() {
        use std::os::unix::fs::{MetadataExt, lchown};
        if !rustix::process::geteuid().is_root() {
            return crate::sys::skip("interrupted_renewal_is_completed_by_the_next: needs root");
        }
        let disk = tempfile::tempdir().unwrap();
        DIRECTORIES.iter().for_each(|(name, _)| std::fs::create_dir(disk.path().join(name)).unwrap());
        let (old, interrupted, new) = (0x7000_03e8, 0x7005_03e8, 0x7009_03e8);
        let files = ["home/old", "home/shifted", "files/old", "root/upper/shifted", "workspace/upper/old"];
        files.iter().for_each(|name| std::fs::write(disk.path().join(name), "").unwrap());
        let give = |name: &str, id| lchown(disk.path().join(name), Some(id), Some(id)).unwrap();
        let owners = || files.map(|name| std::fs::metadata(disk.path().join(name)).unwrap().uid());
        let renew_for = |id| {
            let root = std::fs::File::open(disk.path()).unwrap();
            renew(root.as_fd(), Ids { uid: id, gid: id }).unwrap();
        };
        give("tmp", old);
        files.iter().for_each(|name| give(name, if name.ends_with("old") { old } else { interrupted }));
        renew_for(new);
        assert_eq!(owners(), [new; 5]);
        // Interrupted: `/tmp` was not mounted. Its old range does not count as complete.
        give("home/old", interrupted);
        renew_for(old);
        assert_eq!(owners(), [old; 5]);
        // The mount completes it, and the same range needs no walk.
        give("tmp", old);
        give("home/old", interrupted);
        renew_for(old);
        assert_eq!(owners(), [interrupted, old, old, old, old], "the tree was walked for an unchanged range");
    }

    #[test]
    fn a_folder_is_emptied_and_nothing_that_a_link_leads_to() {
        let around = tempfile::tempdir().unwrap();
        std::fs::write(around.path().join("outside"), "mine").unwrap();
        std::fs::create_dir_all(around.path().join("home/a/b")).unwrap();
        std::os::unix::fs::symlink(around.path(), around.path().join("home/a/link")).unwrap();
        let home = || std::fs::File::open(around.path().join("home")).unwrap().into();
        empty(home()).unwrap();
        assert_eq!(std::fs::read_dir(around.path().join("home")).unwrap().count(), 0);
        assert_eq!(std::fs::read_to_string(around.path().join("outside")).unwrap(), "mine");
        // Deeper than the limit of descriptors.
        let mut deep = around.path().join("home");
        (0..1500).for_each(|_| deep.push("d"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        empty(home()).unwrap();
        assert_eq!(std::fs::read_dir(around.path().join("home")).unwrap().count(), 0);
    }
}
