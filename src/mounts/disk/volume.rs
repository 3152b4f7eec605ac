//! The image of a volume: a journaled ext4 with its own caps, whose files outlive sandboxes and crashes.
//!
//! Its ids are ids of containers; each sandbox shows them by an id mapping. Sandboxes wrote the files: the host mounts
//! it detached, nosuid and nodev, and opens its files by descriptors.
//!
//! The lock belongs to the image's open file, which the loop device shares. It ends with the last mount, also after a
//! crash: two writers, or a reader beside a writer, would destroy the file system.

use super::Size;
use super::format;
pub(crate) use super::format::VOLUME_FILES;
use super::loop_device::{LoopDevice, attach_loop};
use super::template::copy_allocated;
use super::volatile::WorkDirectory;
use crate::error::{Context, Error, Kind, Result};
use crate::files::DIRECTORY;
use crate::sys::clone::{Side, clone_process, close_from, exit, wait};
use crate::sys::weaken;
use rustix::fs::{
    CWD, FlockOperation, Mode, OFlags, XattrFlags, fgetxattr, flock, fsetxattr, fstat, fsync, open, openat, rename,
    stat, syncfs,
};
use rustix::io::{Errno, pread};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The number of files that are not in an archive.
const LEFT_OUT: &CStr = c"user.brig.left_out";
/// The kernel removes a mount asynchronously.
const UNMOUNT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
const STEP: &str = "mount the volume's image";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageAccess {
    Write,
    Read,
}

impl ImageAccess {
    fn flags(self) -> OFlags {
        match self {
            ImageAccess::Write => OFlags::RDWR,
            ImageAccess::Read => OFlags::RDONLY,
        }
    }

    fn lock(self) -> FlockOperation {
        match self {
            ImageAccess::Write if !weaken::is_off("volume-lock") => FlockOperation::NonBlockingLockExclusive,
            _ => FlockOperation::NonBlockingLockShared,
        }
    }
}

#[derive(Debug)]
pub(crate) struct VolumeImage {
    file: OwnedFd,
    access: ImageAccess,
}

#[derive(Debug)]
pub(crate) enum Opened {
    Free(VolumeImage),
    Busy,
    Missing,
}

impl VolumeImage {
    /// Replays a journal that a crash left.
    pub(crate) fn open(path: &Path, access: ImageAccess) -> Result<Opened> {
        loop {
            match Self::open_packed(path, access)? {
                Opened::Free(image) if access == ImageAccess::Read && needs_recovery(&image.file)? => {}
                other => return Ok(other),
            }
            match Self::open(path, ImageAccess::Write)? {
                Opened::Free(image) => drop(image.mount()?),
                other => return Ok(other),
            }
            wait_until_free(path)?;
        }
    }

    /// For an archive, which has no journal.
    pub(crate) fn open_packed(path: &Path, access: ImageAccess) -> Result<Opened> {
        let step = || format!("open the volume's files `{}`", path.display());
        loop {
            let flags = access.flags() | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match open(path, flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(Opened::Missing),
                other => other.failing(Kind::Store, step)?,
            };
            match flock(&file, access.lock()) {
                Err(Errno::WOULDBLOCK) => return Ok(Opened::Busy),
                other => other.failing(Kind::Store, step)?,
            }
            let inode = |status: rustix::fs::Stat| (status.st_dev, status.st_ino);
            let named = match stat(path) {
                Err(Errno::NOENT) => return Ok(Opened::Missing),
                other => other.failing(Kind::Store, step)?,
            };
            // Another process may have replaced it before the lock.
            if inode(named) == inode(fstat(&file).failing(Kind::Store, step)?) {
                return Ok(Opened::Free(VolumeImage { file, access }));
            }
        }
    }

    /// The lock ends with its last descriptor.
    pub(crate) fn file(&self) -> Result<OwnedFd> {
        self.file.try_clone().failing(Kind::Store, || "keep the volume's files open")
    }

