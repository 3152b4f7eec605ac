//! Host paths that stay open from their check on: a later open reaches the checked file, even if its name has changed.

use super::failed;
use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

const HOLD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Follows no link and never leaves the folder (openat2(2), Linux 5.6).
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

#[derive(Clone, Debug, Default)]
pub(crate) struct Pinned(Vec<Pin>);

#[derive(Clone, Debug)]
struct Pin {
    path: PathBuf,
    /// The path, or its deepest existing folder.
    held: Arc<OwnedFd>,
    /// The missing part of the path.
    rest: PathBuf,
}

impl Pinned {
    /// `real` has no links and is below `folder`; `rest` is the missing part of `path`.
    pub(crate) fn hold(&mut self, path: &Path, (folder, real): (&Path, &Path), rest: PathBuf) -> Result<()> {
        if weaken::is_off("pinned-paths") {
            return Ok(());
        }
        let step = || format!("open `{}`", path.display());
        let top = openat(CWD, folder, HOLD | OFlags::DIRECTORY, Mode::empty())
            .map_err(|errno| failed(errno.into(), step()))?;
        let below = real.strip_prefix(folder).map_err(|_| Error::new(Kind::Internal, "it is not below its folder"))?;
        let held = match below.as_os_str().is_empty() {
            true => top,
            false => openat2(&top, below, HOLD, Mode::empty(), BENEATH).map_err(|errno| {
                Error::os(Kind::Policy, errno).doing(step()).hint("it has changed while it was checked: leave it alone")
            })?,
        };
        self.0.push(Pin { path: path.to_owned(), held: Arc::new(held), rest });
        Ok(())
    }

    pub(crate) fn add(&mut self, path: &Path, folder: OwnedFd) {
        self.0.push(Pin { path: path.to_owned(), held: Arc::new(folder), rest: PathBuf::new() });
    }

    pub(crate) fn extend(&mut self, other: Pinned) {
        self.0.extend(other.0);
    }

    fn pin(&self, path: &Path) -> Option<&Pin> {
        self.0.iter().find(|pin| pin.path == path)
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.pin(path).is_some()
    }

    /// Valid in this process and in a child with its descriptors; `path` if it is not pinned.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        match self.pin(path) {
            None => path.to_owned(),
            Some(pin) => {
                let held = PathBuf::from(format!("/proc/self/fd/{}", pin.held.as_raw_fd()));
                // A trailing slash on a file's path is an error.
                if pin.rest.as_os_str().is_empty() { held } else { held.join(&pin.rest) }
            }
        }
    }

    /// Follows no link below a pinned folder.
    pub(crate) fn make_directories(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        let step = |errno: Errno| failed(errno.into(), format!("make the directory `{}`", path.display()));
        let Some(pin) = self.pin(path) else {
            super::create_directories(path, mode)?;
            return openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(step);
        };
        let mut at = openat(&pin.held, ".", DIRECTORY, Mode::empty()).map_err(step)?;
        for part in pin.rest.components() {
            let Component::Normal(name) = part else { return Err(step(Errno::INVAL)) };
            match mkdirat(&at, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(step(errno)),
            }
            at = openat(&at, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(step)?;
        }
        Ok(at)
    }

    /// `None` if `path` is not pinned. The file must have one name: a second name can be another owner's file.
    pub(crate) fn append(&self, path: &Path) -> Result<Option<File>> {
        let Some(pin) = self.pin(path) else { return Ok(None) };
        let step = |errno: Errno| failed(errno.into(), format!("append to `{}`", path.display()));
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match pin.rest.components().collect::<Vec<_>>().as_slice() {
            [] => openat(CWD, self.path(path), flags, Mode::empty()),
            [Component::Normal(name)] => {
                openat(&pin.held, *name, flags | OFlags::CREATE | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))
            }
            _ => Err(Errno::NOENT),
        };
        let opened = opened.map_err(step)?;
        let status = fstat(&opened).map_err(step)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || status.st_nlink != 1 {
            return Err(Error::new(Kind::Policy, "it is not a regular file with one name")
                .doing(format!("append to `{}`", path.display()))
                .hint("name a new file"));
        }
        Ok(Some(opened.into()))
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|pin| pin.held.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn lab() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (folder, victim) = (directory.path().join("folder"), directory.path().join("victim"));
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::create_dir(&victim).unwrap();
        (directory, folder, victim)
    }

    fn exchange(path: &Path, victim: &Path) {
        std::fs::rename(path, path.with_extension("moved")).unwrap();
        symlink(victim, path).unwrap();
    }

    #[test]
    fn what_is_held_is_opened_although_a_link_has_taken_its_name() {
        let (_directory, folder, victim) = lab();
        let path = folder.join("a");
        std::fs::write(path.join("own"), "").unwrap();
        let mut pinned = Pinned::default();
        pinned.hold(&path, (&folder, &path), PathBuf::new()).unwrap();
        exchange(&path, &victim);
        assert!(pinned.path(&path).join("own").exists() && !path.join("own").exists());
        assert_eq!(pinned.path(&victim), victim);
        assert!(Pinned::default().hold(&path, (&folder, &path), PathBuf::new()).is_err());
    }

    #[test]
    fn nothing_is_made_behind_a_link_on_the_way() {
        let (_directory, folder, victim) = lab();
        let path = folder.join("a/new/deeper");
        let mut pinned = Pinned::default();
        pinned.hold(&path, (&folder, &folder.join("a")), "new/deeper".into()).unwrap();
        symlink(&victim, folder.join("a/new")).unwrap();
        assert!(pinned.make_directories(&path, 0o755).is_err());
        std::fs::remove_file(folder.join("a/new")).unwrap();
        exchange(&folder.join("a"), &victim);
        pinned.make_directories(&path, 0o755).unwrap();
        assert!(folder.join("a.moved/new/deeper").is_dir());
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    }

    #[test]
    fn events_are_appended_to_a_file_of_one_name_and_behind_no_link() {
        let (_directory, folder, victim) = lab();
        let path = folder.join("events");
        let mut pinned = Pinned::default();
        pinned.hold(&path, (&folder, &folder), "events".into()).unwrap();
        symlink(victim.join("made"), &path).unwrap();
        assert!(pinned.append(&path).is_err() && !victim.join("made").exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(victim.join("file"), "").unwrap();
        std::fs::hard_link(victim.join("file"), &path).unwrap();
        assert!(pinned.append(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(pinned.append(&path).unwrap().is_some() && path.exists());
        assert!(pinned.append(&victim).unwrap().is_none());
    }
}
