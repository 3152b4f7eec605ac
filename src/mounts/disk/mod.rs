//! The disk cap: one small file system for every write of a sandbox. A full disk is ENOSPC for the agent and does not
//! affect the host.
//!
//! As root it is an ext4 image on a loop device, otherwise a tmpfs, which init makes
//! ([`Backing::Memory`](crate::spec::root::Backing)).

mod format;
mod image;
mod kept;
mod loop_device;
pub(crate) mod maker;
mod pending;
mod resize;
mod template;
mod unclean;
pub(crate) mod volatile;
pub(crate) mod volume;

pub(crate) use kept::ImageCopy;
pub(crate) use pending::{Pending, begin, begin_ahead, forget_ahead};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bitmaps and directories count, so the cap is never larger than requested.
    pub bytes: u64,
    /// Writes wait for the disk. v1 cgroups then count them for the writer, not for the kernel's flusher.
    pub synchronous: bool,
    /// Files, directories and links: at most this number, and at most one in 64 less.
    pub inodes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskFile {
    /// Freed with its last user, also after a crash.
    #[default]
    Unnamed,
    /// Can outlive its sandbox.
    New(PathBuf),
    /// Of an earlier sandbox, with its workspace, home and changes of the root.
    Kept(PathBuf),
    Copy {
        /// Stays unchanged.
        of: PathBuf,
        to: PathBuf,
    },
}

impl DiskFile {
    pub(crate) fn earlier(&self) -> Option<&Path> {
        match self {
            DiskFile::Unnamed | DiskFile::New(_) => None,
            DiskFile::Kept(path) | DiskFile::Copy { of: path, .. } => Some(path),
        }
    }

    pub(crate) fn named(&self) -> Option<&Path> {
        match self {
            DiskFile::Unnamed => None,
            DiskFile::New(path) | DiskFile::Kept(path) | DiskFile::Copy { to: path, .. } => Some(path),
        }
    }
}

/// Host directories on one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workshop {
    /// Formatted empty images, shared by all sandboxes.
    pub templates: PathBuf,
    /// Short-lived directories, locked during use.
    pub live: PathBuf,
}
