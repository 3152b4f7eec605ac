//! A capped root that the host sees, too: an engine reads the container's view at the root's path (`docker cp`). The
//! runtime mounts it over the bundle's root before init.
//!
//! The host's mount has the container's id in its source, so that [`hide`] finds it after any crash. Nothing propagates
//! between it and the container's.

use super::capped::{Cap, cover};
use crate::error::{Context, Error, Kind, Result, Step as _, wire};
use crate::files::{Channel, Packet};
use crate::host::{MountEntry, mounts};
use crate::mounts::mount::{attach_to_host, clone_tree, mount_id, restrict};
use crate::spec::root::Attributes;
use crate::sys::clone::{Side, clone_process, exit, wait};
use crate::sys::mount as bits;
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{FsOpenFlags, MountPropagationFlags, UnmountFlags, fsopen, mount_change, unmount};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

const PREFIX: &str = "brig-root:";
/// In bytes (fsconfig(2)).
const LONGEST_SOURCE: usize = 255;

#[derive(Debug)]
pub(crate) struct CappedRoot {
    pub inside: OwnedFd,
    /// The root directory of the small file system.
    pub scratch: OwnedFd,
    /// The host's mount, detached.
    outside: OwnedFd,
}

pub(crate) fn source(id: &str) -> String {
    let mut source = format!("{PREFIX}{id}");
    source.truncate(LONGEST_SOURCE); // an id is ASCII
    source
}

/// Otherwise fsopen(2) returns EPERM for every file system.
pub(crate) fn may_mount() -> bool {
    fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).is_ok()
}

impl CappedRoot {
    /// The caller has one thread. A helper in another mount namespace attaches the layers, so that no path of the host
    /// leads to them. The kernel drops that namespace with the helper.
    pub(crate) fn make(root: &Path, cap: Cap) -> Result<CappedRoot> {
        let step = || "make the capped root";
        let (ours, theirs) = Channel::pair().failing(Kind::Disk, step)?;
        match clone_process(libc::CLONE_NEWNS as u64, None).failing(Kind::Disk, step)? {
            Side::Child => exit(i32::from(send(&theirs, make_here(root, cap)).is_err())),
            Side::Parent(_, helper) => {
                drop(theirs);
                let received = [(); 3].map(|()| receive(&ours));
                // It exits by itself; its message has the error.
                let _ = wait(helper.as_fd());
                let [inside, outside, scratch] = received;
                Ok(CappedRoot { inside: inside?, outside: outside?, scratch: scratch? })
            }
        }
    }

    /// Returns the container's part.
    pub(crate) fn show(self, root: &Path) -> Result<(OwnedFd, OwnedFd)> {
        attach_to_host(&self.outside, root).doing(|| "show the capped root to the host")?;
        Ok((self.inside, self.scratch))
    }
}

fn make_here(root: &Path, cap: Cap) -> Result<[OwnedFd; 3]> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .failing(Kind::Mount, || "keep the layers of the capped root from the host")?;
    // Another container of the same root may be shown there. This one begins with the bundle's files.
    while let Some(entry) = top(root, &mounts()?)?.filter(is_capped_root) {
        take_off(&entry.point)?;
    }
    let (covered, scratch) = cover(root, cap)?;
    // Before Linux 6.15 only an attached mount can be copied.
    attach_to_host(&covered, root)?;
    let inside = clone_tree(covered.as_fd(), Path::new(""))?;
    let outside = clone_tree(covered.as_fd(), Path::new(""))?;
    // A user of the host may reach the path: a set-uid program of the container must gain nothing.
    restrict(&outside, Attributes(bits::NOSUID | bits::NODEV))?;
    Ok([inside, outside, scratch])
}

fn send(channel: &Channel, made: Result<[OwnedFd; 3]>) -> std::result::Result<(), rustix::io::Errno> {
    match made {
        Ok(all) => all.iter().try_for_each(|each| channel.send(b"M", Some(each.as_fd()))),
        Err(error) => channel.send(&wire::to_bytes(&error), None),
    }
}

fn receive(channel: &Channel) -> Result<OwnedFd> {
    match channel.receive().failing(Kind::Disk, || "wait for the capped root")? {
        Some(Packet { descriptor: Some(mounted), .. }) => Ok(mounted),
        Some(Packet { bytes, .. }) => Err(wire::from_bytes(&bytes)),
        None => Err(Error::new(Kind::Lost, "the process that makes the capped root died")),
    }
}

