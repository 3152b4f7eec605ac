//! Into the new root, and the old one out of sight for good.

use crate::error::{Context, Kind, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::process::{chdir, fchdir, pivot_root};
use std::os::fd::BorrowedFd;

/// Makes `root` (a mount) the root of this mount namespace and detaches the old one. pivot_root(2), "pivot_root(".", ".")".
pub(crate) fn enter(root: BorrowedFd<'_>) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = rustix::fs::open("/", flags, Mode::empty()).failing(Kind::Mount, || "open the old root")?;
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    pivot_root(".", ".").failing(Kind::Mount, || "make the new root the root")?;
    // The old root is stacked on the new one now; it must not hand its unmounting on to where it came from. By its descriptor: "." alone would
    // be the new root, whose propagation is not to be touched.
    fchdir(&old).failing(Kind::Mount, || "enter the old root")?;
    drop(old);
    mount_change(".", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .failing(Kind::Mount, || "keep the old root's end from the host")?;
    unmount(".", UnmountFlags::DETACH).failing(Kind::Mount, || "detach the old root")?;
    chdir("/").failing(Kind::Mount, || "enter the root")
}

/// Makes `root` the root of this process alone, for a container without a mount namespace of its own. chroot(2).
pub(super) fn chroot(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    rustix::process::chroot(".").failing(Kind::Mount, || "make the new root the root")?;
    chdir("/").failing(Kind::Mount, || "enter the root")
}

/// Moves `root` (a mount) over the old root, for hosts on a ramdisk, whose root cannot be pivoted away. The old root stays below, so the proc and
/// sysfs mounts there, which are whole, are taken away first: with them a process in a new user namespace could mount whole ones again.
pub(super) fn move_over(root: BorrowedFd<'_>) -> Result<()> {
    for place in whole_kernel_mounts()? {
        match unmount(place.as_str(), UnmountFlags::DETACH) {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno).failing(Kind::Mount, || format!("take away the old `{place}`")),
        }
    }
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    move_mount(root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || "move the new root over the old one")?;
    chroot(root)
}

/// Where proc and sysfs are mounted outside the new root, which is the last mount of them all and its own children.
fn whole_kernel_mounts() -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").failing(Kind::Mount, || "read the mounts")?;
    let own = std::env::current_dir().ok().map(|path| path.display().to_string()).unwrap_or_default();
    Ok(text
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (whole, place) = (fields.next()? == "/", fields.next()?);
            let kernel = matches!(kind.split(' ').next()?, "proc" | "sysfs");
            (whole && kernel && (own.len() <= 1 || !place.starts_with(&own))).then(|| place.to_owned())
        })
        .collect())
}
