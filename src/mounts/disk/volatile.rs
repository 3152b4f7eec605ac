//! A file whose writes never wait for the host's disk, for a disk that ends with its sandbox.
//!
//! Attaching and detaching a loop device flush its file (`vfs_fsync` in `loop_configure`, drivers/block/loop.c). This
//! takes 1 and 20 ms on an idle disk, and as long as the queue on a busy one. A file of a `volatile` overlay is never
//! flushed (overlayfs.rst; kernel 5.10). The detached overlay needs its directories' names only until the file is open.

use crate::error::{Context, Kind, Result};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, mkdirat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// overlayfs makes these in its work directory; innermost first.
const MADE: [(&str, AtFlags); 4] = [
    ("work/incompat/volatile/dirty", AtFlags::empty()),
    ("work/incompat/volatile", AtFlags::REMOVEDIR),
    ("work/incompat", AtFlags::REMOVEDIR),
    ("work", AtFlags::REMOVEDIR),
];

#[derive(Debug)]
pub(super) struct Directories {
    /// Its close waits for all processors (`synchronize_rcu_expedited`), up to 2 ms, so it comes after the disk was
    /// sent. It precedes the directories.
    _overlay: OwnedFd,
    _upper: Directory,
    _work: Directory,
}

/// Locked while in use. Any process may remove an unlocked one.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    open: OwnedFd,
}

/// The prefix of `loop/backing_file` in sysfs.
pub(crate) fn backing_name(directory: &Path) -> String {
    // The kernel shows no directory for a file of a detached mount, so the file's name contains it.
    let mangled = directory.to_string_lossy().replace('/', ":");
    let most = mangled.len().min(LONGEST_NAME);
    let cut = (0..=most).rev().find(|&end| mangled.is_char_boundary(end)).unwrap_or(0);
    format!("/{}", &mangled[..cut])
}

/// A reaper may remove a directory before it is locked.
const TRIES: u32 = 20;

/// NAME_MAX, less room for a unique suffix.
const LONGEST_NAME: usize = 200;

/// An unnamed file on the file system of `live`. An error means that this kernel or file system cannot do it.
pub(super) fn file(live: &Path, images: &Path) -> Result<(OwnedFd, Directories), Errno> {
    // Siblings, without a common directory: ext4 takes 50 us to make and remove one.
    let (upper, work) = (Directory::make(live, "")?, Directory::make(live, ".work")?);
    // overlayfs needs a lower directory, which is not read.
    let lower = rustix::fs::open(images, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // By descriptors: overlayfs then interprets no character of a path.
    let at = |open: &OwnedFd| format!("/proc/self/fd/{}", open.as_raw_fd());
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, open) in [("lowerdir", &lower), ("upperdir", &upper.open), ("workdir", &work.open)] {
        fsconfig_set_string(&context, key, at(open))?;
    }
    fsconfig_set_flag(&context, "volatile")?;
    fsconfig_create(&context)?;
    let overlay = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let name = &backing_name(images)[1..];
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&overlay, name, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(&overlay, name, AtFlags::empty())?;
    Ok((file, Directories { _overlay: overlay, _upper: upper, _work: work }))
}

impl Directory {
    fn make(live: &Path, ending: &str) -> Result<Directory, Errno> {
        let path = live.join(format!(".disk-{}{ending}", std::process::id()));
        let open = make_locked(&path)?;
        Ok(Directory { path, open })
    }
}

/// A reaper may have locked or removed it.
fn make_locked(path: &Path) -> Result<OwnedFd, Errno> {
    mkdirat(CWD, path, Mode::RWXU)?;
    let open = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&open, FlockOperation::NonBlockingLockExclusive)?;
    Ok(open)
}

