//! What is written down about a container's groups, and finding groups that nobody wrote down.

use super::Cgroup;
use super::controller::{Controller, Controllers};
use super::create::Group;
use super::devices::DeviceControl;
use super::directory::{self, Directory};
use super::hierarchy::Hierarchy;
use super::path::PREFIX;
use crate::error::{Context, Error, Kind, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A container's groups, for another process of ours. Part of a record that has the version.
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
    /// The groups' directories, by controller as v1 names it (v2: the empty name), as `state.json` of runc has them.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.groups.iter().flat_map(|group| {
            let v2 = group.v2.then_some("");
            let v1 = group.controllers.iter().filter(|_| !group.v2).map(|each| each.name_v1());
            // The one hierarchy of v1 without a controller.
            let named = (!group.v2 && group.controllers.is_empty()).then_some("systemd");
            v2.into_iter().chain(v1).chain(named).map(|name| (name, group.path.as_path()))
        })
    }

    /// Whether the container is frozen. Only the group that says so is opened; without one that can be frozen nothing is.
    pub(crate) fn is_frozen(&self) -> bool {
        let can = |group: &&GroupRecord| group.controllers.contains(&Controller::Freezer);
        let group = self.groups.iter().find(|group| group.v2).or_else(|| self.groups.iter().find(can));
        let opened = group.and_then(|group| group.open().ok().flatten());
        let alone = opened.map(|group| Cgroup { groups: vec![group], devices: DeviceControl::NotAsked });
        alone.is_some_and(|group| group.is_frozen().unwrap_or(false))
    }

    /// Removes the groups if nobody is in them and none is below them, which the kernel itself knows best; `false` if some are left.
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
    /// What to write down.
    pub(crate) fn record(&self) -> Record {
        let groups = self.groups.iter().map(|group| GroupRecord {
            path: group.directory.path().to_path_buf(),
            controllers: group.controllers.iter().collect(),
            v2: group.is_v2,
        });
        Record { groups: groups.collect() }
    }

    /// Opens the groups that were written down. Those that are gone are left out.
    pub(crate) fn open(record: &Record) -> Result<Cgroup> {
        let mut groups = Vec::with_capacity(record.groups.len());
        for each in &record.groups {
            groups.extend(each.open()?);
        }
        Ok(Cgroup { groups, devices: DeviceControl::NotAsked })
    }

    /// Whether every group is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.groups.is_empty()
    }
}

/// A task's group that was found in the hierarchies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Leftover {
    /// The task's id.
    pub id: String,
    pub path: PathBuf,
    /// How many processes are in it.
    pub processes: usize,
}

/// Every task's group that this user could have made, running tasks' included: who is running knows the caller.
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
                // A group that vanishes while it is read is none.
                if group.processes(&mut processes).is_ok() {
                    found.push(Leftover { path: group.path().to_path_buf(), id, processes: processes.len() });
                }
            }
        }
    }
    // Of each task v2's group first, which `bases` begins with: it can end all processes at once.
    found.sort_by(|one: &Leftover, other| one.id.cmp(&other.id));
    found
}

/// Ends what is in a group that was found and removes it.
pub(crate) fn remove_leftover(found: &Leftover) -> Result<()> {
    let directory = match Directory::open(&found.path) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno).failing(Kind::Cgroup, || format!("open the group `{}`", found.path.display())),
    };
    let is_v2 = directory.read("cgroup.controllers").is_ok();
    let groups = vec![Group { directory, controllers: Controllers::NONE, is_v2 }];
    let cgroup = Cgroup { groups, devices: DeviceControl::NotAsked };
    cgroup.kill()?;
    cgroup.remove().map_err(Error::from)
}

/// The groups in which tasks' groups are, one for each hierarchy, v2's first.
fn bases(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let v2 = hierarchy.v2.iter().filter_map(|tree| tree.delegated());
    let v1 = hierarchy.v1.iter().map(|tree| tree.own_directory());
    v2.chain(v1).collect()
}
