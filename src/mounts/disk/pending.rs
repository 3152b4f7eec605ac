//! A disk that a helper makes in parallel.

use super::kept;
use super::maker::{Maker, Order};
use super::template::Template;
use super::{DiskFile, Size, Workshop};
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::{Channel, Packet};
use crate::spec::root::Ids;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// The caller does not wait for the loop device and the mount (1 to 2 ms).
#[derive(Debug)]
pub(crate) struct Pending {
    channel: Channel,
    is_kept: bool,
}

/// Started before the whole request was read.
struct Ahead {
    workshop: Workshop,
    size: Size,
    disk: (Pending, Maker),
}

/// The first sandbox with this description takes it.
static AHEAD: Mutex<Option<Ahead>> = Mutex::new(None);

/// Starts a disk that the request will probably need. [`begin`] reports a failure.
pub(crate) fn begin_ahead(workshop: &Workshop, size: Size) {
    let Ok(mut ahead) = AHEAD.lock() else { return };
    if ahead.is_none()
        && let Ok(disk) = make(workshop, size, &DiskFile::Unnamed)
    {
        *ahead = Some(Ahead { workshop: workshop.clone(), size, disk });
    }
}

/// A background process is not the parent of the helper.
pub(crate) fn forget_ahead() {
    if let Ok(mut ahead) = AHEAD.lock() {
        *ahead = None;
    }
}

/// Makes the template if it is missing.
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
    /// A detached mount, invisible to other processes. The user's files on a kept disk belong to `user` again;
    /// directories have no owner yet.
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
