//! The kernel's counts of hit limits, and a notifier.

use super::controller::Controller;
use super::counters::flat;
use super::directory::Directory;
use super::group::{Cgroup, Group};
use crate::error::{Context, Kind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// Processes that the kernel killed at the memory limit.
    pub oom_kills: u64,
    /// How often the limit was reached and no memory could be reclaimed.
    pub oom_events: u64,
    /// Forks that the limit of tasks refused.
    pub pids_max_hits: u64,
}

impl Cgroup {
    /// Opens the counters' files ahead; the first reading reports errors.
    pub(crate) fn open_counters(&self) {
        let _ = (self.usage(), self.evidence());
    }

    pub(crate) fn evidence(&self) -> Result<Evidence> {
        let mut evidence = Evidence::default();
        if let Some(group) = self.group(Controller::Memory) {
            (evidence.oom_kills, evidence.oom_events) = if group.is_v2 { memory_v2(group)? } else { memory_v1(group)? };
        }
        if let Some(group) = self.group(Controller::Pids) {
            // On both versions since 4.9.
            let max = |text: &str| flat(text).get("max").copied().unwrap_or(0);
            evidence.pids_max_hits = match group.leaf() {
                None => max(&read_events(&group.directory, "pids.events")?),
                // Before 6.11 the kernel counts a refused fork in the group of the process.
                Some(leaf) => {
                    max(&read_local(&group.directory, "pids.events")?)
                        + max(&leaf.count("pids.events").unwrap_or_default())
                }
            };
        }
        Ok(evidence)
    }

    pub(crate) fn is_memory_v1(&self) -> bool {
        self.group(Controller::Memory).is_some_and(|group| !group.is_v2)
    }

    /// Not each event is a kill: read [`Cgroup::evidence`] then. `None` without the controller.
    pub(crate) fn oom_notifier(&self) -> Result<Option<OomNotifier>> {
        let Some(group) = self.group(Controller::Memory) else { return Ok(None) };
        if group.is_v2 { watch_v2(&group.directory) } else { watch_v1(&group.directory) }.map(Some)
    }
}

/// v2 polls `memory.events` for priority events. inotify's end waits 8 to 20 ms for a grace period of the kernel, at
/// each task's end. v1's eventfd also counts the removal of the group.
#[derive(Debug)]
pub(crate) struct OomNotifier {
    file: OwnedFd,
    is_v2: bool,
}

impl OomNotifier {
    pub(crate) fn wait(&self) -> PollFd<'_> {
        let flags = if self.is_v2 { PollFlags::PRI } else { PollFlags::IN };
        PollFd::from_borrowed_fd(self.file.as_fd(), flags)
    }

    /// An error is that of a removed group, whose members have ended.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 8];
        // A read from offset 0 tells the kernel which events this descriptor has seen (kernfs_seq_show).
        let _ = if self.is_v2 {
            rustix::io::pread(&self.file, &mut bytes, 0)
        } else {
            rustix::io::read(&self.file, &mut bytes)
        };
    }
}

/// Kills, and how often the limit was reached. v1's `memory.failcnt` counts each touch of the limit, mostly with
/// success.
fn memory_v1(group: &Group) -> Result<(u64, u64)> {
    let kills = flat(&read_events(&group.directory, "memory.oom_control")?).get("oom_kill").copied().unwrap_or(0);
    Ok((kills, kills))
}

/// `memory.events` also counts groups below at their own limits. They have such limits beside a leaf only.
fn memory_v2(group: &Group) -> Result<(u64, u64)> {
    let all = read_events(&group.directory, "memory.events")?;
    let Some(leaf) = group.leaf() else { return Ok(memory_counts(&all, &all, "")) };
    let own = read_local(&group.directory, "memory.events")?;
    // `pids` alone may be enabled in it.
    Ok(memory_counts(&all, &own, &read_local(&leaf, "memory.events").unwrap_or_default()))
}

fn memory_counts(all: &str, own: &str, leaf: &str) -> (u64, u64) {
    let of = |text: &str, key: &str| flat(text).get(key).copied().unwrap_or(0);
    let events = of(own, "oom");
    // At this group's limit the kernel chooses a process of any group below.
    let kills = if events > 0 { of(all, "oom_kill") } else { of(own, "oom_kill") + of(leaf, "oom_kill") };
    (kills, events)
}

/// The `.local` file counts the group's own limits (5.2; `pids` 6.11).
fn read_local(directory: &Directory, file: &str) -> Result<String> {
    directory.count(&format!("{file}.local")).or_else(|_| read_events(directory, file))
}

fn read_events(directory: &Directory, file: &str) -> Result<String> {
    let step = || format!("read `{}`", directory.path().join(file).display());
    directory.count(file).failing(Kind::Cgroup, step)
}

fn watch_v2(directory: &Directory) -> Result<OomNotifier> {
    let step = || format!("watch `{}`", directory.path().join("memory.events").display());
    let notifier = OomNotifier { file: directory.reader("memory.events").failing(Kind::Cgroup, step)?, is_v2: true };
    notifier.clear();
    Ok(notifier)
}

/// cgroup-v1/memory.rst, "OOM Control".
fn watch_v1(directory: &Directory) -> Result<OomNotifier> {
    let step = || format!("watch `{}`", directory.path().join("memory.oom_control").display());
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).failing(Kind::Cgroup, step)?;
    let control = directory.reader("memory.oom_control").failing(Kind::Cgroup, step)?;
    let registration = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
    directory.set("cgroup.event_control", &registration)?;
    Ok(OomNotifier { file: event, is_v2: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_at_the_limit_of_a_group_below_is_not_this_groups() {
        let (none, one, hit) = ("oom 0\noom_kill 0\n", "oom 1\noom_kill 1\n", "oom 1\noom_kill 0\n");
        for (all, own, leaf, expected) in [
            (none, none, "", (0, 0)),
            (one, one, "", (1, 1)),
            // A job at its own limit.
            (one, none, none, (0, 0)),
            // This group at its limit: the victim was in the leaf.
            (one, hit, one, (1, 1)),
            // The machine without memory.
            ("oom 0\noom_kill 1\n", none, "oom 0\noom_kill 1\n", (1, 0)),
        ] {
            assert_eq!(memory_counts(all, own, leaf), expected, "{all} {own} {leaf}");
        }
    }
}