    /// FIFOs, sockets and devices are not in an archive.
    pub(crate) fn left_out(&self) -> u64 {
        let mut count = [0; 8];
        fgetxattr(&self.file, LEFT_OUT, &mut count).map_or(0, |_| u64::from_le_bytes(count))
    }

    /// A detached mount, which keeps the lock.
    pub(crate) fn mount(self) -> Result<OwnedFd> {
        let configured = self.configure()?;
        fsconfig_create(&configured.context).failing(Kind::Disk, || STEP)?;
        configured.attach()
    }

    /// In a child process. The caller has one thread.
    pub(crate) fn begin_mount(self) -> Result<PendingMount> {
        let configured = self.configure()?;
        match clone_process(0, None).failing(Kind::Internal, || STEP)? {
            Side::Child => {
                let done =
                    close_from(0, &[configured.context.as_fd()]).and_then(|()| fsconfig_create(&configured.context));
                exit(done.map_or_else(|errno| errno.raw_os_error(), |()| 0))
            }
            Side::Parent(_, child) => Ok(PendingMount { configured, child }),
        }
    }

    fn configure(self) -> Result<ConfiguredMount> {
        let device = attach_loop(self.file.as_fd(), self.access.flags())
            .map_err(|error| error.hint("a volume needs a loop device: load the module (`modprobe loop`)"))?;
        let step = || STEP;
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
        fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
        fsconfig_set_string(&context, "errors", "remount-ro").failing(Kind::Disk, step)?;
        // A new inode table reads as zeroes from the sparse file. Freed blocks leave the host's file.
        let flags = match self.access {
            ImageAccess::Write => ["noinit_itable", "no_prefetch_block_bitmaps", "discard"],
            ImageAccess::Read => ["noinit_itable", "no_prefetch_block_bitmaps", "ro"],
        };
        for flag in flags {
            fsconfig_set_flag(&context, flag).failing(Kind::Disk, step)?;
        }
        let mut attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
        if self.access == ImageAccess::Read {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        Ok(ConfiguredMount { context, attributes, _device: device })
    }
}

/// Its file system is not read yet.
#[derive(Debug)]
struct ConfiguredMount {
    context: OwnedFd,
    attributes: MountAttrFlags,
    /// The kernel removes a loop device after its last user.
    _device: LoopDevice,
}

impl ConfiguredMount {
    fn attach(&self) -> Result<OwnedFd> {
        fsmount(&self.context, FsMountFlags::FSMOUNT_CLOEXEC, self.attributes).failing(Kind::Disk, || STEP)
    }
}

/// A child writes the superblock and waits for the host's disk, 6 ms and more, while the supervisor prepares the
/// sandbox.
#[derive(Debug)]
pub(crate) struct PendingMount {
    configured: ConfiguredMount,
    child: OwnedFd,
}

impl PendingMount {
    pub(crate) fn wait(self) -> Result<OwnedFd> {
        let ended = wait(self.child.as_fd()).failing(Kind::Internal, || STEP)?;
        match ended.and_then(|status| status.exit_status()) {
            Some(0) => {}
            Some(errno) => return Err(Errno::from_raw_os_error(errno)).failing(Kind::Disk, || STEP),
            None => return Err(Error::new(Kind::Internal, "the child process was killed").doing(STEP)),
        }
        self.configured.attach()
    }
}

impl Drop for PendingMount {
    fn drop(&mut self) {
        // `wait` may have reaped it.
        let _ = wait(self.child.as_fd());
    }
}

/// `EXT4_FEATURE_INCOMPAT_RECOVER` in `s_feature_incompat` of the superblock.
fn needs_recovery(image: &OwnedFd) -> Result<bool> {
    const AT: u64 = 1024 + 0x60;
    const RECOVER: u32 = 0x4;
    let mut bytes = [0; 4];
    pread(image, &mut bytes, AT).failing(Kind::Store, || "read the volume's superblock")?;
    Ok(u32::from_le_bytes(bytes) & RECOVER != 0)
}

pub(crate) fn files(mounted: BorrowedFd<'_>) -> Result<OwnedFd> {
    openat(mounted, VOLUME_FILES, DIRECTORY, Mode::empty()).failing(Kind::Disk, || "open the files of the volume")
}

fn wait_until_free(path: &Path) -> Result<()> {
    let step = || format!("wait for the end of the last mount of `{}`", path.display());
    let file = open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let file = file.failing(Kind::Store, step)?;
    let end = Instant::now() + UNMOUNT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
            Err(errno) => return Err(errno).failing(Kind::Disk, step),
        }
    }
}

