//! Shows the files of volumes.

use super::{Builder, PackedVolume, VolumeFiles, point};
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::mounts::disk::volume::{VOLUME_FILES, files};
use crate::mounts::mount::{attach, clone_tree, restrict, restrict_mapped, tmpfs};
use crate::mounts::resolve;
use crate::mounts::write::own;
use crate::spec::root::{Attributes, MountPoint, Shown};
use crate::sys::mount as bits;
use rustix::fs::{Mode, mkdirat};
use std::os::fd::{AsFd, OwnedFd};
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
        points.iter().try_for_each(|point| point::make(top.as_fd(), point))?;
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
