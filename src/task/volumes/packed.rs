//! The volumes of an ordinary user: archives, since such a user may mount no image.
//!
//! Init unpacks them into memory, within the caps of the volume and of the task's disk. At the end the supervisor packs
//! the written ones and replaces each archive in one step: a killed supervisor changes none.

use super::record::VolumeSize;
use crate::error::{Context, Error, Kind, Result};
use crate::files::DIRECTORY;
use crate::sandbox::{ArchiveBounds, NewVolumeImage, PackedVolume, VolumeFiles, pack_own_volume, unpack_own_volume};
use crate::task::store::Store;
use rustix::fs::{CWD, Mode, fchmod, mkdir, openat};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
