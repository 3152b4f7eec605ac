//! The description of a disk: its size, its file, and the directories in which it is made.

use std::path::PathBuf;

/// What the image must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of data; what bitmaps and directories take is inside, so that the cap is never larger than asked.
    pub bytes: u64,
    /// Whether a write returns when it is on the disk: only so do v1 groups count it for the writer, and not for the kernel's flusher.
    pub synchronous: bool,
    /// Files, directories and links. Never more, and at most one in 64 less.
    pub inodes: u64,
}

/// The file that a disk is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskFile {
    /// One without a name: it is gone with its last user, whatever happens.
    #[default]
    Unnamed,
    /// A new one that can outlive its sandbox.
    New(PathBuf),
    /// One of an earlier sandbox, of which only the workspace stays.
    Kept(PathBuf),
    /// The same, copied first.
    Copy {
        /// The one that stays as it is.
        of: PathBuf,
        /// The new one.
        to: PathBuf,
    },
}

/// The directories of the host that disks are made in, on one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workshop {
    /// Formatted empty disk images, shared by all. What is written here is on this file system.
    pub templates: PathBuf,
    /// What is in use for a moment only, and locked meanwhile.
    pub live: PathBuf,
}
