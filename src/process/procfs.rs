//! Init writes only through a new procfs of its PID namespace, mounted nowhere: no image or other container can
//! redirect its paths (CVE-2019-16884, CVE-2025-52881).

use crate::error::{Context, Error, Kind, Result, Step};
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat2};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;

/// `PROC_ROOT_INO`.
const PROC_ROOT: u64 = 1;

#[derive(Debug)]
pub(super) struct Procfs {
    root: OwnedFd,
    is_detached: bool,
}

impl Procfs {
    /// The kernel refuses a new one in a user namespace with a covered /proc: then /proc is used if it is complete.
    pub(super) fn open() -> Result<Procfs> {
        let step = || "make a procfs of our own";
        if crate::sys::weaken::is_off("own-procfs") {
            let there = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            return there.failing(Kind::Identity, step).map(|root| Procfs { root, is_detached: false });
        }
        let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)
            .and_then(|context| fsconfig_create(&context).map(|()| context))
            .and_then(|context| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()));
        match made {
            Ok(root) => Ok(Procfs { root, is_detached: true }),
            Err(Errno::PERM | Errno::ACCESS) => in_sight().map(|root| Procfs { root, is_detached: false }),
            Err(errno) => Err(errno).failing(Kind::Identity, step),
        }
    }

    /// No component may be a link out of the procfs or a mount.
    ///
    /// AppArmor names the files of a detached procfs as if it were the root: a profile around us that denies /sys
    /// (LXC's) then refuses /proc/sys. The visible procfs has the true names.
    pub(super) fn write(&self, path: &str, value: &str) -> Result<()> {
        let step = || format!("write `{value}` to `/proc/{path}`");
        let file = match open_below(&self.root, path, OFlags::WRONLY) {
            Err(Errno::ACCESS) if self.is_detached && !crate::sys::weaken::is_off("procfs-in-sight") => {
                let root = in_sight().doing(step)?;
                open_below(&root, path, OFlags::WRONLY)
                    .failing(Kind::Identity, step)
                    .hint(|| "allow it in the AppArmor profile around brig; in LXC switch nesting on")?
            }
            other => other.failing(Kind::Identity, step)?,
        };
        rustix::io::write(&file, value.as_bytes()).failing(Kind::Identity, step).map(|_| ())
    }

    pub(super) fn can_read(&self, path: &str) -> bool {
        let mut byte = [0];
        open_below(&self.root, path, OFlags::RDONLY).and_then(|file| rustix::io::read(&file, &mut byte)).is_ok()
    }

    pub(super) fn set(&self, parameters: &[(String, String)]) -> Result<()> {
        parameters.iter().try_for_each(|(path, value)| {
            self.write(&format!("sys/{path}"), value)
                .doing(|| format!("set the kernel parameter `{}`", path.replace('/', ".")))
        })
    }
}

/// /proc, if it is whole. [`open_below`] detects mounts over parts of it.
fn in_sight() -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open("/proc", flags, Mode::empty()).failing(Kind::Identity, || "open `/proc`")?;
    let kind = fstatfs(&root).failing(Kind::Identity, || "look at `/proc`")?.f_type;
    let status = rustix::fs::fstat(&root).failing(Kind::Identity, || "look at `/proc`")?;
    if kind != PROC_SUPER_MAGIC || status.st_ino != PROC_ROOT {
        return Err(Error::new(Kind::Identity, "`/proc` is not a procfs"));
    }
    Ok(root)
}

fn open_below(root: &OwnedFd, path: &str, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, access | OFlags::CLOEXEC, Mode::empty(), inside)
}
