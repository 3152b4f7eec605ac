//! Shows the files of volumes.

use super::{Builder, PackedVolume, VolumeFiles};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::mounts::disk::volume::{VOLUME_FILES, files};
use crate::mounts::mount::{attach, clone_tree, restrict, restrict_mapped, tmpfs};
use crate::mounts::resolve;
use crate::mounts::write::own;
use crate::spec::root::{Attributes, MountPoint, Shown};
use crate::sys::{mount as bits, weaken};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

impl Builder<'_> {
    /// Attaches the volume below the stage first: before 6.15 the kernel copies a directory only of an attached mount.
    pub(super) fn volume(
        &self,
        number: usize,
        attributes: Attributes,
        changes: Option<&'static str>,
        points: &[MountPoint],
    ) -> Result<OwnedFd> {
        let missing = || Error::new(Kind::Internal, "the sandbox got no mount for the volume");
        let below = format!("volume-{number}");
        let place = resolve::directory(self.stage()?, Path::new(&below), 0o700)?.0;
        let stage = |mounted: &OwnedFd| attach(mounted, place.as_fd()).doing(|| "stage the volume");
        let top = match self.plan.volumes.get(number).ok_or_else(missing)? {
            VolumeFiles::Mounted(mounted) => {
                stage(mounted)?;
                files(mounted.as_fd())?
            }
            VolumeFiles::Packed(volume) => {
                let top = self.unpacked(volume, stage)?;
                if changes.is_none() && attributes.0 & bits::RDONLY == 0 {
                    let same = top.try_clone().failing(Kind::Mount, || "keep the volume open")?;
                    self.volumes.borrow_mut().insert(number, same);
                }
                top
            }
        };
        points.iter().try_for_each(|point| make_point(top.as_fd(), point))?;
        let shown = clone_tree(top.as_fd(), Path::new(""))?;
        let mapping = self.plan.mapping(Shown::Inside);
        let Some(changes) = changes else {
            restrict_mapped(&shown, attributes, mapping)?;
            return Ok(shown);
        };
        restrict_mapped(&shown, Attributes::READ_ONLY, mapping)?;
        let made = self.over_tree((&shown, ""), &below, changes, self.plan.user)?;
        restrict(&made, attributes)?;
        Ok(made)
    }

    /// Into a separate file system in memory.
    fn unpacked(&self, volume: &PackedVolume, stage: impl FnOnce(&OwnedFd) -> Result<()>) -> Result<OwnedFd> {
        let bytes = volume.bytes.min(self.plan.file_system.scratch.bytes);
        let inodes = volume.inodes.min(self.plan.file_system.scratch.inodes) + 2; // the top and `VOLUME_FILES`
        let memory = tmpfs(bytes, inodes, 0o700, self.plan.administrator, Attributes::WRITABLE)?;
        stage(&memory)?;
        mkdirat(&memory, VOLUME_FILES, Mode::from_raw_mode(0o755)).failing(Kind::Mount, || "make its directory")?;
        let top = files(memory.as_fd())?;
        own(top.as_fd(), "", self.plan.user)?;
        let archive = volume.archive.try_clone().failing(Kind::Mount, || "keep the archive open")?;
        (volume.unpack)(archive, top.as_fd()).map_err(|error| match error.errno() {
            Some(libc::ENOSPC) => error.hint(
                "an ordinary user's volume is in memory, and has at most the task's --disk and --inodes: give more",
            ),
            _ => error,
        })?;
        Ok(top)
    }
}

/// An agent may have written the volume: paths stay in it.
fn make_point(top: BorrowedFd<'_>, point: &MountPoint) -> Result<()> {
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