impl Drop for Directory {
    fn drop(&mut self) {
        let remove = || unlinkat(CWD, &self.path, AtFlags::REMOVEDIR);
        if remove().is_ok() {
            return;
        }
        for (name, flags) in MADE {
            // Another kernel may make other files: the last step removes them.
            let _ = unlinkat(&self.open, name, flags);
        }
        if remove().is_err() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Locked and removed like a [`Directory`].
#[derive(Debug)]
pub(crate) struct WorkDirectory {
    path: PathBuf,
    _open: OwnedFd,
}

impl WorkDirectory {
    pub(crate) fn make(live: &Path) -> Result<WorkDirectory, Errno> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed); // other threads may make one too
        let path = live.join(format!(".template-{}-{number}", std::process::id()));
        for _ in 0..TRIES {
            match make_locked(&path) {
                Ok(open) if path.exists() => return Ok(WorkDirectory { path, _open: open }),
                // A reaper took it.
                Ok(_) | Err(Errno::NOENT | Errno::WOULDBLOCK) => {}
                // A dead process with our pid left it.
                Err(Errno::EXIST) => drop(reap(&path)),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::BUSY)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // The next reaper removes a leftover: it has no lock.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

pub(crate) fn reap(path: &Path) -> Result<()> {
    if let Some(open) = abandoned(path)? {
        drop(Directory { path: path.to_owned(), open });
    }
    Ok(())
}

/// Whether it exists without a live owner.
pub(crate) fn is_abandoned(path: &Path) -> Result<bool> {
    abandoned(path).map(|open| open.is_some())
}

fn abandoned(path: &Path) -> Result<Option<OwnedFd>> {
    let step = || format!("look at `{}`", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = match open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.failing(Kind::Store, step)?,
    };
    match flock(&open, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        other => other.failing(Kind::Store, step).map(|()| Some(open)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_outlives_its_directories_and_its_name_tells_whose_it_is() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("the_file_outlives_its_directories_and_its_name_tells_whose_it_is: needs root");
            return;
        }
        let (live, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let images = store.path().join("of, all:kinds");
        std::fs::create_dir(&images).unwrap();
        let (written, directories) = file(live.path(), &images).unwrap();
        for held in [&directories._upper, &directories._work] {
            reap(&held.path).unwrap();
        }
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 2, "somebody holds them");
        drop(directories);
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 0);
        rustix::io::write(&written, b"kept").unwrap();
        let mut back = [0; 4];
        assert_eq!(rustix::io::pread(&written, &mut back, 0), Ok(4));
        assert_eq!(&back, b"kept");
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", written.as_raw_fd())).unwrap();
        assert!(shown.to_string_lossy().starts_with(&backing_name(&images)), "{shown:?}");
    }

    #[test]
    fn what_a_killed_maker_left_is_removed() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("what_a_killed_maker_left_is_removed: needs root");
            return;
        }
        let (live, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_written, directories) = file(live.path(), images.path()).unwrap();
        let both = [&directories._upper, &directories._work];
        for left in both {
            // As after a kill.
            flock(&left.open, FlockOperation::Unlock).unwrap();
            assert!(is_abandoned(&left.path).unwrap());
            reap(&left.path).unwrap();
            assert!(!left.path.exists());
        }
        std::mem::forget(directories);
    }

    #[test]
    fn an_unfinished_template_of_a_killed_maker_is_removed_and_one_of_a_living_one_is_not() {
        let live = tempfile::tempdir().unwrap();
        let place = WorkDirectory::make(live.path()).unwrap();
        std::fs::create_dir_all(place.path().join("image.tree/home")).unwrap();
        reap(place.path()).unwrap();
        assert!(place.path().join("image.tree/home").exists());
        flock(&place._open, FlockOperation::Unlock).unwrap(); // as after a kill
        assert!(is_abandoned(place.path()).unwrap());
        reap(place.path()).unwrap();
        assert!(!place.path().exists());
        drop((place, WorkDirectory::make(live.path()).unwrap()));
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let name = backing_name(Path::new(&"/ä".repeat(150)));
        assert!(name.len() <= LONGEST_NAME + 1 && name.starts_with("/:ä:ä"));
    }
}
