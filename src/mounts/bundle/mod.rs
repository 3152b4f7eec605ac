//! The root file system of a config.json. Order: [`build`], hooks, [`seal`], [`enter`](Bundle::enter). Every step works
//! on descriptors of the root, since the image controls its paths.

mod capped;
mod copy_up;
mod destination;
mod file_system;
pub(crate) mod options;
mod plan;
pub(crate) mod shown;

pub(crate) use capped::{Backing, Cap, Capped};
pub(crate) use plan::{Bundle, Entry, Mount};

use super::cover::{Covers, mask, read_only};
use super::mount::{attach, restrict};
use super::write::real_directory;
use super::{Built, device, pivot, resolve};
use crate::error::{Context, Kind, Result, Step as _};
use crate::spec::root::{Attributes, DEVICES};
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use crate::sys::weaken;
use options::{Options, Reach};
use plan::{change, change_below, propagate};
use rustix::fs::{CWD, FileType};
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(super) fn build(plan: &Bundle) -> Result<Built> {
    let built =
        |root, scratch, late| Built { root, scratch, volumes: Vec::new(), secrets: None, is_entered: false, late };
    if !plan.own_mounts {
        return Ok(built(resolve::host_directory(&plan.root)?, None, Vec::new()));
    }
    let (root, scratch) = stand_alone(plan)?;
    let mut late = Vec::new();
    for mount in &plan.mounts {
        if let Some(mounted) = place(root.as_fd(), plan, mount).doing(|| format!("mount `{}`", mount.at.display()))? {
            late.push(mounted);
        }
    }
    // A /dev of the caller may be the host's: leave it unchanged.
    let borrowed = plan.mounts.iter().any(|mount| mount.at == Path::new("/dev") && mount.options.bind.is_some());
    if !borrowed {
        device::populate(root.as_fd(), &plan.devices, plan.owner)?;
    }
    Ok(built(root, scratch, late))
}

/// CRIU makes none. The caller leaves the mount namespace afterwards.
pub(crate) fn make_mount_points(plan: &Bundle) -> Result<()> {
    build(plan).map(drop)
}

/// Sets the attributes of the host's mounts again, in the entered mount namespace of a restored container. CRIU loses
/// them for a file system's second external mount: a read-only volume would be writable.
pub(crate) fn restore_attributes(plan: &Bundle) -> Result<()> {
    if weaken::is_off("restored-attributes") {
        return Ok(());
    }
    let root = resolve::host_directory(Path::new("/"))?;
    for mount in plan.mounts.iter().filter(|mount| mount.options.remount || is_of_host(mount)) {
        let places = if file_system::is_cgroup(mount) {
            file_system::cgroup_places(plan, mount).into_iter().map(|(at, _)| at).collect()
        } else {
            vec![mount.at.clone()]
        };
        let options = file_system::options(plan, mount);
        for at in places {
            let changed = resolve::open(root.as_fd(), &at)
                .and_then(|found| change(found.as_fd(), &options).and_then(|()| change_below(found.as_fd(), &options)));
            match changed {
                // The container has unmounted it.
                Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EINVAL | libc::ENOTDIR)) => {}
                other => other.doing(|| format!("restore the attributes of the mount `{}`", at.display()))?,
            }
        }
    }
    Ok(())
}

fn is_of_host(mount: &Mount) -> bool {
    !mount.options.remount && (mount.options.bind.is_some() || file_system::is_cgroup(mount))
}

/// CRIU needs a mount point with a visible parent.
pub(crate) fn root_for_criu(root: &Path, at: &Path) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, root, flags).failing(Kind::Mount, || format!("take the root `{}`", root.display()))?;
    move_mount(&tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || format!("mount the root at `{}`", at.display()))
}

/// The later chdir(2) reports a failure.
pub(super) fn make_directory(root: BorrowedFd<'_>, path: &Path) {
    let _ = resolve::directory(root, path, 0o755);
}

/// Masks, read-only paths, and mounts that had to be writable for the hooks.
pub(super) fn seal(plan: &Bundle, root: &OwnedFd, late: &[OwnedFd]) -> Result<()> {
    if !plan.own_mounts {
        return Ok(());
    }
    let only = Attributes(bits::RDONLY);
    for mounted in late {
        restrict(mounted, only)?;
    }
    for path in &plan.read_only_paths {
        read_only(root.as_fd(), path)?;
    }
    let mut covers = Covers::default();
    for path in &plan.masked {
        mask(root.as_fd(), path, (plan.owner, &plan.label), &mut covers)?;
    }
    if plan.read_only && !weaken::is_off("read-only-root") {
        restrict(root, only).doing(|| "make the root read-only")?;
    }
    Ok(())
}

