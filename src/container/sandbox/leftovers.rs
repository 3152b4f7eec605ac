//! Cgroups and network devices of sandboxes whose supervisors have ended.

use crate::cgroup::{Hierarchy, leftovers, remove_leftover};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// Every group of a sandbox on this machine that this user could have made, running ones included: its id and its path.
pub(crate) fn groups() -> Vec<(String, PathBuf)> {
    // Where no hierarchy can be read, no group of ours can be.
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy).into_iter().map(|group| (group.id, group.path)).collect()
}

/// Ends what runs in the groups of the sandbox `id` and of its couriers and removes them. Says for each whether it is gone.
pub(crate) fn remove_groups(id: &str) -> Vec<(String, Result<bool>)> {
    let Ok(hierarchy) = Hierarchy::probe() else { return Vec::new() };
    leftovers(&hierarchy)
        .into_iter()
        .filter(|group| group.id == id || group.id.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')))
        .map(|group| (group.path.display().to_string(), remove_leftover(&group).map(|()| true)))
        .collect()
}

/// The devices of sandboxes that are gone; `directory` has the locks of their numbers.
pub(crate) fn left_devices(directory: &Path) -> Vec<String> {
    crate::net::leaks(directory)
}

/// Removes them. Says for each whether it is gone.
pub(crate) fn remove_devices(directory: &Path) -> Vec<(String, Result<bool>)> {
    crate::net::reap(directory)
}
