//! Groups with limits below those of a sandbox, for the process trees that enter it.
//!
//! On v2 a group with processes gives its children no controllers (cgroup-v2.rst, "No Internal Process Constraint").
//! The first child with limits therefore moves the sandbox's processes into a leaf.

use super::controller::{Controller, Controllers};
use super::directory;
use super::group::{Cgroup, Group, LEAF};
use super::limits;
use super::make::move_processes;
use super::plan::{self, controllers};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::resources::Resources;
use crate::sys::weaken;

impl Cgroup {
    /// A process tree in the child can be killed whatever it forks. This group's limits and counters hold for it too.
    pub(crate) fn make_child(&self, name: &str, limits: &Resources) -> Result<Cgroup> {
        let mut writes = plan::writes(limits, |controller| self.is_v1(controller))?;
        let mut wanted = controllers(&writes);
        if !wanted.is_empty() && self.v2().is_none() {
            wanted.insert(Controller::Cpuacct); // its processor time
        }
        let freezer = self.freezer()?;
        let mut parents = vec![freezer];
        for controller in wanted.iter() {
            let parent = self.group(controller).ok_or_else(|| unenforceable(controller, "it is not there"))?;
            if parent.is_v2 {
                self.enable_below(parent, Controllers::of(&[controller]))?;
            } else if controller == Controller::Memory {
                check_hierarchy(parent)?;
            }
            if !parents.iter().any(|each| std::ptr::eq(*each, parent)) {
                parents.push(parent);
            }
        }
        let mut child = Cgroup::of(Vec::with_capacity(parents.len()));
        if weaken::is_off("job-limits") {
            writes.clear();
        }
        let made =
            parents.iter().try_for_each(|parent| make_one(parent, name, wanted).map(|group| child.groups.push(group)));
        match made.and_then(|()| limits::write_all(&child, &writes)) {
            Ok(()) => Ok(child),
            Err(error) => {
                // A remaining group is removed with the sandbox's.
                child.try_remove();
                Err(error)
            }
        }
    }

    /// Returns whether the groups are gone; never blocks.
    pub(crate) fn try_remove(&self) -> bool {
        self.groups.iter().all(|group| directory::remove(group.directory.path(), 0).is_ok())
    }

    /// Freezes the processes while they move to a leaf, so that none forks meanwhile.
    fn enable_below(&self, group: &Group, wanted: Controllers) -> Result<()> {
        let enabled = Controllers::parse_v2(&group.directory.get("cgroup.subtree_control")?);
        let missing = wanted.without(enabled);
        if missing.is_empty() {
            return Ok(());
        }
        let order: Vec<_> = missing.iter().filter_map(Controller::name_v2).map(|name| format!("+{name}")).collect();
        let was_frozen = self.is_frozen()?;
        if !was_frozen {
            self.freeze()?;
        }
        let moved = move_processes(&group.directory, LEAF)
            .and_then(|()| group.directory.set("cgroup.subtree_control", &order.join(" ")));
        // Thaw after an error too.
        let thawed = if was_frozen { Ok(()) } else { self.thaw() };
        moved.and(thawed)
    }
}

fn make_one(parent: &Group, name: &str, wanted: Controllers) -> Result<Group> {
    let path = parent.directory.path().join(name);
    let step = || format!("make the group `{}`", path.display());
    if !directory::make(&path).failing(Kind::Cgroup, step)? {
        return Err(Error::new(Kind::Cgroup, "it exists").doing(step()));
    }
    let directory = parent.directory.child(name).failing(Kind::Cgroup, step)?;
    let controllers = if parent.is_v2 { wanted.and(parent.controllers) } else { parent.controllers };
    Ok(Group { directory, controllers, is_v2: parent.is_v2 })
}

/// Before kernel 5.11 the children of a v1 memory group may not count to it.
fn check_hierarchy(parent: &Group) -> Result<()> {
    match parent.directory.read("memory.use_hierarchy") {
        Ok(text) if text.trim() == "0" => {
            Err(unenforceable(Controller::Memory, "groups below it do not count to its limit"))
        }
        _ => Ok(()),
    }
}

fn unenforceable(controller: Controller, why: &str) -> Error {
    let words = format!("the sandbox's group of the controller `{}`: {why}", controller.name_v1());
    Error::new(Kind::LimitUnenforceable, words)
        .doing("make a group with limits below the sandbox's")
        .hint("leave the job's own limits out: those of the task hold for it")
}
