//! `delete`: all that is left of a container goes.

use super::id::ContainerId;
use super::record::{Place, Record};
use super::signal::{hold, send};
use super::{Containers, group};
use crate::cgroup::{self, Cgroup};
use crate::error::{Context, Error, Kind, Result};
use crate::hooks;
use crate::spec::state::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a killed process may take to be gone: one in an uninterruptible sleep is not ours to wait for.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// What a killed process mostly takes: after it, what could hold the process is looked for.
const MOMENT: Duration = Duration::from_millis(200);

impl Containers {
    /// Removes a container, and returns what its `poststop` hooks said against it. With `force` one that runs is killed, one that is not there is
    /// removed already, and one of which nothing can be read is swept away.
    pub fn delete(&self, id: &ContainerId, force: bool) -> Result<Vec<String>> {
        if force {
            self.kill_first(id)?;
        }
        let place = match Place::find(&self.root, id) {
            Err(error) if force && error.kind() == Kind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let record = match place.read() {
            Err(_) if force => {
                // Only a group that is empty is known to be this container's: its path may be another one's, who was there first.
                let left = place.config().map(|config| group::unrecorded(&config, id)).unwrap_or_default();
                for path in left {
                    let _ = crate::cgroup::remove_empty(&path);
                }
                place.remove()?;
                return Ok(Vec::new());
            }
            other => other?,
        };
        match record.status(&place.path) {
            Status::Stopped => {}
            // Nobody can start it any more: that it waits is no reason to keep it. runc has it so.
            Status::Created | Status::Creating => kill(&record)?,
            _ if force => kill(&record)?,
            other => {
                let words = format!("cannot delete container {id} that is not stopped: {}", other.word());
                return Err(Error::new(Kind::State, words).hint("kill it first, or pass --force"));
            }
        }
        destroy(&place, &record)
    }

    /// Before the lock is waited for: whoever has it may wait for the container. One that cannot be read, or has no process yet, comes later.
    fn kill_first(&self, id: &ContainerId) -> Result<()> {
        self.see(id).map_or(Ok(()), |(_, record)| kill(&record))
    }
}

fn kill(record: &Record) -> Result<()> {
    if let Some(process) = hold(record)? {
        send(record, Signal::KILL).or_else(|error| if error.kind() == Kind::State { Ok(()) } else { Err(error) })?;
        let group = record.cgroup.as_ref().map(Cgroup::open).transpose()?;
        if let Some(group) = &group {
            // A frozen process does not die on v1. Where nothing can be frozen there is nothing to thaw.
            let _ = group.thaw();
        }
        let wait = |time: Duration| {
            let wait = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait))
                .failing(Kind::State, || "wait for the container's end")
        };
        let mut gone = wait(MOMENT)?;
        if gone == 0 {
            group.iter().for_each(Cgroup::thaw_all);
            gone = wait(KILL_WAIT)?;
        }
        if gone == 0 {
            return Err(Error::new(Kind::State, "container init still running"));
        }
    }
    Ok(())
}

/// Removes what a container without a first process has left: other processes, cgroup, directory; then the last hooks run, whose failure stops
/// nothing.
pub(super) fn destroy(place: &Place, record: &Record) -> Result<Vec<String>> {
    if let Some(monitor) = record.monitor {
        monitor.wait(); // it reads the group's counters
    }
    // A unit is stopped before its group goes.
    let group = record.cgroup.as_ref().filter(|group| record.systemd.is_some() || !group.remove_empty());
    if let Some(group) = group {
        let group = Cgroup::open(group)?;
        if !group.is_gone() && (!record.own_pids || !group.processes()?.is_empty()) {
            group.kill()?;
            group.thaw_all();
            group.wait_until_empty(KILL_WAIT)?;
        }
        let stopped = record.systemd.as_ref().map_or(Ok(()), |unit| group::stop(unit, &record.id));
        group.remove().map_err(Error::from)?;
        // With the group gone there is nothing left that a systemd could be asked for.
        let _ = stopped;
    }
    // Its `create` was killed when systemd had made the group, and before that was written down.
    if let (None, Some(unit)) = (&record.cgroup, &record.systemd) {
        let _ = group::stop(unit, &record.id); // a unit that never was is stopped as well
    }
    if let Some(group) = &record.resctrl {
        group.remove()?;
    }
    // Without a readable copy no hook is known.
    let hooks = place.late_hooks(record).unwrap_or_default().poststop;
    place.remove()?;
    let state = record.state(Status::Stopped);
    let failed = hooks.iter().filter_map(|hook| hooks::run("poststop", std::slice::from_ref(hook), &state).err());
    Ok(failed.map(|error| error.engine_text()).collect())
}

impl Containers {
    /// What is there of containers that no `create` completes any more: a kind and a path each. The kernel ends the process of such a container.
    pub(crate) fn left(&self) -> Vec<(&'static str, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| ContainerId::new(&name).ok()).flat_map(|id| of(&self.root, &id)).collect()
    }
}

fn of(root: &Path, id: &ContainerId) -> Vec<(&'static str, PathBuf)> {
    // A `create` that is at work has the lock.
    let Some(place) = Place::attempt(root.join(id.as_str())) else { return Vec::new() };
    let groups = match place.read() {
        Ok(record) if record.status(&place.path) == Status::Creating => record.cgroup.map(recorded).unwrap_or_default(),
        Err(error) if error.kind() == Kind::NotFound => {
            place.config().map(|config| group::unrecorded(&config, id)).unwrap_or_default()
        }
        _ => return Vec::new(),
    };
    let groups = groups.into_iter().map(|path| ("cgroup of a container", path));
    [("container whose `create` was killed", place.path.clone())].into_iter().chain(groups).collect()
}

fn recorded(record: cgroup::Record) -> Vec<PathBuf> {
    let mut paths: Vec<_> = record.paths().map(|(_, path)| path.to_path_buf()).filter(|path| path.exists()).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}