impl Bundle {
    /// Destination and source, in order. Includes devices, which are mounted only in a user namespace.
    pub(crate) fn host_mounts(&self) -> Vec<(PathBuf, PathBuf)> {
        let mut shown = Vec::new();
        for mount in self.mounts.iter().filter(|mount| is_of_host(mount)) {
            if mount.options.bind.is_some() {
                shown.push((mount.at.clone(), mount.source.clone()));
            } else {
                shown.extend(file_system::cgroup_places(self, mount));
            }
        }
        let devices = DEVICES.iter().map(|device| Path::new("/dev").join(device.name));
        let devices = devices.chain(self.devices.iter().map(|device| device.at.clone()));
        shown.extend(devices.map(|at| (at.clone(), at)));
        shown
    }

    pub(super) fn enter(&self, root: BorrowedFd<'_>) -> Result<()> {
        if !self.own_mounts {
            if weaken::is_off("hosts-propagation") {
                let flags = MountPropagationFlags::UNBINDABLE | MountPropagationFlags::REC;
                mount_change("/", flags).failing(Kind::Mount, || "set the propagation of the root")?;
            }
            return pivot::chroot(root);
        }
        if self.new_mounts {
            pivot::leave_chroot()?;
        }
        match self.entry {
            Entry::Pivot => pivot::enter(root)?,
            Entry::Move => {
                let shared = |flags: MountPropagationFlags| flags.contains(MountPropagationFlags::SHARED);
                pivot::move_over(root, self.propagation.is_some_and(shared))?;
            }
        }
        // pivot_root refuses shared and unbindable mounts, so this comes last.
        match self.propagation {
            Some(flags) => mount_change("/", flags).failing(Kind::Mount, || "set the propagation of the root"),
            None => Ok(()),
        }
    }
}

/// On a new or an existing regular file, not through a link of the image (CVE-2025-52565, CVE-2026-88264).
pub(super) fn show_console(root: BorrowedFd<'_>, terminal: BorrowedFd<'_>) -> Result<()> {
    use rustix::fs::{Mode, OFlags, openat};
    let step = || "show the terminal at `/dev/console`";
    let dev = real_directory(root, Path::new("/dev"))?;
    let flags =
        OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = if weaken::is_off("console-link") { flags - OFlags::NOFOLLOW } else { flags };
    let place = openat(&dev, "console", flags, Mode::from_raw_mode(0o620)).failing(Kind::Mount, step)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(terminal, "", flags).failing(Kind::Mount, step)?;
    attach(&tree, place.as_fd()).doing(step)
}

