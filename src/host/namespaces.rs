//! User namespaces, and the mounts in one.

use super::{Check, State, setting};
use crate::error::{Context, Error, Kind, Result};
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
use rustix::process::{WaitId, WaitIdOptions, fchdir, getegid, geteuid, getuid, waitid};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most likely cause of a refusal. Read only after one.
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

/// `Seccomp: 2` (proc_pid_status(5)).
fn is_filtered() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|text| text.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")))
}

pub(super) fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    // With AppArmor's restriction the namespace has no privileges, which a mount shows.
    let tried = in_own_namespaces(|| mount(c"none", c"/", c"tmpfs", MountFlags::empty(), None));
    let most = setting("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    match tried {
        Ok(()) => Check::good(NAME, format!("allowed, at most {most} for each user")),
        Err(errno) => Check::bad(NAME, State::Missing, format!("refused: {errno}"), user_namespace_advice()),
    }
}

/// As an ordinary user's sandbox makes it for a copy-on-write workspace: in memory.
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

/// Whether an ordinary user's overlay accepts `layer` and `other` of `directory` as layers. Only the kernel's clear
/// refusal counts: the start reports any other error.
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

/// As root of both namespaces. Their mounts are slaves, which do not propagate back (mount_namespaces(7)).
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

fn stage() -> Result<(), Errno> {
    mount(c"none", c"/tmp", c"tmpfs", MountFlags::empty(), None)?;
    [c"/tmp/lower", c"/tmp/upper", c"/tmp/work", c"/tmp/merged"].iter().try_for_each(|path| mkdir(*path, Mode::RWXU))
}

/// With them, root's sandboxes see files as theirs without a change of the owner.
pub(super) fn id_mapped_mounts() -> Check {
    const NAME: &str = "idmapped mounts";
    if !geteuid().is_root() {
        return Check::good(NAME, "not needed: only root's sandboxes use them");
    }
    // The file systems of the default root's folders.
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

/// Whether root's sandboxes can idmap its mount.
pub(crate) fn can_be_mapped(place: BorrowedFd<'_>) -> bool {
    map(place).is_ok()
}

/// The detached, idmapped copy ends with its descriptor.
fn map(place: BorrowedFd<'_>) -> Result<(), Errno> {
    let (gate, hold) = pipe_with(PipeFlags::CLOEXEC)?;
    let (pid, child) = match clone_process(libc::CLONE_NEWUSER as u64, None)? {
        Side::Child => {
            drop(hold);
            // Ends when the parent closes the pipe.
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

/// The caller may have several threads: `attempt` must not allocate or lock.
fn in_child(flags: libc::c_int, attempt: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let child = match clone_process(flags as u64, None)? {
        Side::Child => exit(attempt().err().map_or(0, Errno::raw_os_error)),
        Side::Parent(_, child) => child,
    };
    let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)?;
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        Some(number) => Err(Errno::from_raw_os_error(number)),
        // Killed: by a filter or for lack of memory.
        None => Err(Errno::PERM),
    }
}

pub(super) fn subordinate_ids() -> Check {
    const NAME: &str = "subordinate ids";
    let lines = |path: &str| -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    let (users, groups) = (lines("/etc/subuid"), lines("/etc/subgid"));
    if geteuid().is_root() {
        let given = users.len().max(groups.len());
        return Check::good(NAME, format!("own ranges from 0x70000000; {given} given to accounts are left alone"));
    }
    let id = getuid().as_raw().to_string();
    let name = nix::unistd::User::from_uid(getuid().as_raw().into()).ok().flatten().map(|user| user.name);
    let ours = |line: &&String| {
        let owner = line.split(':').next().unwrap_or_default();
        owner == id || Some(owner) == name.as_deref()
    };
    match (users.iter().find(ours), groups.iter().find(ours)) {
        (Some(users), Some(_)) => Check::good(NAME, format!("{users} (a sandbox uses one id, your own)")),
        _ => Check::good(NAME, "none needed: a sandbox uses one id, your own"),
    }
}

/// This user's first range in `file`: the first id and the number of ids (subuid(5), subgid(5)).
pub(crate) fn subordinate_range(file: &str) -> Result<(u32, u32)> {
    let step = || format!("read `{file}`");
    let text = std::fs::read_to_string(file).failing(Kind::UserNamespace, step)?;
    let uid = rustix::process::getuid().as_raw();
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, start, count] = fields.as_slice() else { continue };
        let ours = user.as_deref() == Some(*name) || name.parse() == Ok(uid);
        if let (true, Ok(start), Ok(count)) = (ours, start.parse::<u32>(), count.parse::<u32>()) {
            return Ok((start, count));
        }
    }
    Err(Error::new(Kind::UserNamespace, "this user has no range there")
        .doing(step())
        .hint("add one, for example with `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`, and install the package uidmap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_finds_comes_back() {
        assert_eq!(in_child(0, || Ok(())), Ok(()));
        assert_eq!(in_child(0, || Err(Errno::NODEV)), Err(Errno::NODEV));
    }
}
