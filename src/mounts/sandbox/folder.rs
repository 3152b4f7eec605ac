//! The last used folder of a new root, kept open: consecutive steps often use one.
//!
//! Only for a root that starts empty: a name is mostly free, so it is created first and opened only if it exists. A new
//! entry is not a link.

use crate::error::{Context, Kind, Result};
use crate::mounts::resolve;
use rustix::fs::{FileType, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// A mount over the root's paths must reset it: the folder may be below the mount.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// The root that started empty.
    root: Option<RawFd>,
    last: RefCell<Option<(PathBuf, OwnedFd)>>,
}

impl Folder {
    /// `root` is empty and stays open during use.
    pub(super) fn of_empty(root: BorrowedFd<'_>) -> Folder {
        Folder { root: Some(root.as_raw_fd()), last: RefCell::default() }
    }

    pub(super) fn forget(&self) {
        self.last.take();
    }

    /// Makes the folder of `at` if it is missing.
    pub(super) fn with<T>(
        &self,
        root: BorrowedFd<'_>,
        at: &Path,
        act: impl FnOnce(BorrowedFd<'_>, &Path) -> Result<T>,
    ) -> Result<T> {
        let (Some(above), Some(name), true) = (resolve::above(at), at.file_name(), self.is_of(root)) else {
            let (folder, name) = resolve::parent(root, at)?;
            return act(folder.as_fd(), &name);
        };
        let mut last = self.last.borrow_mut();
        let (_, folder) = match last.take_if(|(path, _)| path == above) {
            Some(known) => last.insert(known),
            None => last.insert((above.to_owned(), resolve::directory(root, above, 0o755)?.0)),
        };
        act(folder.as_fd(), Path::new(name))
    }

    fn is_of(&self, root: BorrowedFd<'_>) -> bool {
        self.root == Some(root.as_raw_fd())
    }

    pub(super) fn directory(&self, root: BorrowedFd<'_>, at: &Path, mode: u32) -> Result<(OwnedFd, bool)> {
        let made = self.make(root, at, |folder, name| {
            mkdirat(folder, name, Mode::from_raw_mode(mode))?;
            openat(folder, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        })?;
        match made {
            Some(made) => Ok((made, true)),
            None => resolve::directory(root, at, mode),
        }
    }

    pub(super) fn target(&self, root: BorrowedFd<'_>, at: &Path, kind: FileType) -> Result<OwnedFd> {
        if kind == FileType::Directory {
            return self.directory(root, at, 0o755).map(|(directory, _)| directory);
        }
        let mode = Mode::from_raw_mode(0o644);
        let made = self.make(root, at, |folder, name| openat(folder, name, resolve::NEW_FILE, mode))?;
        made.map_or_else(|| resolve::target(root, at, kind), Ok)
    }

    /// `None` if the name exists, or the root did not start empty.
    fn make(
        &self,
        root: BorrowedFd<'_>,
        at: &Path,
        make: impl FnOnce(BorrowedFd<'_>, &Path) -> std::result::Result<OwnedFd, Errno>,
    ) -> Result<Option<OwnedFd>> {
        if !self.is_of(root) || at.file_name().is_none() {
            return Ok(None);
        }
        match self.with(root, at, |folder, name| Ok(make(folder, name)))? {
            Ok(made) => Ok(Some(made)),
            Err(Errno::EXIST) => {
                self.forget();
                Ok(None)
            }
            Err(errno) => Err(errno).failing(Kind::Mount, || format!("make `{}` in the root", at.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::resolve::tests::tree;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_missing_is_made_and_what_is_there_is_found() {
        let (outside, root) = tree();
        let folder = Folder::of_empty(root.as_fd());
        for (at, is_new) in [("/etc/ssl", true), ("/etc/pki", true), ("/etc/ssl", false), ("/etc", false), ("/", false)]
        {
            assert_eq!(folder.directory(root.as_fd(), Path::new(at), 0o755).unwrap().1, is_new, "{at}");
        }
        for _ in 0..2 {
            folder.target(root.as_fd(), Path::new("/etc/pki/file"), FileType::RegularFile).unwrap();
        }
        assert_eq!(std::fs::metadata(outside.path().join("root/etc/pki/file")).unwrap().len(), 0);
        assert!(folder.directory(root.as_fd(), Path::new("/etc/pki/file"), 0o755).is_err());
    }

    #[test]
    fn a_link_leads_nowhere_but_into_the_root_and_a_root_that_is_not_new_is_looked_at_first() {
        let (outside, root) = tree();
        std::fs::create_dir(outside.path().join("victim")).unwrap();
        for folder in [Folder::of_empty(root.as_fd()), Folder::default()] {
            for (at, link) in [("dots", "../victim".into()), ("absolute", outside.path().join("victim"))] {
                let _ = std::fs::remove_file(outside.path().join("root").join(at));
                symlink(link, outside.path().join("root").join(at)).unwrap();
                for below in ["", "/made"] {
                    let at = PathBuf::from(format!("/{at}{below}"));
                    // Inside the root, or the call fails.
                    let _ = folder.directory(root.as_fd(), &at, 0o755);
                    let _ = folder.target(root.as_fd(), &at, FileType::RegularFile);
                }
                assert!(outside.path().join("root/victim/made").is_dir() || at == "absolute");
            }
        }
        assert_eq!(std::fs::read_dir(outside.path().join("victim")).unwrap().count(), 0);
    }

    #[test]
    fn another_root_has_its_own() {
        let ((first, one), (second, other)) = (tree(), tree());
        let folder = Folder::of_empty(one.as_fd());
        for root in [&one, &other, &one] {
            folder.target(root.as_fd(), Path::new("/etc/file"), FileType::RegularFile).unwrap();
        }
        assert!([first, second].iter().all(|outside| outside.path().join("root/etc/file").exists()));
    }
}
