//! The description of a disk: its size, its file, and the directories in which it is made.

use std::path::{Path, PathBuf};

/// The capacity of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of data. Bitmaps and directories count, so the cap is never larger than requested.
    pub bytes: u64,
    /// Whether a write returns after it reached the disk. v1 cgroups then count it for the writer, not for the kernel's
    /// flusher.
    pub synchronous: bool,
    /// Files, directories and links: at most this number, and at most one in 64 less.
    pub inodes: u64,
}

/// The file of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskFile {
    /// Without a name: freed with its last user, also after a crash.
    #[default]
    Unnamed,
    /// A new file that can outlive its sandbox.
    New(PathBuf),
    /// The file of an earlier sandbox: its workspace, home and changes of the root stay.
    Kept(PathBuf),
    /// A copy of an earlier sandbox's file.
    Copy {
        /// The original, which stays unchanged.
        of: PathBuf,
        to: PathBuf,
    },
}

impl DiskFile {
    /// The path of the earlier sandbox's file.
    pub(crate) fn earlier(&self) -> Option<&Path> {
        match self {
            DiskFile::Unnamed | DiskFile::New(_) => None,
            DiskFile::Kept(path) | DiskFile::Copy { of: path, .. } => Some(path),
        }
    }

    /// The path of the sandbox's own file, if it has a name.
    pub(crate) fn named(&self) -> Option<&Path> {
        match self {
            DiskFile::Unnamed => None,
            DiskFile::New(path) | DiskFile::Kept(path) | DiskFile::Copy { to: path, .. } => Some(path),
        }
    }
}

/// The host directories for disks, on one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workshop {
    /// Formatted empty disk images, shared by all sandboxes.
    pub templates: PathBuf,
    /// Short-lived directories, locked during use.
    pub live: PathBuf,
}
