//! The record of a container's groups, and the search for task groups without a record.

use super::controller::{Controller, Controllers};
use super::directory::{self, Directory};
use super::group::{Cgroup, Group};
use super::hierarchy::Hierarchy;
use super::path::PREFIX;
use crate::error::{Context, Error, Kind, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Part of a record that has a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    groups: Vec<GroupRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupRecord {
    path: PathBuf,
    controllers: Vec<Controller>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    v2: bool,
}

impl Record {
    /// By the controller's v1 name, as in runc's `state.json`; empty for v2.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.groups.iter().flat_map(|group| {
            let v2 = group.v2.then_some("");
            let v1 = group.controllers.iter().filter(|_| !group.v2).map(|each| each.name_v1());
            // The only v1 hierarchy without a controller.
            let named = (!group.v2 && group.controllers.is_empty()).then_some("systemd");
            v2.into_iter().chain(v1).chain(named).map(|name| (name, group.path.as_path()))
        })
    }

    pub(crate) fn is_frozen(&self) -> bool {
        let has_freezer = |group: &&GroupRecord| group.controllers.contains(&Controller::Freezer);
        let group = self.groups.iter().find(|group| group.v2).or_else(|| self.groups.iter().find(has_freezer));
        let opened = group.and_then(|group| group.open().ok().flatten());
        opened.is_some_and(|group| Cgroup::of(vec![group]).is_frozen().unwrap_or(false))
    }

    /// `false` if some have a process or a group below.
    pub(crate) fn remove_empty(&self) -> bool {
        self.groups.iter().all(|group| directory::remove_empty(&group.path))
    }
}

impl GroupRecord {
    /// `None` if it is gone.
    fn open(&self) -> Result<Option<Group>> {
        let directory = match Directory::open(&self.path) {
            Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
            other => other.failing(Kind::Cgroup, || format!("open the group `{}`", self.path.display()))?,
        };
        Ok(Some(Group { directory, controllers: self.controllers.iter().copied().collect(), is_v2: self.v2 }))
    }
}

impl Cgroup {
    pub(crate) fn record(&self) -> Record {
        let groups = self.groups.iter().map(|group| GroupRecord {
            path: group.directory.path().to_path_buf(),
            controllers: group.controllers.iter().collect(),
            v2: group.is_v2,
        });
        Record { groups: groups.collect() }
    }

    /// Skips groups that are gone.
    pub(crate) fn open(record: &Record) -> Result<Cgroup> {
        let mut groups = Vec::with_capacity(record.groups.len());
        for each in &record.groups {
            groups.extend(each.open()?);
        }
        Ok(Cgroup::of(groups))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.groups.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Leftover {
    pub id: String,
    pub path: PathBuf,
    /// With those of the groups below: jobs with limits have their own.
    pub processes: usize,
}

/// Includes running tasks: the caller knows which run.
pub(crate) fn leftovers(hierarchy: &Hierarchy) -> Vec<Leftover> {
    let mut found = Vec::new();
    for base in bases(hierarchy) {
        let Ok(base) = Directory::open(&base) else { continue };
        for name in base.children().unwrap_or_default() {
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).map(str::to_owned) else {
                continue;
            };
            let mut processes = Vec::new();
            if let Ok(group) = base.child(&name) {
                // Skip a group that vanishes while it is read.
                if group.processes(&mut processes).is_ok() {
                    found.push(Leftover { path: group.path().to_path_buf(), id, processes: processes.len() });
                }
            }
        }
    }
    // Stable: the v2 group, which can end all processes at once, stays first for each task.
    found.sort_by(|one: &Leftover, other| one.id.cmp(&other.id));
    found
}

/// Kills its processes too.
pub(crate) fn remove_leftover(found: &Leftover) -> Result<()> {
    let directory = match Directory::open(&found.path) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno).failing(Kind::Cgroup, || format!("open the group `{}`", found.path.display())),
    };
    let is_v2 = directory.read("cgroup.controllers").is_ok();
    let cgroup = Cgroup::of(vec![Group { directory, controllers: Controllers::NONE, is_v2 }]);
    cgroup.kill()?;
    cgroup.remove().map_err(Error::from)
}

/// The parents of task groups, one for each hierarchy, v2 first.
fn bases(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let v2 = hierarchy.v2.iter().filter_map(|tree| tree.delegated());
    let v1 = hierarchy.v1.iter().map(|tree| tree.own_directory());
    v2.chain(v1).collect()
}
