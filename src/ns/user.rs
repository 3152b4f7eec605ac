//! User namespaces as things to hold: made, mapped, and named by a descriptor.

use super::idmap::{Maps, lines};
use crate::error::{Context, Kind, Result, Step};
use crate::host::user_namespace_advice;
use crate::sys::clone::{Side, clone_process, exit};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// A user namespace, and the child that lent it its first life.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Names the namespace.
    pub userns: OwnedFd,
    /// Ends by itself; wait for it before anything runs in the namespace.
    pub helper: Helper,
}

/// A child that is ending; dropping this waits for it.
#[derive(Debug)]
pub(crate) struct Helper(OwnedFd);

impl Drop for Helper {
    fn drop(&mut self) {
        // It reads from a pipe that nobody has any more, so it ends, and there is nothing to hear from it.
        let _ = waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Makes a user namespace with `maps`. A child lends it a life just long enough to be opened; the caller
/// needs CAP_SETUID and CAP_SETGID in its own namespace for maps of more than its own id.
pub(crate) fn mapped(maps: &Maps) -> Result<Mapped> {
    let step = || "make a user namespace";
    let (gate, hold) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::UserNamespace, step)?;
    let (pid, pidfd) = match clone_process(libc::CLONE_NEWUSER as u64, None)
        .failing(Kind::UserNamespace, step)
        .hint(user_namespace_advice)?
    {
        Side::Child => {
            drop(hold);
            forbid_nested();
            // Ends when the parent lets go of the pipe, or is gone.
            let _ = rustix::io::read(&gate, &mut [0_u8; 1]);
            exit(0)
        }
        Side::Parent(pid, pidfd) => (pid, pidfd),
    };
    let opened = write_maps(pid, maps).and_then(|()| {
        let path = format!("/proc/{pid}/ns/user");
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::UserNamespace, step)
    });
    drop(hold);
    let helper = Helper(pidfd);
    opened.map(|userns| Mapped { userns, helper })
}

/// Writes the maps of the new user namespace that process `pid` is in.
pub(crate) fn write_maps(pid: i32, maps: &Maps) -> Result<()> {
    for (name, map) in [("gid_map", &maps.gid), ("uid_map", &maps.uid)] {
        fs::write(format!("/proc/{pid}/{name}"), lines(map))
            .failing(Kind::UserNamespace, || format!("write `{name}` of a user namespace"))
            .hint(user_namespace_advice)?;
    }
    Ok(())
}

/// Maps our own single id, from inside a user namespace that we were just born into. Needs no privilege: the kernel allows the
/// line that names the writer's own id, once `setgroups` is denied (user_namespaces(7), "Defining user and group ID mappings").
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

/// No user namespace may be made in the one that we are in, so that nobody in it becomes a root with capabilities. A second
/// fence: seccomp refuses the calls already. Where /proc/sys is read-only (inside another container) that one stands alone.
/// namespaces(7), "The /proc/sys/user directory": the limit is that of the writer's own user namespace.
fn forbid_nested() {
    if !crate::sys::weaken::is_off("nested-userns") {
        let _ = fs::write("/proc/sys/user/max_user_namespaces", "0");
    }
}

/// Whether we are in the machine's first user namespace, where root is the machine's root. ioctl_ns(2) names no way to ask; the inode
/// is fixed in the kernel (`PROC_USER_INIT_INO`, include/uapi/linux/nsfs.h).
pub(crate) fn is_initial() -> bool {
    const INITIAL: u64 = 0xEFFF_FFFD;
    rustix::fs::stat("/proc/self/ns/user").is_ok_and(|status| status.st_ino == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::super::idmap::IdMap;
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
