//! Into the new root, and the old one out of sight for good.

use crate::error::{Context, Kind, Result};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use std::os::fd::BorrowedFd;

/// Makes `root` (a mount) the root of this mount namespace and detaches the old one. pivot_root(2), "pivot_root(".", ".")".
pub(crate) fn enter(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    pivot_root(".", ".").failing(Kind::Mount, || "make the new root the root")?;
    // The old root is stacked on top of "." now; it must not hand its unmounting on to where it came from.
    mount_change(".", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .failing(Kind::Mount, || "make the old root private")?;
    unmount(".", UnmountFlags::DETACH).failing(Kind::Mount, || "detach the old root")?;
    chdir("/").failing(Kind::Mount, || "enter the root")
}
