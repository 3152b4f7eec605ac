//! `delete`: removes the rest of a container.

use super::id::ContainerId;
use super::record::{Place, Record};
use super::signal::{hold, send};
use super::{Containers, group, protect};
use crate::cgroup::{self, Cgroup};
use crate::error::{Context, Error, Kind, Result};
use crate::hooks;
use crate::mounts::bundle::shown;
use crate::resctrl;
use crate::spec::config::{Config, Hook};
use crate::spec::state::{State, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One in an uninterruptible sleep is not waited for.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// After the usual time of a kill, look for what could hold the process.
const MOMENT: Duration = Duration::from_millis(200);

impl Containers {
    /// Returns the errors of `poststop` hooks. `force` kills a running container, and accepts a missing one or an
    /// unreadable record.
    pub fn delete(&self, id: &ContainerId, force: bool) -> Result<Vec<String>> {
        let mut was_alive = force && self.kill_first(id)?;
        let place = match Place::find(&self.root, id) {
            Err(error) if force && error.kind() == Kind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let record = match place.read() {
            Err(error) if force => {
                // Only an empty cgroup is certain to be its own: an older container may have had the path.
                if let Ok(config) = place.config() {
                    for path in group::unrecorded(&config, id) {
                        let _ = crate::cgroup::remove_empty(&path);
                    }
                    for path in unrecorded_classes(&config, id) {
                        let _ = std::fs::remove_dir(path);
                    }
                    protect::reap_disks(&config.annotations);
                }
                // Nothing is mounted before the record is written. Another one of this name may be elsewhere.
                let is_torn = error.kind() != Kind::NotFound;
                let roots = if is_torn { shown::shown(id.as_str())? } else { Vec::new() };
                let _lock = (!roots.is_empty()).then(|| place.lock_roots()).transpose()?;
                for root in roots {
                    shown::hide(id.as_str(), &root)?;
                }
                place.remove()?;
                return Ok(Vec::new());
            }
            other => other?,
        };
        match record.status(&place.path) {
            Status::Stopped => {}
            // As in runc, these are deleted. No `start` can follow.
            Status::Created | Status::Creating => was_alive |= kill(&record)?,
            _ if force => was_alive |= kill(&record)?,
            other => {
                let words = format!("cannot delete container {id} that is not stopped: {}", other.word());
                return Err(Error::new(Kind::State, words).hint("kill it first, or pass --force"));
            }
        }
        destroy(&place, &record, was_alive)
    }

    /// Before the lock: its holder may wait for the container. Without a readable record or a process it comes later.
    fn kill_first(&self, id: &ContainerId) -> Result<bool> {
        self.see(id).map_or(Ok(false), |(_, record)| kill(&record))
    }
}

/// Whether it was alive.
fn kill(record: &Record) -> Result<bool> {
    let Some(process) = hold(record)? else { return Ok(false) };
    let wait = |time: Duration| {
        let wait = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait))
            .failing(Kind::State, || "wait for the container's end")
    };
    if wait(Duration::ZERO)? > 0 {
        return Ok(false); // its parent has not reaped it yet
    }
    send(record, Signal::KILL).or_else(|error| if error.kind() == Kind::State { Ok(()) } else { Err(error) })?;
    let group = record.cgroup.as_ref().map(Cgroup::open).transpose()?;
    if let Some(group) = &group {
        // A frozen process does not die on v1. Without a freezer there is nothing to thaw.
        let _ = group.thaw();
    }
    let mut gone = wait(MOMENT)?;
    if gone == 0 {
        group.iter().for_each(Cgroup::thaw_all);
        gone = wait(KILL_WAIT)?;
    }
    if gone == 0 {
        return Err(Error::new(Kind::State, "container init still running"));
    }
    Ok(true)
}

