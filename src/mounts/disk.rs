//! The disk cap: one small file system under everything that a sandbox can write, so that a full disk is ENOSPC for the agent and
//! never the host's problem.
//!
//! As root it is an ext4 image on a loop device. Formatting one takes 5 to 10 ms, so an empty image of each size is kept as a template
//! and only its few allocated blocks are copied. There is no journal: the image never outlives a crash. Without privilege it is
//! a tmpfs (see `plan::Scratch::Memory`), which init makes itself.

use super::plan::Ids;
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::{self, Channel, Packet};
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::loop_device;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, SeekFrom, Uid, ftruncate, open, seek};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

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

/// A disk that a helper process is making, so that the loop device and the mount (1 to 2 ms) cost no time of their own.
#[derive(Debug)]
pub(crate) struct Pending {
    channel: Channel,
}

/// The helper, to be reaped.
#[derive(Debug)]
pub(crate) struct Maker(OwnedFd);

/// Begins to make an empty disk of `size`, whose directories belong to `user`. The template is made here if there is none yet.
pub(crate) fn begin(templates: &Path, size: Size, user: Ids) -> Result<(Pending, Maker)> {
    let step = || "start making the disk";
    let template = template(templates, size)?;
    let (ours, theirs) = Channel::pair().failing(Kind::Disk, step)?;
    match clone_process(0, None).failing(Kind::Disk, step)? {
        Side::Parent(_, pidfd) => Ok((Pending { channel: ours }, Maker(pidfd))),
        Side::Child => {
            drop(ours);
            // If the parent is gone, so is whoever wanted the disk; the kernel frees what we hold.
            let bound = set_parent_process_death_signal(Some(Signal::KILL));
            let made = bound.failing(Kind::Disk, step).and_then(|()| mount_image(&template, templates, size, user));
            let sent = match &made {
                Ok(mounted) => theirs.send(b"D", Some(mounted.as_fd())),
                Err(error) => theirs.send(&wire::to_bytes(error), None),
            };
            exit(i32::from(sent.is_err()))
        }
    }
}

