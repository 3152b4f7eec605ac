//! A group below a task's for one process tree, so that the whole tree can be killed whatever its processes fork.

use super::Cgroup;
use super::create::Group;
use super::devices::DeviceControl;
use super::directory;
use crate::error::{Context, Error, Kind, Result};

impl Cgroup {
    /// Makes the group `name` below this one, in the hierarchy that can freeze and kill. Limits and counters stay those of this group.
    pub(crate) fn make_child(&self, name: &str) -> Result<Cgroup> {
        let parent = self.freezer()?;
        let path = parent.directory.path().join(name);
        let step = || format!("make the group `{}`", path.display());
        if !directory::make(&path).failing(Kind::Cgroup, step)? {
            return Err(Error::new(Kind::Cgroup, "it exists already").doing(step()));
        }
        let directory = parent.directory.child(name).failing(Kind::Cgroup, step)?;
        let group = Group { directory, controllers: parent.controllers, is_v2: parent.is_v2 };
        Ok(Cgroup { groups: vec![group], devices: DeviceControl::NotAsked })
    }

    /// Removes the groups if no process is left in them; whether they are gone. Never waits.
    pub(crate) fn try_remove(&self) -> bool {
        self.groups.iter().all(|group| directory::remove(group.directory.path(), 0).is_ok())
    }
}