/// Only a mount can become the root: mounts the bundle's directory, or its capped view, over itself. Its mount events
/// do not reach the host. Returns also the root directory of the capped disk.
fn stand_alone(plan: &Bundle) -> Result<(OwnedFd, Option<OwnedFd>)> {
    let rec = MountPropagationFlags::REC;
    let asked = plan.propagation.unwrap_or(MountPropagationFlags::DOWNSTREAM | rec);
    let shared = asked.contains(MountPropagationFlags::SHARED);
    // Mounts that the caller wants shared stay in the host's peer groups. Otherwise nothing may propagate to the host.
    let first = if shared || asked.contains(MountPropagationFlags::UNBINDABLE) {
        MountPropagationFlags::DOWNSTREAM | rec
    } else {
        asked | rec
    };
    if !shared {
        mount_change("/", first).failing(Kind::Mount, || "keep the container's mounts from the host")?;
    }
    // As newer releases of runc (1.1.15): a copy of a slave is a slave, too. But what asks to be one must be one.
    let root_follows = plan.propagation.is_some_and(|flags| flags.contains(MountPropagationFlags::DOWNSTREAM));
    if shared || !(root_follows || plan.mounts.iter().any(follows)) {
        private_parent(&plan.root)?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let (tree, scratch) = match plan.cap.take() {
        Some(Capped::ToMake(cap)) => capped::cover(&plan.root, cap).map(|(tree, scratch)| (tree, Some(scratch)))?,
        Some(Capped::Made(tree)) => (tree, None),
        None => {
            let tree = open_tree(CWD, &plan.root, flags)
                .failing(Kind::Mount, || format!("take the root `{}`", plan.root.display()))?;
            (tree, None)
        }
    };
    move_mount(&tree, "", CWD, &plan.root, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || format!("mount the root `{}` on itself", plan.root.display()))?;
    Ok((tree, scratch))
}

/// Whether it gets mounts that the host makes below its source.
fn follows(mount: &Mount) -> bool {
    mount.options.propagation.iter().any(|flags| flags.contains(MountPropagationFlags::DOWNSTREAM))
}

/// The nearest parent directory of `path` that is a mount point.
fn private_parent(path: &Path) -> Result<()> {
    for above in path.ancestors() {
        match mount_change(above, MountPropagationFlags::PRIVATE) {
            Err(rustix::io::Errno::INVAL) => {}
            other => return other.failing(Kind::Mount, || format!("make the mount `{}` private", above.display())),
        }
    }
    Ok(())
}

/// Returns a mount that becomes read-only at the end.
fn place(root: BorrowedFd<'_>, plan: &Bundle, mount: &Mount) -> Result<Option<OwnedFd>> {
    let options = &mount.options;
    if options.remount {
        let target = resolve::open(root, &mount.at)?;
        destination::check(root, mount, target.as_fd())?;
        change(target.as_fd(), options)?;
        return propagate(target.as_fd(), options).map(|()| None);
    }
    let late = options.set & bits::RDONLY != 0
        && options.bind.is_none()
        && (mount.kind == "tmpfs" || mount.at == Path::new("/dev"));
    let made = if let Some(reach) = options.bind {
        bind(root, mount, reach)?
    } else if file_system::is_cgroup(mount) {
        file_system::cgroup(root, plan, mount)?
    } else {
        file_system::mount(root, mount, late)?
    };
    change_below(made.as_fd(), options)?;
    propagate(made.as_fd(), options)?;
    Ok(late.then_some(made))
}

fn take(source: &Path, reach: Reach, userns: Option<&OwnedFd>, options: &Options) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if reach == Reach::Below {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree =
        open_tree(CWD, source, flags).failing(Kind::Mount, || format!("take the tree `{}`", source.display()))?;
    if let Some(userns) = userns {
        let wanted = MountAttr { set: bits::IDMAP, userns: userns.as_raw_fd() as u64, ..MountAttr::default() };
        set_attributes(tree.as_fd(), c"", options.idmap == Some(Reach::Below), &wanted)
            .failing(Kind::Mount, || "show the owners by an id map")
            .hint(|| "the file system of the source must know idmapped mounts (ext4, xfs, btrfs, tmpfs from 6.3), and it cannot be mapped twice")?;
    }
    Ok(tree)
}

/// Copies bind mounts with the current privileges. Unless the container's mounts propagate, the copies leave the host's
/// peer groups, and follow the host only on request.
pub(crate) fn take_sources(plan: &mut Bundle) -> Result<()> {
    let shared = plan.propagation.is_some_and(|flags| flags.contains(MountPropagationFlags::SHARED));
    for mount in &mut plan.mounts {
        let Some(reach) = mount.options.bind.filter(|_| !mount.options.remount) else { continue };
        let step = || format!("mount `{}`", mount.at.display());
        let tree = take(&mount.source, reach, mount.userns.as_ref(), &mount.options).doing(step)?;
        if !shared {
            let kind = if follows(mount) { MountPropagationFlags::DOWNSTREAM } else { MountPropagationFlags::PRIVATE };
            let wanted = MountAttr { propagation: u64::from(kind.bits()), ..MountAttr::default() };
            set_attributes(tree.as_fd(), c"", true, &wanted)
                .failing(Kind::Mount, || "keep the container's mounts from the host")
                .doing(step)?;
        }
        mount.tree = Some(tree);
    }
    Ok(())
}

fn bind(root: BorrowedFd<'_>, mount: &Mount, reach: Reach) -> Result<OwnedFd> {
    let tree = match &mount.tree {
        Some(tree) => tree.try_clone().failing(Kind::Mount, || "keep a tree open")?,
        None => take(&mount.source, reach, mount.userns.as_ref(), &mount.options)?,
    };
    let kind = resolve::file_type(&tree)?;
    destination::check_kind(mount, tree.as_fd())?;
    change(tree.as_fd(), &mount.options)?;
    let target =
        resolve::target(root, &mount.at, if kind == FileType::Directory { kind } else { FileType::RegularFile })?;
    destination::check(root, mount, target.as_fd())?;
    if (kind == FileType::Directory) != (resolve::file_type(&target)? == FileType::Directory) {
        // mount(2)'s error; move_mount(2) only reports an invalid argument.
        return Err(rustix::io::Errno::NOTDIR).failing(Kind::Mount, || {
            format!(
                "mount `{}`, which is {}",
                mount.source.display(),
                if kind == FileType::Directory { "a directory" } else { "a file" }
            )
        });
    }
    attach(&tree, target.as_fd())?;
    Ok(tree)
}
