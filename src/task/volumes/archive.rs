//! Export and import of volumes as tar streams. The agent's files and the archive are hostile.

use super::packed;
use super::record::{VolumePaths, VolumeSize};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::sandbox::{ImageAccess, NewVolumeImage, USER, are_packed, pack_volume, unpack_volume, volume_files};
use crate::task::store::Store;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;

impl Store {
    /// Writes a volume's files with owners, without set-id bits. Returns how many were left out: FIFOs, sockets and
    /// devices.
    pub fn export_volume(&self, name: &str, mut sink: impl Write) -> Result<u64> {
        let step = || format!("export the volume `{name}`");
        let paths = VolumePaths::of(self, name)?;
        paths.existing()?;
        let Some(image) = paths.open(ImageAccess::Read).doing(step)? else {
            return Err(Error::new(Kind::State, "it has no files yet").doing(step()).hint("use or fill it first"));
        };
        if are_packed() {
            std::io::copy(&mut File::from(image.file()?), &mut sink).failing(Kind::Store, step)?;
            return Ok(image.left_out());
        }
        let mounted = image.mount().doing(step)?;
        pack_volume(volume_files(mounted.as_fd())?, sink).doing(step)
    }

    /// Makes a volume of an archive. A failed or killed import leaves none.
    pub fn import_volume(&self, name: &str, size: VolumeSize, source: impl BufRead) -> Result<()> {
        let step = || format!("import the volume `{name}`");
        let paths = VolumePaths::of(self, name)?;
        size.check()?;
        if paths.read()?.is_some() {
            return Err(paths.exists());
        }
        if are_packed() {
            let new = packed::imported(self, size, (USER, USER), source).doing(step).map_err(advice)?;
            let publish = |directory: &Path| new.rename_to(&VolumePaths::image_in(directory));
            return if paths.create_with(size, None, publish)? { Ok(()) } else { Err(paths.exists()) };
        }
        let image = NewVolumeImage::format(&self.live(), size.bytes, size.inodes).doing(step)?;
        let mounted = image.mount().doing(step)?;
        let top = volume_files(mounted.as_fd())?;
        unpack_volume(source, top.as_fd()).doing(step).map_err(advice)?;
        rustix::fs::syncfs(&top).failing(Kind::Disk, step)?;
        drop(top);
        match paths
            .create_with(size, None, |directory| image.publish(mounted.as_fd(), &VolumePaths::image_in(directory)))?
        {
            true => Ok(()),
            false => Err(paths.exists()),
        }
    }
}

fn advice(error: Error) -> Error {
    match error.errno() {
        None if error.kind() == Kind::Disk => error.hint("give a larger --size or more --inodes"),
        Some(libc::ENOSPC) => error.hint("give a larger --size or more --inodes"),
        _ if error.advice().is_none() => error.hint("make the archive of one folder: tar -C FOLDER -c ."),
        _ => error,
    }
}