/// What remains after the first process: others, cgroup, directory. The last hooks' failure stops nothing. A
/// container that was started and has ended by itself (not `was_alive`) has no process left in its own PID namespace.
/// What is in its cgroup came later, such as another container with this path.
pub(super) fn destroy(place: &Place, record: &Record, was_alive: bool) -> Result<Vec<String>> {
    if let Some(monitor) = record.monitor {
        monitor.wait(); // it reads the cgroup's counters
    }
    // A unit is stopped before its cgroup is removed.
    let group = record.cgroup.as_ref().filter(|group| record.systemd.is_some() || !group.remove_empty());
    if let Some(group) = group {
        let group = Cgroup::open(group)?;
        let is_busy = !group.is_gone() && (!record.own_pids || !group.processes()?.is_empty());
        // A `create` that was killed can have left processes, and the FIFO.
        let has_ended = !was_alive && record.pid != 0 && !place.fifo().exists();
        if is_busy && record.own_pids && has_ended {
            let _ = group.wait_until_empty(MOMENT); // an `exec` that did not find the namespace any more
            group.remove().map_err(Error::from)?;
        } else if is_busy {
            group.kill()?;
            group.thaw_all();
            group.wait_until_empty(KILL_WAIT)?;
        }
        let stopped = record.systemd.as_ref().map_or(Ok(()), |unit| group::stop(unit, &record.id));
        group.remove().map_err(Error::from)?;
        // Without the cgroup systemd has nothing left to stop.
        let _ = stopped;
    }
    // A `create` that was killed after systemd made the cgroup, before the record had it.
    if let (None, Some(unit)) = (&record.cgroup, &record.systemd) {
        let _ = group::stop(unit, &record.id); // stopping a missing unit succeeds
    }
    if let Some(group) = &record.resctrl {
        group.remove()?;
    }
    if record.shows_root {
        let _lock = place.lock_roots()?;
        shown::hide(&record.id, Path::new(&record.rootfs))?;
    }
    // Without a readable copy no hooks run.
    let hooks = place.late_hooks(record).unwrap_or_default().poststop;
    place.remove()?;
    protect::reap_disks(&record.annotations);
    Ok(poststop(&hooks, &record.state(Status::Stopped)))
}

/// Returns the errors: a failed hook stops no later one (runtime-spec, "Lifecycle").
pub(super) fn poststop(hooks: &[Hook], state: &State) -> Vec<String> {
    let failed = hooks.iter().filter_map(|hook| hooks::run("poststop", std::slice::from_ref(hook), state).err());
    failed.map(|error| error.engine_text()).collect()
}

impl Containers {
    /// Kind and path of what a killed `create` left. The kernel ends its process.
    pub(crate) fn left(&self) -> Vec<(&'static str, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| ContainerId::new(&name).ok()).flat_map(|id| of(&self.root, &id)).collect()
    }
}

fn of(root: &Path, id: &ContainerId) -> Vec<(&'static str, PathBuf)> {
    // A running `create` has the lock.
    let Some(place) = Place::attempt(root.join(id.as_str())) else { return Vec::new() };
    let (mut covered, mut classes) = (Vec::new(), Vec::new());
    let groups = match place.read() {
        Ok(record) if record.status(&place.path) == Status::Creating => {
            if record.shows_root {
                covered = shown::shown(id.as_str()).unwrap_or_default();
                covered.retain(|path| *path == Path::new(&record.rootfs));
            }
            record.cgroup.map(recorded).unwrap_or_default()
        }
        Err(error) if error.kind() == Kind::NotFound => {
            let config = place.config().ok();
            classes = config.as_ref().map_or(Vec::new(), |config| unrecorded_classes(config, id));
            config.map_or(Vec::new(), |config| group::unrecorded(&config, id))
        }
        _ => return Vec::new(),
    };
    let groups = groups.into_iter().map(|path| ("cgroup of a container", path));
    let covered = covered.into_iter().map(|path| ("capped root of a container", path));
    let classes = classes.into_iter().map(|path| ("resctrl group of a container", path));
    let place = [("container whose `create` was killed", place.path.clone())];
    place.into_iter().chain(groups).chain(classes).chain(covered).collect()
}

fn unrecorded_classes(config: &Config, id: &ContainerId) -> Vec<PathBuf> {
    config.linux.intel_rdt.as_ref().map_or(Vec::new(), |rdt| resctrl::unrecorded(rdt, id.as_str()))
}

fn recorded(record: cgroup::Record) -> Vec<PathBuf> {
    let mut paths: Vec<_> = record.paths().map(|(_, path)| path.to_path_buf()).filter(|path| path.exists()).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}