impl Pending {
    /// Waits for the disk: a detached mount that nobody else can see. When the mount is gone, the kernel frees the loop device and the
    /// image, which has no name, by itself.
    pub(crate) fn wait(self) -> Result<OwnedFd> {
        let packet = self.channel.receive().failing(Kind::Disk, || "wait for the disk")?;
        match packet {
            Some(Packet { descriptor: Some(mounted), .. }) => Ok(mounted),
            Some(Packet { bytes, .. }) => Err(wire::from_bytes(&bytes)),
            None => Err(Error::new(Kind::Lost, "the process that makes the disk died")),
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // It has sent the disk and ends by itself; there is nothing to hear from it.
        let _ = waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Copies the template to an image without a name and mounts it.
fn mount_image(template: &Path, directory: &Path, size: Size, user: Ids) -> Result<OwnedFd> {
    let file = copy_sparse(template, directory)?;
    let device = attach_loop(&file).map_err(|error| {
        error.hint(
            "the disk limit needs a loop device: load the module (`modprobe loop`), or pass --allow-degraded disk",
        )
    })?;
    let step = || "mount the disk image";
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Disk, step)?;
    fsconfig_set_string(&context, "source", device.path.as_str()).failing(Kind::Disk, step)?;
    // The inode table reads as zeroes from the sparse file, so nobody needs to zero it in the background.
    for flag in ["noinit_itable", "nobarrier"].into_iter().chain(size.synchronous.then_some("sync")) {
        fsconfig_set_flag(&context, flag).failing(Kind::Disk, step)?;
    }
    fsconfig_create(&context).failing(Kind::Disk, step)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).failing(Kind::Disk, step)?;
    let (uid, gid) = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
    for (name, _) in super::format::DIRECTORIES {
        rustix::fs::chownat(&mounted, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Disk, step)?;
    }
    Ok(mounted)
}

/// The formatted, empty image of this size, made once. Two that make it at once both make a whole one, and the later rename wins.
fn template(directory: &Path, size: Size) -> Result<PathBuf> {
    let path = directory.join(format!("ext4-v4-{}-{}.img", size.bytes, size.inodes));
    if path.exists() {
        return Ok(path);
    }
    files::create_directories(directory, 0o700)?;
    let unfinished = directory.join(format!("new-{}", std::process::id()));
    let image = unfinished.join("image");
    files::create_directories(&unfinished, 0o700)?;
    let made = super::format::format(&image, size).and_then(|()| {
        std::fs::rename(&image, &path).failing(Kind::Disk, || format!("keep the template `{}`", path.display()))
    });
    // What a crash leaves here has nothing in it but zeroes, and a later process of that number removes it.
    let _ = std::fs::remove_dir_all(&unfinished);
    made.map(|()| path)
}

/// Copies only what `template` has allocated, a few hundred kilobytes of an image of gigabytes.
fn copy_sparse(template: &Path, directory: &Path) -> Result<OwnedFd> {
    let step = || format!("copy the disk template `{}`", template.display());
    let from = open(template, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Disk, step)?;
    let to = unnamed_file(directory)?;
    let length = rustix::fs::fstat(&from).failing(Kind::Disk, step)?.st_size as u64;
    ftruncate(&to, length).failing(Kind::Disk, step)?;
    let mut position = 0;
    while let Some(start) = found(seek(&from, SeekFrom::Data(position))).failing(Kind::Disk, step)? {
        let end = seek(&from, SeekFrom::Hole(start)).failing(Kind::Disk, step)?;
        let (mut read, mut write) = (start, start);
        while read < end {
            let wanted = usize::try_from(end - read).unwrap_or(usize::MAX);
            let copied = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut write), wanted)
                .failing(Kind::Disk, step)?;
            if copied == 0 {
                break;
            }
        }
        position = end;
    }
    Ok(to)
}

/// A file that is gone when its last user is: no crash can leave it behind. open(2), O_TMPFILE; by hand where the file system has none.
fn unnamed_file(directory: &Path) -> Result<OwnedFd> {
    let step = || format!("make a disk image in `{}`", directory.display());
    let mode = Mode::from_raw_mode(0o600);
    match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        other => return other.failing(Kind::Disk, step),
    }
    let path = directory.join(format!("image-{}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(&path, flags, mode).failing(Kind::Disk, step)?;
    rustix::fs::unlink(&path).failing(Kind::Disk, step)?;
    Ok(file)
}

/// ENXIO means that no data follows.
fn found(position: Result<u64, Errno>) -> Result<Option<u64>, Errno> {
    match position {
        Ok(position) => Ok(Some(position)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A configured loop device; it stays attached as long as this is open or something is mounted from it.
struct LoopDevice {
    path: String,
    _open: OwnedFd,
}

fn attach_loop(file: &OwnedFd) -> Result<LoopDevice> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = open("/dev/loop-control", flags, Mode::empty()).failing(Kind::Disk, || "open `/dev/loop-control`")?;
    // Somebody else may take the free device between the two calls; with 64 at it, each loses a few times.
    for _ in 0..1024 {
        let number = loop_device::free_device(control.as_fd()).failing(Kind::Disk, || "find a free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = match open(&path, flags, Mode::empty()) {
            // Made by the kernel a moment ago, its node may come later.
            Err(Errno::NOENT | Errno::NXIO) => continue,
            other => other.failing(Kind::Disk, || format!("open `{path}`"))?,
        };
        match loop_device::configure(device.as_fd(), file.as_fd(), 4096) {
            Ok(()) => return Ok(LoopDevice { path, _open: device }),
            Err(Errno::BUSY | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, || format!("attach the image to `{path}`")),
        }
    }
    Err(Error::new(Kind::Disk, "no loop device stays free long enough"))
}
