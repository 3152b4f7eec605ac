//! `pause`, `resume`, `update`, `events`: by the cgroup.

use super::id::ContainerId;
use super::record::{Place, Record};
use super::{Containers, group, signal};
use crate::cgroup::{Cgroup, CgroupPath, Hierarchy, OomNotifier};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::config::forget_unlimited_pids;
use crate::spec::resources::Resources;
use crate::spec::state::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

impl Containers {
    /// Freezes every process of a container.
    pub fn pause(&self, id: &ContainerId) -> Result<()> {
        let (place, record, group) = self.with_group(id)?;
        match record.status(&place.path) {
            Status::Running | Status::Created => group.freeze(),
            other => Err(Error::new(Kind::State, format!("container not running or created: {}", other.word()))),
        }
    }

    /// Thaws them.
    pub fn resume(&self, id: &ContainerId) -> Result<()> {
        let (path, record, group) = self.see_group(id)?;
        match record.status(&path) {
            Status::Paused => group.thaw(),
            _ => Err(Error::new(Kind::State, "container not paused")),
        }
    }

    /// Changes `limits` and the lines of resctrl; the others stay.
    pub fn update(&self, id: &ContainerId, limits: &Resources, schemata: &[String]) -> Result<()> {
        let (place, mut record, mut group) = self.with_group(id)?;
        if record.status(&place.path) == Status::Stopped {
            return Err(Error::new(Kind::State, "container not running"));
        }
        if !schemata.is_empty() {
            let resctrl = record.resctrl.as_ref().ok_or_else(|| {
                Error::new(Kind::Spec, "the container was made without `linux.intelRdt`")
                    .doing("change its share of the cache and of memory bandwidth")
                    .hint("leave out --l3-cache-schema and --mem-bw-schema")
            })?;
            resctrl.write(schemata)?;
        }
        // `update` does not change device rules.
        let mut limits = Resources { devices: Vec::new(), ..limits.clone() };
        forget_unlimited_pids(&mut limits, &record.oci_version);
        let limits = group.completed(&limits);
        group.widen(&Hierarchy::probe()?, &CgroupPath::parse(&record.cgroup_path)?, &limits)?;
        if let Some(unit) = &record.systemd {
            // systemd would restore its old limits at the next change.
            group::update(unit, &record.id, &limits)?;
        }
        group.update(&limits)?;
        record.cgroup = Some(group.record());
        place.write(&record)
    }

    /// One line of JSON.
    pub fn stats(&self, id: &ContainerId) -> Result<String> {
        let (path, record, group) = self.see_group(id)?;
        if record.status(&path) == Status::Stopped {
            return Err(Error::new(Kind::State, "container is not running"));
        }
        event("stats", id, Some(&group.stats()))
    }

    /// Passes `print` a line of JSON every `interval` and at each kill for lack of memory, until the container has
    /// ended.
    pub fn events(&self, id: &ContainerId, interval: Duration, mut print: impl FnMut(String)) -> Result<()> {
        let (_, record, group) = self.see_group(id)?;
        let init = signal::hold(&record)?.ok_or_else(|| Error::new(Kind::State, "container is not running"))?;
        let notifier = group.oom_notifier()?;
        let mut kills = group.evidence()?.oom_kills;
        let mut next = Instant::now() + interval;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut watched = vec![PollFd::new(&init, PollFlags::IN)];
            watched.extend(notifier.as_ref().map(OomNotifier::wait));
            match poll(&mut watched, Some(&wait)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.failing(Kind::State, || "watch the container")?,
            };
            let ended = !watched[0].revents().is_empty();
            let has_event = watched.get(1).is_some_and(|each| !each.revents().is_empty());
            if let Some(notifier) = notifier.as_ref().filter(|_| has_event) {
                notifier.clear();
            }
            // The cgroup may have ended with the container.
            let now = group.evidence().map_or(kills, |evidence| evidence.oom_kills);
            for _ in kills..now {
                print(event::<()>("oom", id, None)?);
            }
            kills = now;
            if ended {
                return Ok(());
            }
            if Instant::now() >= next {
                print(event("stats", id, Some(&group.stats()))?);
                next += interval;
            }
        }
    }

    /// Locked for a change.
    fn with_group(&self, id: &ContainerId) -> Result<(Place, Record, Cgroup)> {
        let place = Place::find(&self.root, id)?;
        let (_, record, group) = self.see_group(id)?;
        Ok((place, record, group))
    }

    fn see_group(&self, id: &ContainerId) -> Result<(PathBuf, Record, Cgroup)> {
        let (path, record) = self.see(id)?;
        let group = record.cgroup.as_ref().ok_or_else(|| Error::new(Kind::State, "the container has no cgroup"))?;
        let group = Cgroup::open(group)?;
        Ok((path, record, group))
    }
}

#[derive(Serialize)]
struct Event<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a T>,
}

fn event<T: Serialize>(kind: &str, id: &ContainerId, data: Option<&T>) -> Result<String> {
    serde_json::to_string(&Event { kind, id: id.as_str(), data })
        .map_err(|cause| Error::new(Kind::Internal, cause.to_string()))
}
