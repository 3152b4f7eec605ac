//! Export and import of volumes as tar streams. The agent's files and the archive are hostile.

use super::record::{VolumePaths, VolumeSize};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::DIRECTORY;
use crate::sandbox::{
    ArchiveBounds, ImageAccess, NewVolumeImage, PackedVolume, USER, VolumeFiles, are_packed, pack_own_volume,
    pack_volume, unpack_own_volume, unpack_volume, volume_files,
};
use crate::task::store::Store;
use rustix::fs::{CWD, Mode, fchmod, mkdir, openat};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
            let new = imported(self, size, (USER, USER), source).doing(step).map_err(advice)?;
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

// The volumes of an ordinary user: archives, since such a user may mount no image.
//
// Init unpacks them into memory, within the caps of the volume and of the task's disk. At the end the supervisor packs
// the written ones and replaces each archive in one step: a killed supervisor changes none.

pub(super) fn shown(archive: OwnedFd, size: VolumeSize) -> VolumeFiles {
    VolumeFiles::Packed(PackedVolume { archive, bytes: size.bytes, inodes: size.inodes, unpack })
}

fn unpack(archive: OwnedFd, top: BorrowedFd<'_>) -> Result<()> {
    unpack_own_volume(BufReader::new(File::from(archive)), top, ArchiveBounds::NONE)
}

/// `user` is the files' owner inside.
pub(super) fn packed(store: &Store, top: &OwnedFd, user: (u32, u32)) -> Result<NewVolumeImage> {
    NewVolumeImage::packed(&store.live(), |_, file| {
        let top = top.try_clone().failing(Kind::Internal, || "keep a volume's files open")?;
        pack_own_volume(top, user, BufWriter::new(file))
    })
}

/// `fill` works in an empty directory of the host.
pub(super) fn made(
    store: &Store,
    (size, mode): (VolumeSize, u32),
    user: (u32, u32),
    fill: impl FnOnce(&OwnedFd) -> Result<()>,
) -> Result<NewVolumeImage> {
    let step = || "make the archive of a volume";
    let new = NewVolumeImage::packed(&store.live(), |directory, file| {
        let files = directory.join("files");
        mkdir(&files, Mode::RWXU).failing(Kind::Disk, step)?;
        let top = openat(CWD, &files, DIRECTORY, Mode::empty()).failing(Kind::Disk, step)?;
        fchmod(&top, Mode::from_raw_mode(mode)).failing(Kind::Disk, step)?;
        fill(&top)?;
        pack_own_volume(top, user, BufWriter::new(file))
    })?;
    // Its data alone is less than the archive.
    let length = new.archive()?.metadata().map_or(0, |status| status.len());
    if length > size.bytes {
        return Err(Error::os(Kind::Disk, rustix::io::Errno::NOSPC).doing(step()));
    }
    Ok(new)
}

/// `source` is hostile.
pub(super) fn imported(
    store: &Store,
    size: VolumeSize,
    user: (u32, u32),
    source: impl std::io::BufRead,
) -> Result<NewVolumeImage> {
    let bounds = ArchiveBounds { bytes: size.bytes, names: size.inodes };
    made(store, (size, 0o755), user, |top| unpack_own_volume(source, top.as_fd(), bounds))
}
