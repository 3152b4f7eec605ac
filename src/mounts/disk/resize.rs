//! Another size for a kept disk: a new image with the files of the old one.
//!
//! ext4 refuses a new size for a mounted image with `sparse_super2`, and a killed tool would leave a damaged one. The
//! new image takes the name at last: a crash leaves one of the two, whole.

use super::Size;
use super::format;
use super::loop_device::attach_loop;
use super::volatile::WorkDirectory;
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, fstatvfs, fsync, open, rename};
use rustix::io::pread;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(super) fn has_size(image: &OwnedFd, size: Size) -> Result<bool> {
    let step = || "read the size of a kept disk";
    // `s_inodes_count` of the superblock (ext4 wiki, "The Super Block").
    let mut inodes = [0; 4];
    pread(image, &mut inodes, 1024).failing(Kind::Disk, step)?;
    let bytes = fstat(image).failing(Kind::Disk, step)?.st_size as u64;
    Ok(format::is_of(size, bytes, u32::from_le_bytes(inodes).into()))
}

/// No process may write `old`. `path` may be its name. Returns the new image locked.
pub(super) fn resize(old: &OwnedFd, live: &Path, size: Size, path: &Path) -> Result<OwnedFd> {
    let step = || format!("give the kept disk `{}` another size", path.display());
    // mke2fs gets the first three descriptors: no other file may have these numbers.
    let _first = [(); 3].map(|()| File::open("/dev/null"));
    let tree = mount_unchanged(old)?;
    check_room(&tree, size)?;
    files::create_directories(live, 0o700)?;
    let directory = WorkDirectory::make(live).failing(Kind::Disk, step)?;
    let unfinished: PathBuf = directory.path().join("image");
    let source = format!("/proc/{}/fd/{}", std::process::id(), tree.as_raw_fd());
    format::fill(&unfinished, size, Path::new(&source))?;
    let private = Mode::from_raw_mode(0o600);
    rustix::fs::chmod(&unfinished, private).failing(Kind::Disk, step)?;
    let file = open(&unfinished, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Disk, step)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).failing(Kind::Disk, step)?;
    fsync(&file).failing(Kind::Disk, step)?; // after a power cut the name must not lead to a part of it
    rename(&unfinished, path).failing(Kind::Disk, step)?;
    Ok(file)
}

/// Writes nothing to the old image.
fn mount_unchanged(old: &OwnedFd) -> Result<OwnedFd> {
    let device = attach_loop(old.as_fd(), OFlags::RDONLY)?;
    let step = || "mount the kept disk";
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
    fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
    for flag in ["ro", "no_prefetch_block_bitmaps"] {
        fsconfig_set_flag(&context, flag).failing(Kind::Disk, step)?;
    }
    fsconfig_create(&context).failing(Kind::Disk, step)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).failing(Kind::Disk, step)
}

fn check_room(tree: &OwnedFd, size: Size) -> Result<()> {
    let room = fstatvfs(tree).failing(Kind::Disk, || "measure the kept disk")?;
    let (bytes, inodes) = ((room.f_blocks - room.f_bfree) * room.f_frsize, room.f_files - room.f_ffree);
    let refused =
        |words: String, flag: &str| Err(Error::new(Kind::Usage, words).hint(format!("give a larger --{flag}")));
    if bytes > size.bytes {
        let (used, limit) = (bytes.div_ceil(1 << 20), size.bytes >> 20);
        return refused(
            format!("the files of the kept disk take {used} MiB, and `--disk` would be {limit} MiB"),
            "disk",
        );
    }
    if inodes > size.inodes + format::OWN_INODES {
        let used = inodes - format::OWN_INODES;
        return refused(format!("the kept disk has {used} files, and `--inodes` would be {}", size.inodes), "inodes");
    }
    Ok(())
}
