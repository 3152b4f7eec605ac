//! User namespaces and their maps.

use super::idmap::{IdMap, Maps, lines};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::host::user_namespace_advice;
use crate::sys::clone::{Side, clone_process, exit, wait};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::CapabilitySet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Mapped {
    pub userns: OwnedFd,
    /// Exits by itself. Outside of the sandboxes' PID namespaces: no process there can reach it.
    pub helper: Helper,
}

/// Other children may have a copy, so closing it alone would not wake the child.
#[derive(Debug)]
pub(super) struct Channel(pub(super) OwnedFd);

impl Drop for Channel {
    fn drop(&mut self) {
        // A child that has exited needs no message.
        let _ = send(&self.0, b"E", SendFlags::NOSIGNAL);
    }
}

/// A child that is ending. Its drop reaps the child.
#[derive(Debug)]
pub(crate) struct Helper {
    pidfd: OwnedFd,
    /// Set if the child must be ended first.
    channel: Option<Channel>,
}

impl Helper {
    pub(super) fn new(pidfd: OwnedFd) -> Helper {
        Helper { pidfd, channel: None }
    }

    pub(super) fn stays(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.channel.take());
        // The child ends by itself, or at the drop of its channel.
        let _ = wait(self.pidfd.as_fd());
    }
}

/// A child keeps the namespace open until this process has a descriptor.
pub(crate) fn mapped(maps: &Maps) -> Result<Mapped> {
    mapped_above(maps, 0)
}

/// Allows `nested` more namespaces inside, for a runtime that makes sandboxes in it.
pub(crate) fn mapped_above(maps: &Maps, nested: u32) -> Result<Mapped> {
    let step = || "make a user namespace";
    let (gate, hold) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::UserNamespace, step)?;
    let (pid, pidfd) = match clone_process(libc::CLONE_NEWUSER as u64, None)
        .failing(Kind::UserNamespace, step)
        .hint(user_namespace_advice)?
    {
        Side::Child => {
            drop(hold);
            limit_nested(nested);
            // Ends when the parent closes the pipe or exits.
            let _ = rustix::io::read(&gate, &mut [0_u8; 1]);
            exit(0)
        }
        Side::Parent(pid, pidfd) => (pid, pidfd),
    };
    let opened = open_and_map(pid, maps);
    drop(hold);
    let helper = Helper::new(pidfd);
    opened.map(|userns| Mapped { userns, helper })
}

pub(super) fn open_and_map(pid: i32, maps: &Maps) -> Result<OwnedFd> {
    write_maps(pid, maps)?;
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::UserNamespace, || "open a user namespace")
}

/// An ordinary user may write only a line for the own id, and for groups only after `setgroups` is denied. Other maps
/// need the set-uid programs newuidmap(1) and newgidmap(1), which check /etc/subuid and /etc/subgid.
pub(crate) fn write_maps(pid: i32, maps: &Maps) -> Result<()> {
    let privileged = may_map_any();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Groups first: our own group map needs the denial of setgroups before.
    for (name, helper, map, own) in [("gid_map", "newgidmap", &maps.gid, gid), ("uid_map", "newuidmap", &maps.uid, uid)]
    {
        let alone = matches!(map.as_slice(), [line] if line.size == 1 && line.outside == own);
        if !privileged && !alone {
            by_helper(helper, pid, map)?;
            continue;
        }
        if !privileged && name == "gid_map" {
            fs::write(format!("/proc/{pid}/setgroups"), "deny")
                .failing(Kind::UserNamespace, || "deny setgroups in a user namespace")?;
        }
        fs::write(format!("/proc/{pid}/{name}"), lines(map))
            .failing(Kind::UserNamespace, || format!("write `{name}` of a user namespace"))
            .hint(user_namespace_advice)?;
    }
    Ok(())
}

fn may_map_any() -> bool {
    let wanted = CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|own| own.effective.contains(wanted))
}

fn by_helper(program: &str, pid: i32, map: &[IdMap]) -> Result<()> {
    let step = || format!("map the ids of a user namespace by `{program}`");
    let numbers = map.iter().flat_map(|line| [line.inside, line.outside, line.size]);
    let done = std::process::Command::new(program)
        .arg(pid.to_string())
        .args(numbers.map(|number| number.to_string()))
        .stdin(std::process::Stdio::null())
        .output();
    let hint = "install the package uidmap and give this user a range in /etc/subuid and /etc/subgid, or map your own id alone";
    let done = match done {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            // Not the system's text: callers would take it for a missing program of the container.
            return Err(Error::new(Kind::UserNamespace, format!("the program `{program}` is not installed"))
                .doing(step())
                .hint(hint));
        }
        other => other.failing(Kind::UserNamespace, step)?,
    };
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr).trim().escape_debug().to_string();
    Err(Error::new(Kind::UserNamespace, words).doing(step()).hint(hint))
}

/// The caller is inside a new user namespace, and needs no privilege once `setgroups` is denied (user_namespaces(7),
/// "Defining user and group ID mappings").
pub(crate) fn write_own_map(maps: &Maps) -> Result<()> {
    fs::write("/proc/self/setgroups", "deny").failing(Kind::UserNamespace, || "deny setgroups in a user namespace")?;
    for (name, map) in [("gid_map", &maps.gid), ("uid_map", &maps.uid)] {
        fs::write(format!("/proc/self/{name}"), lines(map))
            .failing(Kind::UserNamespace, || format!("write our own `{name}`"))
            .hint(user_namespace_advice)?;
    }
    forbid_nested();
    Ok(())
}

/// A second fence after seccomp: no process inside gains capabilities. It is missing where /proc/sys is read-only
/// (inside another container). The limit is that of the writer's user namespace (namespaces(7), "The /proc/sys/user
/// directory").
pub(crate) fn forbid_nested() {
    limit_nested(0);
}

fn limit_nested(most: u32) {
    if !crate::sys::weaken::is_off("nested-userns") {
        let _ = fs::write("/proc/sys/user/max_user_namespaces", most.to_string());
    }
}

/// Whether root here is the machine's root. ioctl_ns(2) cannot tell; the inode is fixed in the kernel
/// (`PROC_USER_INIT_INO`, include/uapi/linux/nsfs.h).
pub(crate) fn is_initial() -> bool {
    const INITIAL: u64 = 0xEFFF_FFFD;
    rustix::fs::stat("/proc/self/ns/user").is_ok_and(|status| status.st_ino == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_namespace_is_not_ours_and_leaves_no_process() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("a_mapped_namespace_is_not_ours_and_leaves_no_process: needs root");
            return;
        }
        let map = vec![IdMap { inside: 0, outside: 0x7FFC_0000, size: 65_536 }];
        let made = mapped(&Maps { uid: map.clone(), gid: map }).unwrap().userns;
        let inode = |status: rustix::fs::Stat| status.st_ino;
        assert_ne!(inode(rustix::fs::fstat(&made).unwrap()), inode(rustix::fs::stat("/proc/self/ns/user").unwrap()));
    }
}
