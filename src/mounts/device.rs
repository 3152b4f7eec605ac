//! Device nodes of a container's /dev, by descriptors only: a name that the image chose is never followed
//! (CVE-2026-41579, CVE-2026-88264).

use super::mount::{attach, clone_tree, restrict};
use super::resolve;
use super::write::{own, real_directory, symlink};
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::spec::root::Ids;
use crate::spec::root::{Attributes, DEVICES, Device};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::umask;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Absolute in the container.
    pub at: PathBuf,
    /// Character or block device, or FIFO.
    pub kind: FileType,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    /// In our ids; the container's user 0 if absent.
    pub owner: Ids,
}

/// runtime-spec, "Dev symbolic links".
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Skips default devices that the caller replaces.
pub(super) fn populate(root: BorrowedFd<'_>, devices: &[Node], owner: Ids) -> Result<()> {
    let dev = if weaken::is_off("true-dev") {
        rustix::fs::openat(root, "dev", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::Mount, || "open `/dev`")?
    } else {
        real_directory(root, Path::new("/dev"))?
    };
    for default in DEVICES {
        let at = Path::new("/dev").join(default.name);
        if !devices.iter().any(|each| each.at == at) {
            let node = Node {
                at,
                kind: FileType::CharacterDevice,
                major: default.major,
                minor: default.minor,
                mode: 0o666,
                owner,
            };
            make(dev.as_fd(), Path::new(default.name), &node)?;
        }
    }
    // As in runc, this is always the link to the container's devpts.
    for node in devices.iter().filter(|node| node.at != Path::new("/dev/ptmx")) {
        let (directory, name) = resolve::parent(root, &node.at)?;
        make(directory.as_fd(), &name, node)?;
    }
    for (at, target) in LINKS {
        symlink(root, Path::new(at), Path::new(target))?;
    }
    if Path::new("/proc/kcore").exists() {
        symlink(root, Path::new("/dev/core"), Path::new("/proc/kcore"))?;
    }
    // The host's multiplexer would make terminals in the host's devpts.
    match rustix::fs::unlinkat(&dev, "ptmx", AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, || "replace `/dev/ptmx`"),
    }
    symlink(root, Path::new("/dev/ptmx"), Path::new("pts/ptmx"))
}

/// In a user namespace mknod fails: binds the host's node.
fn make(directory: BorrowedFd<'_>, name: &Path, node: &Node) -> Result<()> {
    let step = || format!("make the device `{}`", node.at.display());
    let number = rustix::fs::makedev(node.major, node.minor);
    let mode = Mode::from_raw_mode(node.mode);
    // With the final mode from the start: a later chmod could follow a link that another process puts here, to the
    // host's files.
    let before = umask(Mode::empty());
    let made = rustix::fs::mknodat(directory, name, node.kind, mode, number);
    umask(before);
    match made {
        Ok(()) if weaken::is_off("device-link") => {
            rustix::fs::chmodat(directory, name, mode, AtFlags::empty()).failing(Kind::Mount, step)
        }
        Ok(()) => set_owner(directory, name, node).doing(step),
        Err(Errno::EXIST) => same(directory, name, node).doing(step),
        Err(Errno::PERM) if node.kind != FileType::Fifo => bind(directory, name, node).doing(step),
        Err(errno) => Err(errno).failing(Kind::Mount, step),
    }
}

/// Another process may have replaced the new node.
fn set_owner(directory: BorrowedFd<'_>, name: &Path, node: &Node) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made =
        rustix::fs::openat(directory, name, flags, Mode::empty()).failing(Kind::Mount, || "open what was made")?;
    let found = rustix::fs::fstat(&made).failing(Kind::Mount, || "look at what was made")?;
    if !is_node(&found, node) {
        return Err(Error::new(Kind::Mount, "another process has replaced it"));
    }
    own(made.as_fd(), "", node.owner)
}

fn is_node(found: &Stat, node: &Node) -> bool {
    let is_device = node.kind != FileType::Fifo;
    let number = rustix::fs::makedev(node.major, node.minor);
    FileType::from_raw_mode(found.st_mode) == node.kind && (!is_device || found.st_rdev == number)
}

/// An existing file must be the device itself.
fn same(directory: BorrowedFd<'_>, name: &Path, node: &Node) -> Result<()> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .failing(Kind::Mount, || "look at what is there")?;
    if !is_node(&found, node) && !weaken::is_off("device-check") {
        return Err(Error::new(Kind::Mount, "the root has something else of that name").hint("mount a tmpfs at `/dev`"));
    }
    Ok(())
}

fn bind(directory: BorrowedFd<'_>, name: &Path, node: &Node) -> Result<()> {
    // The host's device with the same path must have the requested numbers.
    let found =
        rustix::fs::stat(&node.at).failing(Kind::Mount, || format!("find the host's `{}`", node.at.display()))?;
    if !is_node(&found, node) {
        return Err(Error::new(Kind::Mount, format!("the host's `{}` is another device", node.at.display())));
    }
    let tree = clone_tree(CWD, &node.at)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(directory, name, flags | OFlags::WRONLY, Mode::from_raw_mode(0o644))
        .failing(Kind::Mount, || "make a place for the host's device")?;
    attach(&tree, place.as_fd())
}

/// In a user namespace mknod fails: binds the host's nodes onto empty files.
pub(super) fn defaults(root: BorrowedFd<'_>, owner: Ids) -> Result<()> {
    let dev = real_directory(root, Path::new("/dev"))?;
    let before = umask(Mode::empty()); // every user may open them
    let made = DEVICES.iter().try_for_each(|device| make_default(dev.as_fd(), device, owner));
    umask(before);
    made
}

fn make_default(dev: BorrowedFd<'_>, device: &Device, owner: Ids) -> Result<()> {
    let (name, number) = (device.name, rustix::fs::makedev(device.major, device.minor));
    match rustix::fs::mknodat(dev, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number) {
        Ok(()) => own(dev, name, owner),
        Err(Errno::PERM) => {
            let tree = clone_tree(CWD, &Path::new("/dev").join(name))?;
            // Accepts writes although read-only, but its mode and owner, the host's, cannot change.
            restrict(&tree, Attributes::DEVICES.read_only())?;
            attach(&tree, resolve::target(dev, Path::new(name), FileType::RegularFile)?.as_fd())
        }
        Err(errno) => Err(errno).failing(Kind::Mount, || format!("make the device `{name}`")),
    }
}
