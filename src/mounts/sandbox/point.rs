//! Mount points in a volume.

use crate::error::{Context, Error, Kind, Result, Step};
use crate::mounts::resolve;
use crate::mounts::write::own;
use crate::spec::root::MountPoint;
use crate::sys::weaken;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// An agent may have written the volume: paths stay in it.
pub(super) fn make(top: BorrowedFd<'_>, point: &MountPoint) -> Result<()> {
    let mut way: Vec<_> = point.path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    way.reverse();
    way.iter().try_for_each(|path| refuse_link(top, path))?;
    let directories = if point.is_directory { way.len() } else { way.len().saturating_sub(1) };
    for path in &way[..directories] {
        let (directory, new) = resolve::directory(top, path, 0o755)?;
        if new {
            own(directory.as_fd(), "", point.owner)?;
        }
    }
    if !point.is_directory {
        resolve::target(top, &point.path, FileType::RegularFile)?;
    }
    Ok(())
}

/// A link would lead the mount to another place of the sandbox, such as `/etc`.
fn refuse_link(top: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let step = || format!("make the mount point `{}` in the volume", path.display());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let is_link = match openat2(top, path, flags, Mode::empty(), plain) {
        Err(Errno::NOENT) => false,
        Err(Errno::LOOP) => true,
        Err(errno) => return Err(errno).failing(Kind::Mount, step),
        Ok(found) => {
            let status = fstat(&found).failing(Kind::Mount, step)?;
            FileType::from_raw_mode(status.st_mode) == FileType::Symlink
        }
    };
    if !is_link || weaken::is_off("volume-links") {
        return Ok(());
    }
    Err(Error::new(Kind::Mount, "a link in the volume leads elsewhere"))
        .doing(step)
        .hint(|| "remove the link in a task without this mount, or name another place")
}
