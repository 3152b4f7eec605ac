//! The plain copies: regular files under their original paths, without attributes, owners or special bits.

use super::copy::{self, Digest, Failure};
use super::path::TreePath;
use super::tree;
use crate::error::{Context, Kind, Result};
use crate::files;
use rustix::fs::{AtFlags, Mode, fchmod, linkat, mkdirat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const FILES: &str = "files";
/// Left free by copies, for the records and receipts of this task and of others.
const KEPT_FREE: u64 = 64 << 20;
pub(super) const BASES: &str = "bases";

pub(in crate::task) struct Store(OwnedFd);

/// Another writer may fill the disk at any moment.
pub(in crate::task) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Of a copy, or the error of reading the agent's file or of a full disk.
pub(super) type Taken = std::result::Result<(Digest, u64), io::Error>;

impl Store {
    pub(super) fn create(into: &Path) -> Result<Store> {
        Store::create_at(into, FILES)
    }

    /// `name` must not exist in `into`.
    pub(super) fn create_at(into: &Path, name: &str) -> Result<Store> {
        let path = into.join(name);
        rustix::fs::mkdir(&path, Mode::RWXU)
            .failing(Kind::Store, || format!("make the directory `{}`", path.display()))?;
        Store::open_at(into, name)
    }

    /// For a directory that only brig writes.
    pub(in crate::task) fn at(directory: OwnedFd) -> Store {
        Store(directory)
    }

    /// Bytes that copies may take of its disk.
    pub(in crate::task) fn room(&self) -> u64 {
        let free = rustix::fs::fstatvfs(&self.0).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        free.map_or(u64::MAX, |free| free.saturating_sub(KEPT_FREE))
    }

    /// Also makes directories. `path` must not exist.
    pub(in crate::task) fn make(&self, path: &TreePath) -> Result<File> {
        let failed = |errno: Errno| files::failed(errno.into(), format!("copy `{path}`"));
        let parent = self.parent(path).map_err(failed)?;
        tree::create(parent.as_fd(), path.name(), 0o600).map_err(failed)
    }

    pub(in crate::task) fn remove(&self, path: &TreePath) -> Result<()> {
        tree::parent(self.0.as_fd(), path)
            .and_then(|parent| unlinkat(&parent, tree::name_path(path.name()), AtFlags::empty()))
            .map_err(|errno| files::failed(errno.into(), format!("remove `{path}`")))
    }

    pub(in crate::task) fn open(into: &Path) -> Result<Store> {
        Store::open_at(into, FILES)
    }

    pub(super) fn open_at(into: &Path, name: &str) -> Result<Store> {
        let path = into.join(name);
        Ok(Store(File::open(&path).failing(Kind::Store, || format!("open `{}`", path.display()))?.into()))
    }

    /// The caller checks the size.
    pub(in crate::task) fn file(&self, path: &TreePath) -> std::result::Result<File, Errno> {
        tree::file(self.0.as_fd(), path.as_bytes()).map(|(file, _)| file)
    }

    /// An error of the store is the error. One of the agent's file is in the result, and a full disk: one copy that
    /// does not fit must not cost the others.
    pub(super) fn take(&self, path: &TreePath, file: &File, size: u64, mode: u32) -> Result<Taken> {
        let failed = |cause: io::Error| files::failed(cause, format!("copy `{path}`"));
        let to = self.make(path)?;
        match copy::copy(file, size, &to) {
            Ok(taken) => {
                // Readable in any case: the record has the agent's mode.
                fchmod(&to, Mode::from_raw_mode(mode & 0o777 | 0o400)).map_err(|errno| failed(errno.into()))?;
                Ok(Ok(taken))
            }
            Err(Failure::Write(cause)) if !is_full(&cause) => Err(failed(cause)),
            Err(Failure::Read(cause) | Failure::Write(cause)) => {
                self.remove(path)?;
                Ok(Err(cause))
            }
        }
    }

    pub(super) fn link(&self, from: &TreePath, path: &TreePath) -> std::result::Result<(), Errno> {
        let (old, new) = (tree::parent(self.0.as_fd(), from)?, self.parent(path)?);
        linkat(&old, tree::name_path(from.name()), &new, tree::name_path(path.name()), AtFlags::empty())
    }

    fn parent(&self, path: &TreePath) -> std::result::Result<OwnedFd, Errno> {
        match tree::parent(self.0.as_fd(), path) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let mut directory = tree::directory(self.0.as_fd(), b".")?;
        let above = path.parent();
        for name in above.iter().flat_map(TreePath::names) {
            match mkdirat(&directory, tree::name_path(name), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => directory = tree::directory(directory.as_fd(), name)?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(directory)
    }
}
