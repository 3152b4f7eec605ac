//! The one procfs that init writes through: a new one of its own PID namespace that is mounted nowhere, so that nothing the image or another
//! container does can put a file of its choice in the way (CVE-2019-16884, CVE-2025-52881).

use crate::error::{Context, Error, Kind, Result, Step};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;

/// `PROC_SUPER_MAGIC` of linux/magic.h.
const PROC_MAGIC: i64 = 0x9fa0;
/// The inode number of a procfs's root directory (`PROC_ROOT_INO`).
const PROC_ROOT: u64 = 1;

/// The handle.
#[derive(Debug)]
pub(super) struct Procfs(OwnedFd);

impl Procfs {
    /// A new one; where the kernel refuses that (a user namespace that sees only a covered /proc), the one at /proc, if it is whole and true.
    pub(super) fn open() -> Result<Procfs> {
        let step = || "make a procfs of our own";
        if crate::sys::weaken::is_off("own-procfs") {
            let there = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            return there.failing(Kind::Identity, step).map(Procfs);
        }
        let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)
            .and_then(|context| fsconfig_create(&context).map(|()| context))
            .and_then(|context| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()));
        match made {
            Ok(root) => Ok(Procfs(root)),
            Err(Errno::PERM | Errno::ACCESS) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let root =
                    rustix::fs::open("/proc", flags, Mode::empty()).failing(Kind::Identity, || "open `/proc`")?;
                let kind = fstatfs(&root).failing(Kind::Identity, || "look at `/proc`")?.f_type;
                let status = rustix::fs::fstat(&root).failing(Kind::Identity, || "look at `/proc`")?;
                if kind != PROC_MAGIC || status.st_ino != PROC_ROOT {
                    return Err(Error::new(Kind::Identity, "`/proc` is not a procfs"));
                }
                Ok(Procfs(root))
            }
            Err(errno) => Err(errno).failing(Kind::Identity, step),
        }
    }

    /// Writes a file of it. Nothing on the way may be a link out of it or a mount over it.
    pub(super) fn write(&self, path: &str, value: &str) -> Result<()> {
        let step = || format!("write `{value}` to `/proc/{path}`");
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.0, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), inside)
            .failing(Kind::Identity, step)?;
        rustix::io::write(&file, value.as_bytes()).failing(Kind::Identity, step).map(|_| ())
    }

    /// Sets kernel parameters.
    pub(super) fn set(&self, parameters: &[(String, String)]) -> Result<()> {
        parameters.iter().try_for_each(|(path, value)| {
            self.write(&format!("sys/{path}"), value)
                .doing(|| format!("set the kernel parameter `{}`", path.replace('/', ".")))
        })
    }
}
