//! The kernel's counts of limits that were hit, and a descriptor that announces one.

use super::controller::Controller;
use super::counters::flat;
use super::directory::Directory;
use super::group::{Cgroup, Group};
use crate::error::{Context, Kind, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, OwnedFd};

/// Proof of a limit that was hit, counted by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// Processes that the kernel killed at the container's memory limit.
    pub oom_kills: u64,
    /// How often the limit was reached and no memory could be reclaimed.
    pub oom_events: u64,
    /// Forks that the limit of tasks refused.
    pub pids_max_hits: u64,
}

impl Cgroup {
    /// Opens the files of [`Cgroup::usage`] and [`Cgroup::evidence`] ahead of the first reading. A later reading reports
    /// the error of a file that cannot be read.
    pub(crate) fn open_counters(&self) {
        let _ = (self.usage(), self.evidence());
    }

    /// Reads which limits were hit.
    pub(crate) fn evidence(&self) -> Result<Evidence> {
        let mut evidence = Evidence::default();
        if let Some(group) = self.group(Controller::Memory) {
            let events = if group.is_v2 { "memory.events" } else { "memory.oom_control" };
            let text = read_events(group, events)?;
            let counts = flat(&text);
            let of = |key: &str| counts.get(key).copied().unwrap_or(0);
            evidence.oom_kills = of("oom_kill");
            // v1's `memory.failcnt` proves nothing: it counts each time the limit was touched, mostly with success.
            evidence.oom_events = if group.is_v2 { of("oom") } else { of("oom_kill") };
        }
        if let Some(group) = self.group(Controller::Pids) {
            // On both versions since 4.9.
            let text = read_events(group, "pids.events")?;
            evidence.pids_max_hits = flat(&text).get("max").copied().unwrap_or(0);
        }
        Ok(evidence)
    }

    /// A descriptor that is readable after a memory event; not each event is a kill, so read [`Cgroup::evidence`] then.
    /// v2: inotify on `memory.events`. v1: an eventfd, which also counts the removal of the group. `None` without a memory
    /// controller.
    pub(crate) fn oom_notifier(&self) -> Result<Option<OwnedFd>> {
        let Some(group) = self.group(Controller::Memory) else { return Ok(None) };
        if group.is_v2 { watch_v2(&group.directory) } else { watch_v1(&group.directory) }.map(Some)
    }
}

fn read_events(group: &Group, file: &str) -> Result<String> {
    let step = || format!("read `{}`", group.directory.path().join(file).display());
    group.directory.count(file).failing(Kind::Cgroup, step)
}

fn watch_v2(directory: &Directory) -> Result<OwnedFd> {
    let path = directory.path().join("memory.events");
    let step = || format!("watch `{}`", path.display());
    let watch =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).failing(Kind::Cgroup, step)?;
    inotify::add_watch(&watch, &path, inotify::WatchFlags::MODIFY).failing(Kind::Cgroup, step)?;
    Ok(watch)
}

/// cgroup-v1/memory.rst, "OOM Control".
fn watch_v1(directory: &Directory) -> Result<OwnedFd> {
    let step = || format!("watch `{}`", directory.path().join("memory.oom_control").display());
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).failing(Kind::Cgroup, step)?;
    let control = directory.reader("memory.oom_control").failing(Kind::Cgroup, step)?;
    let registration = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
    directory.set("cgroup.event_control", &registration)?;
    Ok(event)
}