/// As far as this mount namespace has them.
pub(crate) fn shown(id: &str) -> Result<Vec<PathBuf>> {
    let source = source(id);
    Ok(mounts()?.into_iter().filter(|entry| entry.source == source).map(|entry| entry.point).collect())
}

/// Capped roots of any mount namespace whose disk is an image: each has a loop device. Its mount is in no namespace:
/// only the overlay holds it.
pub(crate) fn count_images() -> usize {
    let (mut seen, mut devices) = (BTreeSet::new(), BTreeSet::new());
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
        // A process with another root sees other mounts.
        let [namespace, root] = ["ns/mnt", "root"].map(|name| std::fs::read_link(process.join(name)).ok());
        if namespace.is_some()
            && seen.insert((namespace, root))
            && let Ok(table) = std::fs::read_to_string(process.join("mountinfo"))
        {
            devices.extend(table.lines().filter_map(image_device).map(str::to_owned));
        }
    }
    devices.len()
}

/// The device number of a capped root. A user namespace, with `userxattr`, has its disk in memory.
fn image_device(line: &str) -> Option<&str> {
    let (mount, kind) = line.split_once(" - ")?;
    let (source, options) = kind.strip_prefix("overlay ")?.split_once(' ')?;
    let is_image = source.starts_with(PREFIX) && !options.split(',').any(|option| option == "userxattr");
    mount.split(' ').nth(2).filter(|_| is_image)
}

/// Succeeds if the engine has already done so.
pub(crate) fn hide(id: &str, root: &Path) -> Result<()> {
    let source = source(id);
    let is_wanted = |entry: &MountEntry| entry.source == source && entry.point == root;
    loop {
        let table = mounts()?;
        if !table.iter().any(is_wanted) {
            return Ok(());
        }
        let step = || format!("take the capped root off `{}`", root.display());
        let mut aside = Vec::new();
        let done = uncover(root, &table, is_wanted, &mut aside).doing(step);
        // The last one that was taken off was the lowest.
        let restored = aside.iter().rev().try_for_each(|tree| attach_to_host(tree, root));
        done.and(restored)?;
    }
}

/// `aside` keeps the capped roots of other containers above it.
fn uncover(
    root: &Path,
    table: &[MountEntry],
    is_wanted: impl Fn(&MountEntry) -> bool,
    aside: &mut Vec<OwnedFd>,
) -> Result<()> {
    loop {
        // `None`: the engine was faster.
        let Some(entry) = top(root, table)? else { return Ok(()) };
        if is_wanted(&entry) {
            return take_off(root);
        }
        if !is_capped_root(&entry) {
            let words = format!("a mount of `{}` ({}) covers it", entry.source.escape_debug(), entry.kind);
            return Err(Error::new(Kind::Mount, words).hint("unmount that first"));
        }
        aside.push(clone_tree(CWD, root)?);
        take_off(root)?;
    }
}

fn is_capped_root(entry: &MountEntry) -> bool {
    entry.source.starts_with(PREFIX) && entry.kind == "overlay"
}

/// The mount that a lookup of `root` finds.
fn top(root: &Path, table: &[MountEntry]) -> Result<Option<MountEntry>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match open(root, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        other => other.failing(Kind::Mount, || format!("open `{}`", root.display()))?,
    };
    let id = mount_id(&found)?;
    Ok(table.iter().find(|entry| entry.id == id && entry.point == root).cloned())
}

/// Also while the engine reads it.
fn take_off(root: &Path) -> Result<()> {
    unmount(root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .failing(Kind::Mount, || format!("unmount `{}`", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_names_the_container_and_fits_the_kernels_limit() {
        assert_eq!(source("web-1"), "brig-root:web-1");
        assert_eq!(source(&"a".repeat(255)).len(), LONGEST_SOURCE);
    }

    #[test]
    fn only_a_capped_root_with_an_image_has_a_loop_device() {
        let line = |end: &str| format!("90 29 0:54 / /b/rootfs rw,nosuid shared:5 - {end}");
        let device = |end: &str| image_device(&line(end)).map(str::to_owned);
        assert_eq!(device("overlay brig-root:a rw,lowerdir=l,volatile"), Some("0:54".to_owned()));
        assert_eq!(device("overlay brig-root:a rw,volatile,userxattr"), None);
        assert_eq!(device("overlay overlay rw"), None);
        assert_eq!(device("tmpfs brig-root:a rw"), None);
    }
}
