//! Enters the new root.

use super::mount::mount_id;
use crate::error::{Context, Error, Kind, Result};
use crate::host::{self, MountEntry};
use crate::sys::weaken;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};
use rustix::mount::{mount, mount_change, move_mount, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

/// Leaves the engine's chroot: the next step must replace the root of the mount namespace itself. Otherwise later
/// processes, such as that of `exec`, get the machine's root: setns(2) leaves a chroot.
pub(super) fn leave_chroot() -> Result<()> {
    if weaken::is_off("chroot") {
        return Ok(());
    }
    let step = || "enter the root of our mount namespace";
    let own = rustix::fs::open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Mount, step)?;
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Mount)).failing(Kind::Mount, step)
}

/// Detaches the old root. pivot_root(2), `pivot_root(".", ".")`.
pub(crate) fn enter(root: BorrowedFd<'_>) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = rustix::fs::open("/", flags, Mode::empty()).failing(Kind::Mount, || "open the old root")?;
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    pivot_root(".", ".").failing(Kind::Mount, || "make the new root the root")?;
    // The old root is on top of the new one; its unmount must not propagate to its origin. Use its descriptor: "."
    // alone is the new root, whose propagation must stay.
    fchdir(&old).failing(Kind::Mount, || "enter the old root")?;
    drop(old);
    mount_change(".", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .failing(Kind::Mount, || "keep the old root's end from the host")?;
    unmount(".", UnmountFlags::DETACH).failing(Kind::Mount, || "detach the old root")?;
    chdir("/").failing(Kind::Mount, || "enter the root")
}

/// For a container in the host's mount namespace.
pub(super) fn chroot(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    rustix::process::chroot(".").failing(Kind::Mount, || "make the new root the root")?;
    chdir("/").failing(Kind::Mount, || "enter the root")
}

/// For hosts on a ramdisk, whose root cannot be pivoted. The old root stays below, so its complete proc and sysfs
/// mounts are unmounted. They would let a new user namespace mount complete ones.
///
/// With `is_shared` the mounts are in the host's peer groups, and the host gets each mount and unmount on them. So the
/// root, these mounts with those below, and their parents leave their group first (mount_namespaces(7)).
pub(super) fn move_over(root: BorrowedFd<'_>, is_shared: bool) -> Result<()> {
    let table = host::mounts()?;
    let places = whole_kernel_mounts(&table, mount_id(root)?);
    if is_shared && !weaken::is_off("hosts-propagation") {
        mount_change("/", MountPropagationFlags::DOWNSTREAM).failing(Kind::Mount, || "keep the root from the host")?;
        let parents: BTreeSet<u64> = places.iter().map(|mount| mount.parent).collect();
        let mut parents = table.iter().filter(|mount| parents.contains(&mount.id));
        parents.try_for_each(|mount| leave_group(mount, MountPropagationFlags::DOWNSTREAM))?;
        let all = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        places.iter().try_for_each(|mount| leave_group(mount, all))?;
    }
    for MountEntry { point, .. } in places {
        let step = || format!("take away the old `{}`", point.display());
        match unmount(point, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::NOENT) => {}
            // In a user namespace the mounts of its creator are locked. A covered one counts as incomplete.
            Err(Errno::INVAL | Errno::PERM) => match mount("tmpfs", point, "tmpfs", MountFlags::RDONLY, None) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno).failing(Kind::Mount, step),
            },
            Err(errno) => return Err(errno).failing(Kind::Mount, step),
        }
    }
    fchdir(root).failing(Kind::Mount, || "enter the new root")?;
    move_mount(root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || "move the new root over the old one")?;
    chroot(root)
}

/// By its path, which may lead to another mount that covers it.
fn leave_group(mount: &MountEntry, flags: MountPropagationFlags) -> Result<()> {
    let step = || format!("keep the end of mounts on `{}` from the host", mount.point.display());
    let found = rustix::fs::open(&mount.point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let found = found.failing(Kind::Mount, step)?;
    if mount_id(&found)? != mount.id {
        let hint = "let the engine pivot the root, or use a propagation that is not shared";
        return Err(Error::new(Kind::Mount, "another mount covers it").doing(step()).hint(hint));
    }
    mount_change(&mount.point, flags).failing(Kind::Mount, step)
}

/// Outside the mount `own`. Paths do not prove which mounts are its children; mount ids do.
fn whole_kernel_mounts(table: &[MountEntry], own: u64) -> Vec<&MountEntry> {
    let parents: BTreeMap<u64, u64> = table.iter().map(|mount| (mount.id, mount.parent)).collect();
    let is_own = |mount: u64| {
        // The root mount may be its own parent; no path up is longer than the table.
        let way = std::iter::successors(Some(mount), |at| parents.get(at).copied().filter(|above| above != at));
        way.take(parents.len() + 1).any(|at| at == own)
    };
    let is_whole =
        |mount: &MountEntry| mount.root.parent().is_none() && ["proc", "sysfs"].contains(&mount.kind.as_str());
    table.iter().filter(|mount| is_whole(mount) && !is_own(mount.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_mounts_are_taken_away_unless_they_hang_on_the_new_root() {
        let table = b"1 1 0:1 / / rw - rootfs rootfs rw\n\
            20 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n\
            21 1 0:21 / /sys rw - sysfs sysfs rw\n\
            22 20 0:22 / /proc/sys/fs/binfmt_misc rw - autofs autofs rw\n\
            30 1 0:20 /sys /half rw - proc proc rw\n\
            31 1 0:20 / /run/a\\040b/proc rw - proc proc rw\n\
            40 1 8:1 /b/root /run/a rw - ext4 /dev/sda rw\n\
            41 40 0:41 / /run/a/proc rw - proc proc rw\n\
            42 40 0:42 / /run/a/dev rw - tmpfs tmpfs rw\n\
            43 42 0:43 / /run/a/dev/sys rw master:1 - sysfs sysfs rw\n";
        let table = host::parse_mounts(table);
        let found = |own| -> Vec<_> {
            whole_kernel_mounts(&table, own).into_iter().map(|mount| mount.point.to_str().unwrap()).collect()
        };
        assert_eq!(found(40), ["/proc", "/sys", "/run/a b/proc"]);
        assert_eq!(found(99), ["/proc", "/sys", "/run/a b/proc", "/run/a/proc", "/run/a/dev/sys"]);
    }
}
