//! A descriptor that becomes readable when the kernel kills in the container for want of memory.

use super::Cgroup;
use super::controller::Controller;
use super::directory::Directory;
use crate::error::{Context, Kind, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use std::os::fd::{AsRawFd, OwnedFd};

impl Cgroup {
    /// Readable after an event of memory: read [`Cgroup::evidence`] then, for not each of them is a kill. v2 tells of
    /// changes to `memory.events`, v1 counts into an eventfd (and also when the group goes away). `None` without a memory
    /// controller.
    pub(crate) fn oom_notifier(&self) -> Result<Option<OwnedFd>> {
        let Some(group) = self.group(Controller::Memory) else { return Ok(None) };
        if group.is_v2 { watch_v2(&group.directory) } else { watch_v1(&group.directory) }.map(Some)
    }
}

fn watch_v2(directory: &Directory) -> Result<OwnedFd> {
    let path = directory.path().join("memory.events");
    let words = || format!("watch `{}`", path.display());
    let watch =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).failing(Kind::Cgroup, words)?;
    inotify::add_watch(&watch, &path, inotify::WatchFlags::MODIFY).failing(Kind::Cgroup, words)?;
    Ok(watch)
}

/// cgroup-v1/memory.rst, "OOM Control".
fn watch_v1(directory: &Directory) -> Result<OwnedFd> {
    let words = || format!("watch `{}`", directory.path().join("memory.oom_control").display());
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).failing(Kind::Cgroup, words)?;
    let control = directory.reader("memory.oom_control").failing(Kind::Cgroup, words)?;
    let order = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
    directory.set("cgroup.event_control", &order)?;
    Ok(event)
}
