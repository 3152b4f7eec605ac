//! The snapshot of the user's folder, taken in steps while the command runs.

use super::changes::Snapshot;
use super::handback;
use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// A folder by its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderIdentity {
    device: u64,
    inode: u64,
}

impl FolderIdentity {
    /// `None` without a folder at `path`.
    pub(crate) fn of(path: &Path) -> Option<FolderIdentity> {
        rustix::fs::stat(path).ok().map(|status| FolderIdentity { device: status.st_dev, inode: status.st_ino })
    }

    /// Device and inode.
    pub(crate) fn numbers(self) -> (u64, u64) {
        (self.device, self.inode)
    }

    pub(crate) fn is_of(self, folder: impl AsFd) -> bool {
        rustix::fs::fstat(folder)
            .is_ok_and(|status| self == FolderIdentity { device: status.st_dev, inode: status.st_ino })
    }
}

/// For one step of the supervisor, five times a second.
const STEP: Duration = Duration::from_millis(10);
pub(crate) struct SnapshotInSteps {
    folder: PathBuf,
    identity: Option<FolderIdentity>,
    task: PathBuf,
    started: SystemTime,
    has_begun: bool,
    snapshot: Option<Snapshot>,
}

impl SnapshotInSteps {
    pub(crate) fn new(
        folder: PathBuf,
        identity: Option<FolderIdentity>,
        task: PathBuf,
        started: SystemTime,
    ) -> SnapshotInSteps {
        SnapshotInSteps { folder, identity, task, started, has_begun: false, snapshot: None }
    }

    /// `None` if the command did not run long enough.
    pub(crate) fn noted(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    pub(crate) fn advance(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.snapshot = self.begin();
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.advance(Instant::now() + STEP);
        }
    }

    fn begin(&self) -> Option<Snapshot> {
        let folder = handback::open_tree(&self.folder).ok()?;
        if !self.identity?.is_of(&folder) {
            return None; // the path leads to another folder since the start
        }
        let worktree = std::fs::canonicalize(&self.folder).ok().and_then(|real| handback::worktree_of(&real));
        // Unnamed: a killed supervisor leaves nothing.
        let copies = open(&self.task, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        Snapshot::begin(folder, worktree.as_ref(), copies.ok().map(File::from), self.started)
    }
}
