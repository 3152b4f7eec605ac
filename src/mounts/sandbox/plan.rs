//! The plan of a sandbox's root, with its descriptors.

use crate::error::Result;
use crate::mounts::disk::Pending;
use crate::mounts::disk::volume::PendingMount;
use crate::spec::root::{FileSystem, Ids, Owner, Root, Shown, Step};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Arguments: the layers' directory, their names with the topmost first, the empty directory to fill.
pub(crate) type Gather = fn(&Path, &[String], BorrowedFd<'_>) -> Result<()>;

/// Unpacks an archive into the root of a new file system.
pub(crate) type Restore = fn(OwnedFd, BorrowedFd<'_>) -> Result<()>;

#[derive(Debug)]
pub(crate) enum VolumeFiles {
    /// The detached mount of its image.
    Mounted(OwnedFd),
    /// An archive, since an ordinary user may mount no image. Init unpacks it into memory.
    Packed(PackedVolume),
}

#[derive(Debug)]
pub(crate) enum PendingVolume {
    Ready(VolumeFiles),
    /// A child process mounts the image.
    Mounting(PendingMount),
}

impl PendingVolume {
    pub(crate) fn wait(self) -> Result<VolumeFiles> {
        match self {
            PendingVolume::Ready(files) => Ok(files),
            PendingVolume::Mounting(mount) => mount.wait().map(VolumeFiles::Mounted),
        }
    }
}

#[derive(Debug)]
pub(crate) struct PackedVolume {
    pub archive: OwnedFd,
    /// The cap of the scratch file system holds too.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// Into an empty directory.
    pub unpack: Restore,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub file_system: FileSystem,
    /// The kept directory with the start of the root ([`skeleton`](super::skeleton)).
    pub skeleton: Option<PathBuf>,
    /// A host directory that the stage covers inside the container's mount namespace.
    pub stage: PathBuf,
    /// The scratch file system if it needs privilege; it may not be ready yet.
    pub disk: Option<Pending>,
    pub volumes: Vec<VolumeFiles>,
    /// The files that a scratch file system in memory begins with.
    pub restore: Option<(OwnedFd, Restore)>,
    /// Of [`Owner::Administrator`].
    pub administrator: Ids,
    pub user: Ids,
    /// User namespaces that map owners of files ([`Shown`]); empty where only one id exists.
    pub mappings: Vec<(Shown, OwnedFd)>,
    /// Merges layers where overlayfs refuses them.
    pub gather: Gather,
    /// Whether the overlays' marks are `user.overlay.*`, as a user namespace needs.
    pub user_xattr: bool,
}

impl Plan {
    /// The container's cgroups must count files that are copied into memory.
    pub(crate) fn fills_memory(&self) -> bool {
        let is_gathered = |root: &Root| matches!(root, Root::Gathered(_));
        let mut steps = self.file_system.steps.iter();
        self.restore.is_some()
            || self.volumes.iter().any(|volume| matches!(volume, VolumeFiles::Packed(_)))
            || is_gathered(&self.file_system.root)
            || steps.any(|step| matches!(step, Step::Nest { root, .. } if is_gathered(root)))
    }

    pub(super) fn ids(&self, owner: Owner) -> Ids {
        match owner {
            Owner::Administrator => self.administrator,
            Owner::User => self.user,
        }
    }

    /// `None` for owners as stored.
    pub(super) fn mapping(&self, shown: Shown) -> Option<&OwnedFd> {
        self.mappings.iter().find(|(each, _)| *each == shown).map(|(_, userns)| userns)
    }
}
