//! The marks of overlayfs in an upper directory.
//!
//! A deletion is a character device 0:0, or an empty file with `overlay.whiteout` (kernel 6.7). `overlay.opaque=y`
//! hides the base's directory of that name. `overlay.opaque=x` marks possible whiteouts of the second kind inside
//! (kernel 6.8, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories").

use rustix::fs::{FileType, Stat, fgetxattr};
use rustix::io::Errno;
use std::os::fd::AsFd;

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
