//! Mounts the image of a disk: a loop device and its ext4.

use super::format::USUAL;
use super::kept;
use super::loop_device::attach_loop;
use super::template::{Image, Template};
use super::{DiskFile, Size};
use crate::error::{Context, Kind, Result};
use rustix::fs::{AtFlags, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub(super) fn mount_image(template: &Template, live: &Path, size: Size, file: &DiskFile) -> Result<(OwnedFd, Image)> {
    let image = kept::image(template, live, size, file)?;
    let device = attach_loop(image.file(), OFlags::RDWR)
        .map_err(|error| error.hint("the disk limit needs a loop device: load the module (`modprobe loop`)"))?;
    image.fill(device.open.as_fd())?;
    let step = || "mount the disk image";
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
    fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
    // A new inode table reads as zeroes from the sparse file. `block_validity` (ext4(5)) builds a tree of all groups at
    // each mount to find damage, which an image that ends with its sandbox cannot have. The bitmaps of an empty image
    // are not written yet: no prefetch.
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
