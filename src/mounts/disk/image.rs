//! Mounts the image of a disk: a loop device and a new ext4.

use super::description::{DiskFile, Size};
use super::format::USUAL;
use super::kept;
use super::template::{Image, Template};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::ioctl;
use rustix::fs::{AtFlags, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Attaches an image to a loop device and mounts it.
pub(super) fn mount_image(template: &Template, live: &Path, size: Size, file: &DiskFile) -> Result<(OwnedFd, Image)> {
    let image = kept::image(template, live, file)?;
    let device = attach_loop(image.file(), OFlags::RDWR).map_err(|error| {
        error.hint(
            "the disk limit needs a loop device: load the module (`modprobe loop`), or pass --allow-degraded disk",
        )
    })?;
    image.fill(device.open.as_fd())?;
    let step = || "mount the disk image";
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
    fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
    // A new inode table reads as zeroes from the sparse file: the kernel need not zero it. `block_validity` (ext4(5))
    // builds a tree of all groups at each mount to find damage, which an image that ends with its sandbox cannot have.
    // The bitmaps of an empty image are not written yet: no prefetch.
    let is_new = *file == DiskFile::Unnamed;
    let more = [size.synchronous.then_some("sync"), is_new.then_some("noblock_validity")];
    for flag in
        ["noinit_itable", "nobarrier", "no_prefetch_block_bitmaps"].into_iter().chain(more.into_iter().flatten())
    {
        fsconfig_set_flag(&context, flag).failing(Kind::Disk, step)?;
    }
    fsconfig_create(&context).failing(Kind::Disk, step)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).failing(Kind::Disk, step)?;
    for name in USUAL {
        // Read from the image now, before another process waits for it.
        rustix::fs::statat(&mounted, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?;
    }
    Ok((mounted, image))
}

/// A configured loop device; it stays attached while this is open or mounted.
pub(super) struct LoopDevice {
    pub path: String,
    open: OwnedFd,
}

/// Attaches the open file of an image, with the same access to the device.
pub(super) fn attach_loop(image: BorrowedFd<'_>, access: OFlags) -> Result<LoopDevice> {
    let flags = access | OFlags::CLOEXEC;
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Disk, || "open `/dev/loop-control`")?;
    // Another process may take the free device between the two calls; with 64 of them, each loses a few times.
    for _ in 0..1024 {
        let number = ioctl::free_device(control.as_fd()).failing(Kind::Disk, || "find a free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = match open(&path, flags, Mode::empty()) {
            // The kernel may make the node of a new device a moment later.
            Err(Errno::NOENT | Errno::NXIO) => continue,
            other => other.failing(Kind::Disk, || format!("open `{path}`"))?,
        };
        match ioctl::configure(device.as_fd(), image, 4096) {
            Ok(()) => return Ok(LoopDevice { path, open: device }),
            Err(Errno::BUSY | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, || format!("attach the image to `{path}`")),
        }
    }
    Err(Error::new(Kind::Disk, "no loop device stays free long enough"))
}
