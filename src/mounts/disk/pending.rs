//! A disk in the making: a helper process makes it while the caller goes on.

use super::description::{DiskFile, Size, Workshop};
use super::kept;
use super::maker::{Maker, Order};
use super::template::Template;
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::{Channel, Packet};
use crate::spec::root::Ids;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// A disk that a helper process is making, so that the loop device and the mount (1 to 2 ms) cost no time of their own.
#[derive(Debug)]
pub(crate) struct Pending {
    channel: Channel,
    /// Whether it is one of an earlier sandbox.
    is_kept: bool,
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
                    kept::renew(mounted.as_fd(), user)?;
                }
                Ok(mounted)
            }
            Some(Packet { bytes, .. }) => Err(wire::from_bytes(&bytes)),
            None => Err(Error::new(Kind::Lost, "the process that makes the disk died")),
        }
    }
}
