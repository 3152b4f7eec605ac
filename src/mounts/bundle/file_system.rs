//! New file systems for the mounts of a config.json, and views of the cgroups.

use super::options::Options;
use super::plan::{Bundle, Mount};
use super::{copy_up, destination};
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::mounts::mount::{attach, clone_tree, restrict};
use crate::mounts::resolve;
use crate::mounts::write::{real_directory, symlink};
use crate::spec::root::Attributes;
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, XattrFlags, fsetxattr, fstatfs, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, open_tree,
};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// For these the new mount API equals mount(2).
const OWN: [&str; 5] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue"];

/// fsconfig(2).
const LONGEST_VALUE: usize = 255;

/// With `late` it stays writable for now.
pub(super) fn mount(root: BorrowedFd<'_>, mount: &Mount, late: bool) -> Result<OwnedFd> {
    let (target, mode) = match mount.kind.as_str() {
        // A symlink here would let the image redirect our writes to /proc (CVE-2019-19921, CVE-2023-28642).
        "proc" | "sysfs" if !crate::sys::weaken::is_off("true-proc") => (ordinary_directory(root, mount)?, None),
        _ => {
            let (target, new) = resolve::directory(root, &mount.at, 0o755)?;
            let mode =
                rustix::fs::fstat(&target).failing(Kind::Mount, || "read the mode of a mount point")?.st_mode & 0o7777;
            (target, (!new).then_some(mode))
        }
    };
    destination::check(root, mount, target.as_fd())?;
    let simple = OWN.contains(&mount.kind.as_str())
        && mount.options.data.iter().all(|each| each.len() <= LONGEST_VALUE && !each.contains('"')); // quotes are mount(2)'s
    let made = if simple { by_fsopen(mount, mode, late) } else { return by_mount(root, mount, &target) };
    let made = match made {
        // The kernel refuses a new sysfs without a private network namespace: use the host's, read-only.
        Err(error) if mount.kind == "sysfs" && error.errno() == Some(Errno::PERM.raw_os_error()) => {
            return host_sysfs(mount, &target);
        }
        other => other?,
    };
    if mount.options.copy_up {
        copy_up::copy(&target, &made).doing(|| "copy what the tmpfs covers")?;
        if mount.options.set & bits::RDONLY != 0 && !late {
            restrict(&made, Attributes(bits::RDONLY))?;
        }
    }
    attach(&made, target.as_fd())?;
    if mount.kind == "mqueue" && !mount.label.is_empty() {
        label(&made, &mount.label)?;
    }
    Ok(made)
}

/// The error is runc's.
fn ordinary_directory(root: BorrowedFd<'_>, mount: &Mount) -> Result<OwnedFd> {
    true_directory(root, &mount.at).map_err(|error| {
        if [Errno::NOTDIR, Errno::LOOP].iter().any(|each| error.errno() == Some(each.raw_os_error())) {
            return Error::new(
                Kind::Mount,
                format!("filesystem \"{}\" must be mounted on ordinary directory", mount.kind),
            );
        }
        error
    })
}

