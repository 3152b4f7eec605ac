//! Cgroups and network devices of sandboxes whose supervisors have ended.

use crate::cgroup::{Hierarchy, leftovers, remove_leftover};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// Id and path of all that this user could have made, running ones included.
pub(crate) fn groups() -> Vec<(String, PathBuf)> {
    // Without a hierarchy no sandbox has a cgroup.
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy).into_iter().map(|group| (group.id, group.path)).collect()
}

/// Also those of its couriers, with their processes. Returns a result for each.
pub(crate) fn remove_groups(id: &str) -> Vec<(String, Result<bool>)> {
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy)
        .into_iter()
        .filter(|group| group.id == id || group.id.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')))
        .map(|group| (group.path.display().to_string(), remove_leftover(&group).map(|()| true)))
        .collect()
}

/// `directory` has the locks of their numbers.
pub(crate) fn left_devices(directory: &Path) -> Vec<String> {
    crate::net::leaks(directory)
}

pub(crate) fn remove_devices(directory: &Path) -> Vec<(String, Result<bool>)> {
    crate::net::reap(directory)
}
