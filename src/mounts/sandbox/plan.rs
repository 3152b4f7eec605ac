//! What init is to build: the container's file system as data, and the descriptors that go with it.

use crate::error::Result;
use crate::mounts::disk::Pending;
use crate::spec::root::{FileSystem, Ids, Owner, Root, Shown, Step};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Makes one tree of layers in an empty directory: given are the directory in which they are and their names in it, topmost first.
pub(crate) type Gather = fn(&Path, &[String], BorrowedFd<'_>) -> Result<()>;

/// Everything that init needs to build a root.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What to build.
    pub file_system: FileSystem,
    /// The directory with what the root begins with, where that is kept ([`skeleton`](super::skeleton)).
    pub skeleton: Option<PathBuf>,
    /// A directory of the host over which the stage is mounted, inside the container's mount namespace only.
    pub stage: PathBuf,
    /// The scratch file system where it takes privilege to make; it may still be in the making.
    pub disk: Option<Pending>,
    /// Who [`Owner::Administrator`] is.
    pub administrator: Ids,
    /// Who the command runs as.
    pub user: Ids,
    /// The user namespaces whose mappings show files as other owners' ([`Shown`]); none where all ids are one.
    pub mappings: Vec<(Shown, OwnedFd)>,
    /// How layers become one tree where no overlay takes them.
    pub gather: Gather,
    /// Whether overlays must keep their marks in `user.overlay.*`, as is needed inside a user namespace.
    pub user_xattr: bool,
}

impl Plan {
    /// Whether files are copied into memory while the root is built, which the container's groups must count.
    pub(crate) fn fills_memory(&self) -> bool {
        let is_gathered = |root: &Root| matches!(root, Root::Gathered(_));
        let mut steps = self.file_system.steps.iter();
        is_gathered(&self.file_system.root)
            || steps.any(|step| matches!(step, Step::Nest { root, .. } if is_gathered(root)))
    }

    /// The ids of an owner.
    pub(super) fn ids(&self, owner: Owner) -> Ids {
        match owner {
            Owner::Administrator => self.administrator,
        }
    }

    /// The user namespace that shows files in this way; `None` where they are shown as stored.
    pub(super) fn mapping(&self, shown: Shown) -> Option<&OwnedFd> {
        self.mappings.iter().find(|(each, _)| *each == shown).map(|(_, userns)| userns)
    }
}