fn by_fsopen(mount: &Mount, mode: Option<u32>, late: bool) -> Result<OwnedFd> {
    let name = mount.kind.as_str();
    let step = || format!("make a `{name}` file system");
    let context = match &mount.context {
        Some(context) => context.try_clone().failing(Kind::Mount, step)?,
        None => fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Mount, step)?,
    };
    if !mount.source.as_os_str().is_empty() {
        // Only shown in /proc/mounts.
        fsconfig_set_string(&context, "source", mount.source.as_path()).failing(Kind::Mount, step)?;
    }
    for word in &mount.options.whole {
        if !matches!(*word, "silent" | "iversion") {
            fsconfig_set_flag(&context, *word).failing(Kind::Mount, || format!("set `{word}`"))?;
        }
    }
    // A tmpfs over an existing directory gets its mode, unless the caller sets one.
    if let (Some(mode), true) =
        (mode, name == "tmpfs" && !mount.options.data.iter().any(|each| each.starts_with("mode=")))
    {
        fsconfig_set_string(&context, "mode", format!("{mode:o}")).failing(Kind::Mount, step)?;
    }
    for option in mount.options.data.iter().flat_map(|each| each.split(',')).filter(|each| !each.is_empty()) {
        match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(&context, key, value),
            None => fsconfig_set_flag(&context, option),
        }
        .failing(Kind::Mount, || format!("set `{option}` of a `{name}` file system"))?;
    }
    if takes_context(mount) {
        fsconfig_set_string(&context, "context", mount.label.as_str())
            .failing(Kind::Mount, || "set the SELinux context")?;
    }
    let mut flags = mount.options.set;
    if late || mount.options.copy_up {
        flags &= !bits::RDONLY;
    }
    if flags & bits::RDONLY != 0 {
        // As mount(2) does: the file system itself is read-only too, whatever the mount's attribute becomes.
        fsconfig_set_flag(&context, "ro").failing(Kind::Mount, step)?;
    }
    fsconfig_create(&context).failing(Kind::Mount, step)?;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::from_bits_retain(flags as u32))
        .failing(Kind::Mount, step)?;
    // Another, perhaps hostile process opened this context: accept only a procfs.
    if mount.context.is_some() && fstatfs(&made).failing(Kind::Mount, step)?.f_type != PROC_SUPER_MAGIC {
        return Err(Error::new(Kind::Mount, "it is another file system").doing(step()));
    }
    Ok(made)
}

/// mount(2) needs a path: the descriptor's in the host's procfs, which is still visible.
fn by_mount(root: BorrowedFd<'_>, mount: &Mount, target: &OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", target.as_raw_fd());
    let mut data = mount.options.data.clone();
    if takes_context(mount) {
        data.push(format!("context=\"{}\"", mount.label));
    }
    let data = CString::new(data.join(",")).map_err(|_| Error::new(Kind::Spec, "an option holds a NUL"))?;
    let source = if mount.source.as_os_str().is_empty() { Path::new(&mount.kind) } else { &mount.source };
    rustix::mount::mount(source, path.as_str(), mount.kind.as_str(), mount.options.flags(), data.as_c_str())
        .failing(Kind::Mount, || format!("mount a `{}` file system", mount.kind))?;
    resolve::open(root, &mount.at)
}

/// Not if the kernel has already made and labelled the file system.
fn takes_context(mount: &Mount) -> bool {
    !mount.label.is_empty() && !matches!(mount.kind.as_str(), "proc" | "sysfs" | "mqueue")
}

/// The kernel made the mqueue with its IPC namespace, so a mount option comes too late.
fn label(made: &OwnedFd, label: &str) -> Result<()> {
    let step = || "set the SELinux label of an `mqueue` file system";
    let root = openat(made, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    root.and_then(|root| fsetxattr(root, "security.selinux", label.as_bytes(), XattrFlags::empty()))
        .failing(Kind::Mount, step)
}

/// Submounts are read-only too.
fn host_sysfs(mount: &Mount, target: &OwnedFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, "/sys", flags).failing(Kind::Mount, || "take the host's `/sys`")?;
    let wanted = bits::MountAttr { set: mount.options.set | bits::RDONLY, ..bits::MountAttr::default() };
    let below = !crate::sys::weaken::is_off("host-sysfs");
    bits::set_attributes(tree.as_fd(), c"", below, &wanted)
        .failing(Kind::Mount, || "make the host's `/sys` read-only")?;
    attach(&tree, target.as_fd())?;
    Ok(tree)
}

pub(super) fn is_cgroup(mount: &Mount) -> bool {
    mount.options.bind.is_none() && matches!(mount.kind.as_str(), "cgroup" | "cgroup2")
}

pub(super) fn options(plan: &Bundle, mount: &Mount) -> Options {
    let mut options = mount.options.clone();
    if is_cgroup(mount) && plan.groups_read_only && !crate::sys::weaken::is_off("groups-read-only") {
        options.set |= bits::RDONLY; // CVE-2023-25809
        options.clear &= !bits::RDONLY;
    }
    options
}

