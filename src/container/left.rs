//! What a `create` left that was killed: `delete --force` removes it, `doctor --leaks` shows it.

use super::id::ContainerId;
use super::record::Place;
use super::{Containers, group};
use crate::cgroup;
use crate::error::Kind;
use crate::spec::state::Status;
use std::path::{Path, PathBuf};

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
