//! The marks of overlayfs in an upper directory.
//!
//! A deletion is a character device 0:0, or an empty file with `overlay.whiteout` (kernel 6.7). `overlay.opaque=y`
//! hides the base's directory of that name. `overlay.opaque=x` marks possible whiteouts of the second kind inside
//! (kernel 6.8, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories").

use super::path::TreePath;
use super::record::Changes;
use super::tree;
use crate::files::HiddenMatcher;
use crate::host::is_off;
use rustix::fs::{AtFlags, FileType, Stat, fgetxattr, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `trusted.overlay.*`: mounted with privilege in the initial user namespace. The agent cannot write these, and its
    /// `user.overlay.*` have no effect.
    Trusted,
    /// `user.overlay.*`: mounted with `userxattr`, as in an unprivileged user namespace. Overlayfs protects them from
    /// the agent.
    User,
    /// No overlay: the workspace was empty, so everything is new and nothing is a mark.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::task) enum Directory {
    /// Names of the base show through.
    Merged,
    /// Only the upper directory's names exist.
    Opaque,
    /// Moved from elsewhere in the base (`redirect_dir=on`): its content is not under its name.
    Moved,
}

impl Form {
    fn attribute(self, mark: &str) -> Option<String> {
        match self {
            Form::Trusted => Some(format!("trusted.overlay.{mark}")),
            Form::User => Some(format!("user.overlay.{mark}")),
            Form::Plain => None,
        }
    }

    /// Values longer than two bytes are cut: only their presence counts.
    fn mark(self, on: impl AsFd, mark: &str) -> Result<Option<Vec<u8>>, Errno> {
        let Some(name) = self.attribute(mark) else { return Ok(None) };
        let mut value = [0_u8; 2];
        let found = match fgetxattr(&on, name.as_str(), &mut value[..]) {
            Err(Errno::NODATA) if is_off("changes-form") => {
                fgetxattr(&on, format!("user.overlay.{mark}"), &mut value[..])
            }
            found => found,
        };
        match found {
            Ok(length) => Ok(Some(value[..length.min(2)].to_vec())),
            Err(Errno::RANGE) => Ok(Some(value.to_vec())),
            // A file system without attributes has no marks.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(in crate::task) fn is_whiteout(self, status: &Stat) -> bool {
        self != Form::Plain
            && FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice
            && status.st_rdev == 0
    }

    /// For an open, empty regular file.
    pub(in crate::task) fn is_file_whiteout(self, file: impl AsFd, status: &Stat) -> Result<bool, Errno> {
        Ok(status.st_size == 0 && self.mark(file, "whiteout")?.is_some())
    }

    pub(in crate::task) fn directory(self, directory: impl AsFd) -> Result<Directory, Errno> {
        if self.mark(&directory, "redirect")?.is_some() {
            return Ok(Directory::Moved);
        }
        let opaque = self.mark(&directory, "opaque")?;
        Ok(if opaque.as_deref() == Some(b"y") { Directory::Opaque } else { Directory::Merged })
    }

    /// Whether its content is in the base (`metacopy=on`).
    pub(in crate::task) fn is_metadata_only(self, file: impl AsFd) -> Result<bool, Errno> {
        Ok(self.mark(file, "metacopy")?.is_some())
    }
}

/// Files of the base that the sandbox did not show: the changes leave them out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenNames<'a> {
    pub(crate) patterns: &'a HiddenMatcher,
    /// The layer with a whiteout for each hidden path, also for further names of hidden files.
    pub(crate) mask: Option<BorrowedFd<'a>>,
}

impl HiddenNames<'_> {
    /// Whether the path is or was hidden on one of its sides.
    pub(super) fn has(&self, path: &TreePath, sides: [Option<&Stat>; 2]) -> bool {
        let is_directory = |status: &Stat| tree::file_type(status) == FileType::Directory;
        let name = tree::name_path(path.as_bytes());
        let mut sides = sides.into_iter().flatten().map(is_directory);
        let whiteout = || self.mask.and_then(|mask| statat(mask, name, AtFlags::SYMLINK_NOFOLLOW).ok());
        sides.any(|is_directory| self.patterns.hides(name, is_directory))
            || whiteout().is_some_and(|status| Form::Trusted.is_whiteout(&status))
    }
}

/// Folders of the base with files that the changes leave out. The agent may have deleted them; they stay.
#[derive(Debug, Default)]
pub(super) struct KeptFolders(HashSet<TreePath>);

impl KeptFolders {
    pub(super) fn keep(&mut self, path: &TreePath, base: Option<&Stat>) {
        let mut above = base.and_then(|_| path.parent());
        while let Some(folder) = above {
            above = folder.parent();
            if !self.0.insert(folder) {
                return;
            }
        }
    }

    pub(super) fn leave_out(&self, changes: &mut Changes) {
        changes.entries.retain(|entry| entry.now.is_some() || !self.0.contains(&entry.path));
    }
}