/// v2 as one tree, v1 as a directory for each hierarchy.
pub(super) fn cgroup(root: BorrowedFd<'_>, plan: &Bundle, mount: &Mount) -> Result<OwnedFd> {
    let (target, _) = resolve::directory(root, &mount.at, 0o755)?;
    destination::check(root, mount, target.as_fd())?;
    let options = options(plan, mount);
    let v1: Vec<_> = plan.groups.iter().filter(|(name, _)| !name.is_empty()).collect();
    let v2 = plan.groups.iter().find(|(name, _)| name.is_empty());
    if let (true, Some((_, path))) = (v1.is_empty() || mount.kind == "cgroup2", v2) {
        let tree = take_group(path, &options)?;
        attach(&tree, target.as_fd())?;
        return Ok(tree);
    }
    let attributes = Attributes(options.set & !bits::RDONLY);
    let top = crate::mounts::mount::labelled_tmpfs(1 << 20, 256, 0o755, plan.owner, attributes, &mount.label)?;
    attach(&top, target.as_fd())?;
    for (name, path, links) in shown_groups(&v1) {
        let place = resolve::directory(top.as_fd(), &Path::new("/").join(&name), 0o755)?.0;
        attach(&take_group(path, &options)?, place.as_fd())?;
        for link in links {
            symlink(top.as_fd(), &Path::new("/").join(link), Path::new(&name))?;
        }
    }
    if options.set & bits::RDONLY != 0 {
        restrict(&top, Attributes(bits::RDONLY))?;
    }
    Ok(top)
}

/// Like a new mount of the file system, the copy follows none of the host.
fn take_group(path: &Path, options: &Options) -> Result<OwnedFd> {
    let tree = clone_tree(CWD, path)?;
    let propagation = u64::from(MountPropagationFlags::PRIVATE.bits());
    let wanted = MountAttr { set: options.set, clear: options.clear, propagation, ..MountAttr::default() };
    set_attributes(tree.as_fd(), c"", false, &wanted)
        .failing(Kind::Mount, || "set the attributes of the mount of a cgroup")?;
    Ok(tree)
}

/// Name, shown cgroup, and the other controllers of the v1 hierarchy, which become links.
fn shown_groups<'a>(v1: &[&'a (String, PathBuf)]) -> Vec<(String, &'a Path, Vec<&'a str>)> {
    let mut shown: Vec<(String, &Path, Vec<&str>)> = Vec::new();
    for (controller, path) in v1 {
        let at = shown.iter().position(|(_, other, _)| *other == path.as_path()).unwrap_or_else(|| {
            shown.push((hierarchy_name(path).unwrap_or_else(|| controller.clone()), path, Vec::new()));
            shown.len() - 1
        });
        if shown[at].0 != *controller {
            shown[at].2.push(controller);
        }
    }
    shown
}

pub(super) fn cgroup_places(plan: &Bundle, mount: &Mount) -> Vec<(PathBuf, PathBuf)> {
    let v1: Vec<_> = plan.groups.iter().filter(|(name, _)| !name.is_empty()).collect();
    let v2 = plan.groups.iter().find(|(name, _)| name.is_empty());
    if let (true, Some((_, path))) = (v1.is_empty() || mount.kind == "cgroup2", v2) {
        return vec![(mount.at.clone(), path.clone())];
    }
    shown_groups(&v1).into_iter().map(|(name, path, _)| (mount.at.join(name), path.to_path_buf())).collect()
}

/// The component below /sys/fs/cgroup.
fn hierarchy_name(path: &Path) -> Option<String> {
    let below = path.strip_prefix("/sys/fs/cgroup").ok()?;
    below.components().next().map(|name| name.as_os_str().to_string_lossy().into_owned())
}

fn true_directory(root: BorrowedFd<'_>, at: &Path) -> Result<OwnedFd> {
    if at.parent().is_none() {
        return Err(Error::new(Kind::Mount, "the root itself cannot be mounted over"));
    }
    real_directory(root, at)
}
