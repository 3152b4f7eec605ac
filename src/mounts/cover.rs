//! Hides paths of a root, and makes paths read-only.

use super::mount::{attach, clone_all, clone_tree, labelled_tmpfs, restrict};
use super::resolve;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::spec::root::Attributes;
use crate::spec::root::Ids;
use crate::sys::mount as bits;
use crate::sys::weaken;
use rustix::fs::FileType;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

#[derive(Debug, Default)]
pub(super) struct Covers {
    /// One tmpfs for all directories: callers mask one for each processor.
    empty: Option<OwnedFd>,
    first: Option<OwnedFd>,
    /// The container's null device, checked.
    null: Option<OwnedFd>,
}

impl Covers {
    /// `first` is a detached mount of an empty, read-only directory.
    pub(super) fn beginning_with(first: Option<OwnedFd>) -> Covers {
        Covers { first, ..Covers::default() }
    }
}

/// A missing path needs no mask; any other failure is an error (youki CVE-2025-62161).
pub(super) fn mask(root: BorrowedFd<'_>, path: &Path, (owner, label): (Ids, &str), covers: &mut Covers) -> Result<()> {
    if weaken::is_off("masks") {
        return Ok(());
    }
    let Some(target) = existing(root, path)? else { return Ok(()) };
    let kind = resolve::file_type(&target)?;
    let cover = if kind == FileType::Directory {
        match (&covers.empty, covers.first.take()) {
            (Some(there), _) => clone_tree(there.as_fd(), Path::new(""))?,
            (None, Some(first)) => first,
            (None, None) => {
                labelled_tmpfs(4096, 2, 0o555, owner, Attributes(Attributes::KERNEL.0 | bits::RDONLY), label)?
            }
        }
    } else {
        let null = match covers.null.take() {
            Some(there) => there,
            None => null_device(root)?,
        };
        let tree = clone_tree(covers.null.insert(null).as_fd(), Path::new(""))?;
        restrict(&tree, Attributes(bits::RDONLY))?;
        tree
    };
    attach(&cover, target.as_fd()).doing(|| format!("mask `{}`", path.display()))?;
    if kind == FileType::Directory && covers.empty.is_none() {
        covers.empty = Some(cover); // every kernel can clone it once it is attached
    }
    Ok(())
}

/// Checked to be that device (CVE-2025-31133).
fn null_device(root: BorrowedFd<'_>) -> Result<OwnedFd> {
    let null = resolve::open(root, Path::new("/dev/null"))?;
    let status = rustix::fs::fstat(&null).failing(Kind::Mount, || "read the type of `/dev/null`")?;
    let differs = FileType::from_raw_mode(status.st_mode) != FileType::CharacterDevice
        || status.st_rdev != rustix::fs::makedev(1, 3);
    if differs && !weaken::is_off("null-device") {
        return Err(Error::new(Kind::Mount, "`/dev/null` of the container is not the null device"));
    }
    Ok(null)
}

pub(super) fn read_only(root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    if weaken::is_off("read-only") {
        return Ok(());
    }
    let Some(target) = existing(root, path)? else { return Ok(()) };
    // With the submounts; other attributes stay, so that its programs can be executed.
    let tree = clone_all(target.as_fd(), Path::new(""))?;
    restrict(&tree, Attributes(bits::RDONLY))?;
    attach(&tree, target.as_fd()).doing(|| format!("make `{}` read-only", path.display()))
}

pub(super) fn existing(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>> {
    match resolve::open(root, path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}
