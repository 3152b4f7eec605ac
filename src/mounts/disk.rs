//! The disk cap: one small file system under everything that a sandbox can write, so that a full disk is ENOSPC for the agent and
//! never the host's problem.
//!
//! As root it is an ext4 image on a loop device (`template` has where images come from). There is no journal: the image never outlives a
//! crash. Without privilege it is a tmpfs (see `plan::Scratch::Memory`), which init makes itself.

use super::maker::{Maker, Order};
use super::plan::Ids;
use super::template::{Image, Template};
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::{Channel, Packet};
use crate::sys::ioctl;
use rustix::fs::{AtFlags, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;

/// What the image must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of data; what bitmaps and directories take is inside, so that the cap is never larger than asked.
    pub bytes: u64,
    /// Whether a write returns when it is on the disk: only so do v1 groups count it for the writer, and not for the kernel's flusher.
    pub synchronous: bool,
    /// Files, directories and links. Never more, and at most one in 64 less.
    pub inodes: u64,
}

/// The file that a disk is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskFile {
    /// One without a name: it is gone with its last user, whatever happens.
    #[default]
    Unnamed,
    /// A new one that can outlive its sandbox.
    New(PathBuf),
    /// One of an earlier sandbox, of which only the workspace stays.
    Kept(PathBuf),
    /// The same, copied first.
    Copy {
        /// The one that stays as it is.
        of: PathBuf,
        /// The new one.
        to: PathBuf,
    },
}

/// A disk that a helper process is making, so that the loop device and the mount (1 to 2 ms) cost no time of their own.
#[derive(Debug)]
pub(crate) struct Pending {
    channel: Channel,
    /// Whether it is one of an earlier sandbox.
    is_kept: bool,
}

/// The directories of the host that disks are made in, on one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workshop {
    /// Formatted empty disk images, shared by all. What is written here is on this file system.
    pub templates: PathBuf,
    /// What is in use for a moment only, and locked meanwhile.
    pub live: PathBuf,
}

/// A disk that was begun before the request was read to its end, and what it was begun for.
struct Ahead {
    workshop: Workshop,
    size: Size,
    disk: (Pending, Maker),
}

/// At most one is begun; the first sandbox that wants just this one takes it.
static AHEAD: Mutex<Option<Ahead>> = Mutex::new(None);

/// Begins a disk that will most probably be wanted. What goes wrong is found out, and said, by [`begin`].
pub(crate) fn begin_ahead(workshop: &Workshop, size: Size) {
    let Ok(mut ahead) = AHEAD.lock() else { return };
    if ahead.is_none()
        && let Ok(disk) = make(workshop, size, &DiskFile::Unnamed)
    {
        *ahead = Some(Ahead { workshop: workshop.clone(), size, disk });
    }
}

/// Forgets what was begun: a process in the background is not the parent of whoever makes it.
pub(crate) fn forget_ahead() {
    if let Ok(mut ahead) = AHEAD.lock() {
        *ahead = None;
    }
}

/// Begins to make a disk of `size`: an empty one, unless an earlier one is named. The template is made here if there is none yet.
pub(crate) fn begin(workshop: &Workshop, size: Size, file: &DiskFile) -> Result<(Pending, Maker)> {
    if *file != DiskFile::Unnamed {
        return make(workshop, size, file);
    }
    let wanted = |ahead: &mut Ahead| ahead.workshop == *workshop && ahead.size == size;
    match AHEAD.lock().ok().and_then(|mut ahead| ahead.take_if(wanted)) {
        Some(ahead) => Ok(ahead.disk),
        None => make(workshop, size, file),
    }
}

fn make(workshop: &Workshop, size: Size, file: &DiskFile) -> Result<(Pending, Maker)> {
    let template = Template::of(&workshop.templates, &workshop.live, size)?;
    let order = Order { template, live: workshop.live.clone(), size };
    let (channel, maker) = Maker::order(order, file)?;
    let is_kept = matches!(file, DiskFile::Kept(_) | DiskFile::Copy { .. });
    Ok((Pending { channel, is_kept }, maker))
}

impl Pending {
    /// Waits for the disk: a detached mount that nobody else can see, whose directories are nobody's yet; what was the user's on one that was kept is `user`'s
    /// again. When the mount is gone, the kernel frees the loop device and the image, which has no name, by itself.
    pub(crate) fn wait(self, user: Ids) -> Result<OwnedFd> {
        let packet = self.channel.receive().failing(Kind::Disk, || "wait for the disk")?;
        match packet {
            Some(Packet { descriptor: Some(mounted), .. }) => {
                if self.is_kept {
                    super::kept::renew(mounted.as_fd(), user)?;
                }
                Ok(mounted)
            }
            Some(Packet { bytes, .. }) => Err(wire::from_bytes(&bytes)),
            None => Err(Error::new(Kind::Lost, "the process that makes the disk died")),
        }
    }
}

/// Attaches an empty image to a loop device and mounts it.
pub(super) fn mount_image(order: &Order, file: &DiskFile) -> Result<(OwnedFd, Image)> {
    let image = super::kept::image(&order.template, &order.live, file)?;
    let device = attach_loop(&image).map_err(|error| {
        error.hint(
            "the disk limit needs a loop device: load the module (`modprobe loop`), or pass --allow-degraded disk",
        )
    })?;
    image.fill(device.open.as_fd())?;
    let step = || "mount the disk image";
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
    fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
    // The inode table reads as zeroes from the sparse file, so nobody needs to zero it in the background. What finds blocks of a damaged image that are in
    // use twice is a tree of all groups, made at each mount (`block_validity`, ext4(5)): an image that begins and ends with its sandbox is not damaged. Nor
    // does a thread of the kernel read the bitmaps of all groups beforehand: those of an empty image are not written yet.
    let is_new = *file == DiskFile::Unnamed;
    let more = [order.size.synchronous.then_some("sync"), is_new.then_some("noblock_validity")];
    for flag in
        ["noinit_itable", "nobarrier", "no_prefetch_block_bitmaps"].into_iter().chain(more.into_iter().flatten())
    {
        fsconfig_set_flag(&context, flag).failing(Kind::Disk, step)?;
    }
    fsconfig_create(&context).failing(Kind::Disk, step)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).failing(Kind::Disk, step)?;
    for name in super::format::USUAL {
        // Read from the image now, and not while others wait for it.
        rustix::fs::statat(&mounted, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?;
    }
    Ok((mounted, image))
}

/// A configured loop device; it stays attached as long as this is open or something is mounted from it.
struct LoopDevice {
    path: String,
    open: OwnedFd,
}

fn attach_loop(image: &Image) -> Result<LoopDevice> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = open("/dev/loop-control", flags, Mode::empty()).failing(Kind::Disk, || "open `/dev/loop-control`")?;
    // Somebody else may take the free device between the two calls; with 64 at it, each loses a few times.
    for _ in 0..1024 {
        let number = ioctl::free_device(control.as_fd()).failing(Kind::Disk, || "find a free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = match open(&path, flags, Mode::empty()) {
            // Made by the kernel a moment ago, its node may come later.
            Err(Errno::NOENT | Errno::NXIO) => continue,
            other => other.failing(Kind::Disk, || format!("open `{path}`"))?,
        };
        match ioctl::configure(device.as_fd(), image.file(), 4096) {
            Ok(()) => return Ok(LoopDevice { path, open: device }),
            Err(Errno::BUSY | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, || format!("attach the image to `{path}`")),
        }
    }
    Err(Error::new(Kind::Disk, "no loop device stays free long enough"))
}
