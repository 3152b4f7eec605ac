//! Cgroups and network devices of sandboxes whose supervisors have ended.

use crate::cgroup::{Hierarchy, leftovers, remove_leftover};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// Every sandbox cgroup on this machine that this user could have made, running ones included: id and path.
pub(crate) fn groups() -> Vec<(String, PathBuf)> {
    // Without a readable hierarchy no sandbox has a cgroup.
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy).into_iter().map(|group| (group.id, group.path)).collect()
}

/// Ends the processes in the cgroups of the sandbox `id` and of its couriers, and removes the cgroups. Returns a result
/// for each.
pub(crate) fn remove_groups(id: &str) -> Vec<(String, Result<bool>)> {
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy)
        .into_iter()
        .filter(|group| group.id == id || group.id.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')))
        .map(|group| (group.path.display().to_string(), remove_leftover(&group).map(|()| true)))
        .collect()
}

/// The devices of ended sandboxes; `directory` has the locks of their numbers.
pub(crate) fn left_devices(directory: &Path) -> Vec<String> {
    crate::net::leaks(directory)
}

/// Removes the devices of ended sandboxes. Returns a result for each.
pub(crate) fn remove_devices(directory: &Path) -> Vec<(String, Result<bool>)> {
    crate::net::reap(directory)
}
