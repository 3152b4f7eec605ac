//! The marks that overlayfs writes into an upper directory.
//!
//! A deletion is a character device 0:0, or an empty file with the attribute `overlay.whiteout` (kernel 6.7). A
//! directory with `overlay.opaque=y` hides the base's directory of its name. `overlay.opaque=x` does not: it marks
//! possible whiteouts of the second kind inside (kernel 6.8, Documentation/filesystems/overlayfs.rst, "whiteouts and
//! opaque directories").

use rustix::fs::{FileType, Stat, fgetxattr};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// The place of overlayfs's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `trusted.overlay.*`: mounted with privilege in the initial user namespace. The agent cannot write these, and its
    /// `user.overlay.*` have no effect.
    Trusted,
    /// `user.overlay.*`: mounted with `userxattr`, as in an unprivileged user namespace. Overlayfs protects them from
    /// the agent.
    User,
    /// No overlay: the workspace was an empty directory, and everything in it is new. Nothing is a mark.
    Plain,
}

/// The meaning of a directory's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::task) enum Directory {
    /// Names of the base show through.
    Merged,
    /// The base's directory is deleted; only the upper directory's names exist.
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

    /// The value of a mark, or `None`. Values longer than two bytes are cut: only their presence counts.
    fn mark(self, on: impl AsFd, mark: &str) -> Result<Option<Vec<u8>>, Errno> {
        let Some(name) = self.attribute(mark) else { return Ok(None) };
        let mut value = [0_u8; 2];
        let found = match fgetxattr(&on, name.as_str(), &mut value[..]) {
            Err(Errno::NODATA) if super::tree::is_off("changes-form") => {
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

    /// Whether a status alone marks a deleted name.
    pub(in crate::task) fn is_whiteout(self, status: &Stat) -> bool {
        self != Form::Plain
            && FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice
            && status.st_rdev == 0
    }

    /// Whether an open, empty regular file marks a deleted name.
    pub(in crate::task) fn is_file_whiteout(self, file: impl AsFd, status: &Stat) -> Result<bool, Errno> {
        Ok(status.st_size == 0 && self.mark(file, "whiteout")?.is_some())
    }

    /// The meaning of an open directory's marks.
    pub(in crate::task) fn directory(self, directory: impl AsFd) -> Result<Directory, Errno> {
        if self.mark(&directory, "redirect")?.is_some() {
            return Ok(Directory::Moved);
        }
        let opaque = self.mark(&directory, "opaque")?;
        Ok(if opaque.as_deref() == Some(b"y") { Directory::Opaque } else { Directory::Merged })
    }

    /// Whether an open file is metadata only, with its content in the base (`metacopy=on`).
    pub(in crate::task) fn is_metadata_only(self, file: impl AsFd) -> Result<bool, Errno> {
        Ok(self.mark(file, "metacopy")?.is_some())
    }
}
