//! User namespaces, and what can be done with mounts in one.

use super::trial::in_child;
use super::{Check, State, setting};
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::mount::{IDMAP, MountAttr, set_attributes};
use crate::sys::weaken;
use rustix::fs::{Mode, OFlags, XattrFlags, mkdir, open, setxattr};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsopen, mount,
    open_tree,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, fchdir, getegid, geteuid, waitid};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The switch that most likely stands in the way of user namespaces, looked up only when something failed.
pub(crate) fn user_namespace_advice() -> String {
    if is_filtered() {
        return "a sandbox or container around us refuses new namespaces: run brig outside of it, or start it without a seccomp filter".into();
    }
    let reads = |path: &str, value: &str| setting(path).is_some_and(|text| text == value);
    if reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts user namespaces here: set sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give brig an AppArmor profile with `userns,`".into()
    } else if reads("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "set sysctl kernel.unprivileged_userns_clone=1".into()
    } else if reads("/proc/sys/user/max_user_namespaces", "0") {
        "set sysctl user.max_user_namespaces=15000".into()
    } else {
        "user namespaces must be allowed: a kernel with CONFIG_USER_NS, no seccomp filter or LSM in the way (`brig doctor` tells)".into()
    }
}

/// Whether a system-call filter is in force around us (`Seccomp: 2`, proc_pid_status(5)).
fn is_filtered() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|text| text.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")))
}

pub(super) fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    // With AppArmor's switch on, the namespace is made but nothing may be done in it: a mount tells.
    let tried = in_own_namespaces(|| mount(c"none", c"/", c"tmpfs", MountFlags::empty(), None));
    let most = setting("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    match tried {
        Ok(()) => Check::good(NAME, format!("allowed, at most {most} for each user")),
        Err(errno) => Check::bad(NAME, State::Missing, format!("refused: {errno}"), user_namespace_advice()),
    }
}

/// What a copy-on-write workspace needs, tried as an ordinary user's sandbox has it: all in memory, in a user namespace.
pub(super) fn overlay() -> Check {
    const NAME: &str = "overlay";
    let overlay = in_own_namespaces(|| {
        stage()?;
        let options = c"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr";
        mount(c"overlay", c"/tmp/merged", c"overlay", MountFlags::empty(), Some(options))
    });
    if let Err(errno) = overlay {
        let remedy = "load the module (`modprobe overlay`), on a kernel of 5.11 or newer";
        return Check::bad(NAME, State::Missing, format!("not in user namespaces: {errno}"), remedy);
    }
    if geteuid().is_root() {
        return Check::good(NAME, "in user namespaces too");
    }
    let attributes = in_own_namespaces(|| {
        stage()?;
        setxattr(c"/tmp/upper", c"user.overlay.opaque", b"y", XattrFlags::empty())
    });
    match attributes {
        Ok(()) => Check::good(NAME, "in user namespaces, with user attributes on tmpfs"),
        Err(errno) => Check::bad(
            NAME,
            State::Weaker,
            format!("tmpfs has no user attributes, so a folder of the workspace cannot be replaced: {errno}"),
            "run a kernel of 6.6 or newer",
        ),
    }
}

/// Whether the overlay of an ordinary user takes the directories `layer` and `other` of `directory` as layers, on a file system of this kind. Where it is
/// not known, it is tried, and only the kernel's plain no to such layers is a no: what else goes wrong is found out, and said, at the start.
pub(crate) fn overlays_take(magic: i64, directory: &Path, layer: &Path, other: &Path) -> bool {
    if weaken::is_off("layers-in-place") {
        return false;
    }
    if super::kernel::is_plain(magic) {
        return true;
    }
    let layers = [layer.as_os_str().as_bytes(), b":", other.as_os_str().as_bytes()].concat();
    let place = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let (Ok(place), Ok(layers)) = (place, CString::new(layers)) else { return true };
    let tried = in_own_namespaces(|| {
        fchdir(&place)?;
        let context = fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, c"lowerdir", layers.as_c_str())?;
        fsconfig_set_flag(&context, c"userxattr")?;
        fsconfig_create(&context)
    });
    tried != Err(Errno::INVAL)
}

/// Tries something as root of an own user namespace, in an own mount namespace. What is mounted there does not come back: mounts of a less
/// privileged namespace are slaves (mount_namespaces(7)).
fn in_own_namespaces(attempt: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let map = |id: u32| format!("0 {id} 1\n");
    let (uid_map, gid_map) = (map(geteuid().as_raw()), map(getegid().as_raw()));
    in_child(libc::CLONE_NEWUSER | libc::CLONE_NEWNS, || {
        let write = |path: &CStr, text: &[u8]| {
            let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(file, text).map(|_| ())
        };
        write(c"/proc/self/setgroups", b"deny")?;
        write(c"/proc/self/uid_map", uid_map.as_bytes())?;
        write(c"/proc/self/gid_map", gid_map.as_bytes())?;
        attempt()
    })
}

/// A tmpfs over the child's own /tmp with four folders.
fn stage() -> Result<(), Errno> {
    mount(c"none", c"/tmp", c"tmpfs", MountFlags::empty(), None)?;
    [c"/tmp/lower", c"/tmp/upper", c"/tmp/work", c"/tmp/merged"].iter().try_for_each(|path| mkdir(*path, Mode::RWXU))
}

/// How root's sandboxes see files as theirs without changing an owner.
pub(super) fn id_mapped_mounts() -> Check {
    const NAME: &str = "idmapped mounts";
    if !geteuid().is_root() {
        return Check::good(NAME, "not needed: only root's sandboxes use them");
    }
    // Where the folders of the default root are from.
    let map = |path: &str| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).and_then(|open| map(open.as_fd()));
    match ["/usr", "/etc"].into_iter().find_map(|path| Some((path, map(path).err()?))) {
        None => Check::good(NAME, "on the file systems of /usr and /etc"),
        Some((path, errno)) => Check::bad(
            NAME,
            State::Missing,
            format!("not on the file system of {path}: {errno}"),
            "use ext4, xfs or btrfs (tmpfs from kernel 6.3) for what sandboxes are shown",
        ),
    }
}

/// Whether root's sandboxes can be shown what is on the mount of `place`.
pub(crate) fn can_be_mapped(place: BorrowedFd<'_>) -> bool {
    map(place).is_ok()
}

/// Makes a detached, mapped copy of the mount of a folder, which goes with its descriptor.
fn map(place: BorrowedFd<'_>) -> Result<(), Errno> {
    let (gate, hold) = pipe_with(PipeFlags::CLOEXEC)?;
    let (pid, child) = match clone_process(libc::CLONE_NEWUSER as u64, None)? {
        Side::Child => {
            drop(hold);
            // Ends when the parent lets go of the pipe.
            let _ = rustix::io::read(&gate, &mut [0_u8; 1]);
            exit(0)
        }
        Side::Parent(pid, child) => (pid, child),
    };
    let mapped = (|| {
        for name in ["uid_map", "gid_map"] {
            let written = std::fs::write(format!("/proc/{pid}/{name}"), "0 100000 1\n");
            written.map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))?;
        }
        let namespace = open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(place, "", flags)?;
        let userns = namespace.as_raw_fd() as u64;
        set_attributes(tree.as_fd(), c"", false, &MountAttr { set: IDMAP, userns, ..MountAttr::default() })
    })();
    drop(hold);
    waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)?;
    mapped
}
