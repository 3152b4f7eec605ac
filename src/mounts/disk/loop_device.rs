//! Loop devices for images.

use crate::error::{Context, Error, Kind, Result};
use crate::sys::ioctl;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// It stays attached while this is open or mounted.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub path: String,
    pub open: OwnedFd,
}

pub(super) fn attach_loop(image: BorrowedFd<'_>, access: OFlags) -> Result<LoopDevice> {
    let flags = access | OFlags::CLOEXEC;
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Disk, || "open `/dev/loop-control`")?;
    // Another process may take the free device between the calls; with 64 of them, each loses a few times.
    for _ in 0..1024 {
        let number = ioctl::free_device(control.as_fd()).failing(Kind::Disk, || "find a free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = match open(&path, flags, Mode::empty()) {
            // The kernel may make the node a moment later.
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