/// Without a name in the store: a crash leaves nothing of it.
#[derive(Debug)]
pub(crate) struct NewVolumeImage {
    directory: WorkDirectory,
}

impl NewVolumeImage {
    pub(crate) fn format(live: &Path, bytes: u64, inodes: u64) -> Result<NewVolumeImage> {
        let new = Self::begin(live)?;
        format::format(&new.path(), Size { bytes, inodes, synchronous: false }, format::VOLUME)?;
        let private = Mode::from_raw_mode(0o600);
        rustix::fs::chmod(new.path(), private).failing(Kind::Disk, || "close a new volume to other users")?;
        Ok(new)
    }

    /// No process may write the image meanwhile.
    pub(crate) fn copy(live: &Path, path: &Path) -> Result<NewVolumeImage> {
        let new = Self::begin(live)?;
        let step = || format!("copy the volume's image `{}`", path.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(new.path(), flags, Mode::from_raw_mode(0o600)).failing(Kind::Disk, step)?;
        copy_allocated(path, file)?;
        Ok(new)
    }

    /// `pack` may use the directory, and returns the number of left out files.
    pub(crate) fn packed(live: &Path, pack: impl FnOnce(&Path, File) -> Result<u64>) -> Result<NewVolumeImage> {
        let new = Self::begin(live)?;
        let step = || "make the archive of a volume";
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(new.path(), flags, Mode::from_raw_mode(0o600)).failing(Kind::Disk, step)?;
        let same = file.try_clone().failing(Kind::Disk, step)?;
        let left_out = pack(new.directory.path(), File::from(file))?;
        if left_out > 0 {
            // A file system without attributes has no count.
            let _ = fsetxattr(&same, LEFT_OUT, &left_out.to_le_bytes(), XattrFlags::empty());
        }
        Ok(new)
    }

    pub(crate) fn archive(&self) -> Result<File> {
        File::open(self.path()).failing(Kind::Disk, || "open the archive of a volume")
    }

    fn begin(live: &Path) -> Result<NewVolumeImage> {
        crate::files::create_directories(live, 0o700)?;
        let directory = WorkDirectory::make(live).failing(Kind::Disk, || "make a directory for a new volume")?;
        Ok(NewVolumeImage { directory })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn mount(&self) -> Result<OwnedFd> {
        match VolumeImage::open(&self.path(), ImageAccess::Write)? {
            Opened::Free(image) => image.mount(),
            Opened::Busy | Opened::Missing => Err(Error::new(Kind::Internal, "a new volume's image is in use")),
        }
    }

    /// Gives it the name `path` while `mounted` stays. Users of an earlier one keep it.
    pub(crate) fn publish(self, mounted: BorrowedFd<'_>, path: &Path) -> Result<()> {
        // The descriptor of a mount itself is O_PATH, which syncfs(2) refuses.
        syncfs(files(mounted)?).failing(Kind::Disk, || "write out a new volume")?;
        self.rename_to(path)
    }

    /// After the end of its last mount.
    pub(crate) fn publish_unmounted(self, path: &Path) -> Result<()> {
        wait_until_free(&self.path())?;
        self.rename_to(path)
    }

    /// For an archive, which has no mount.
    pub(crate) fn rename_to(self, path: &Path) -> Result<()> {
        let step = || format!("keep the volume's image `{}`", path.display());
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, self.path(), flags, Mode::empty()).failing(Kind::Disk, step)?;
        fsync(&file).failing(Kind::Disk, step)?; // after a power cut a name must not lead to a part of it
        rename(self.path(), path).failing(Kind::Disk, step)
    }
}
