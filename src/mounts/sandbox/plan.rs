//! The container's file system as data, with its descriptors: the input of init.

use crate::error::Result;
use crate::mounts::disk::Pending;
use crate::mounts::disk::volume::PendingMount;
use crate::spec::root::{FileSystem, Ids, Owner, Root, Shown, Step};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Makes one tree of layers in an empty directory. Arguments: the directory of the layers, their names with the topmost
/// first, the empty directory.
pub(crate) type Gather = fn(&Path, &[String], BorrowedFd<'_>) -> Result<()>;

/// Unpacks the archive of an earlier sandbox into the root of a new file system for all writes.
pub(crate) type Restore = fn(OwnedFd, BorrowedFd<'_>) -> Result<()>;

/// The files of a volume.
#[derive(Debug)]
pub(crate) enum VolumeFiles {
    /// The detached mount of its image.
    Mounted(OwnedFd),
    /// An archive, since an ordinary user may mount no image. Init unpacks it into memory.
    Packed(PackedVolume),
}

/// The files of a volume on their way.
#[derive(Debug)]
pub(crate) enum PendingVolume {
    /// They are ready.
    Ready(VolumeFiles),
    /// A child process mounts the image.
    Mounting(PendingMount),
}

impl PendingVolume {
    /// Waits for the files.
    pub(crate) fn wait(self) -> Result<VolumeFiles> {
        match self {
            PendingVolume::Ready(files) => Ok(files),
            PendingVolume::Mounting(mount) => mount.wait().map(VolumeFiles::Mounted),
        }
    }
}

/// The archive of a volume, and the caps of its files.
#[derive(Debug)]
pub(crate) struct PackedVolume {
    /// The archive.
    pub archive: OwnedFd,
    /// Bytes of data; the cap of the scratch file system holds too.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// Unpacks the archive into an empty directory.
    pub unpack: Restore,
}

/// The input of init for a root.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What to build.
    pub file_system: FileSystem,
    /// The kept directory with the start of the root ([`skeleton`](super::skeleton)), if any.
    pub skeleton: Option<PathBuf>,
    /// A host directory over which the stage is mounted, only inside the container's mount namespace.
    pub stage: PathBuf,
    /// The scratch file system if it needs privilege; it may not be ready yet.
    pub disk: Option<Pending>,
    /// The volumes, by their numbers.
    pub volumes: Vec<VolumeFiles>,
    /// The files that a scratch file system in memory begins with.
    pub restore: Option<(OwnedFd, Restore)>,
    /// The ids of [`Owner::Administrator`].
    pub administrator: Ids,
    /// The command's user.
    pub user: Ids,
    /// The user namespaces that map owners of files ([`Shown`]); empty where only one id exists.
    pub mappings: Vec<(Shown, OwnedFd)>,
    /// Merges layers into one tree where overlayfs refuses them.
    pub gather: Gather,
    /// Whether overlays keep their marks in `user.overlay.*`, as a user namespace needs.
    pub user_xattr: bool,
}

impl Plan {
    /// Whether files are copied into memory while the root is built, which the container's cgroups must count.
    pub(crate) fn fills_memory(&self) -> bool {
        let is_gathered = |root: &Root| matches!(root, Root::Gathered(_));
        let mut steps = self.file_system.steps.iter();
        self.restore.is_some()
            || self.volumes.iter().any(|volume| matches!(volume, VolumeFiles::Packed(_)))
            || is_gathered(&self.file_system.root)
            || steps.any(|step| matches!(step, Step::Nest { root, .. } if is_gathered(root)))
    }

    /// The ids of an owner.
    pub(super) fn ids(&self, owner: Owner) -> Ids {
        match owner {
            Owner::Administrator => self.administrator,
            Owner::User => self.user,
        }
    }

    /// The user namespace for these owners; `None` for owners as stored.
    pub(super) fn mapping(&self, shown: Shown) -> Option<&OwnedFd> {
        self.mappings.iter().find(|(each, _)| *each == shown).map(|(_, userns)| userns)
    }
}
