//! `state`, `list`, `ps`.

use super::Containers;
use super::id::ContainerId;
use super::record::{self, Record};
use crate::cgroup::Cgroup;
use crate::error::{Error, Kind, Result};
use crate::spec::state::Status;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container's data for callers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The configuration's version of the specification.
    pub oci_version: String,
    /// Its name.
    pub id: String,
    /// The first process; 0 after its end.
    pub pid: i32,
    /// Its status.
    pub status: Status,
    /// The bundle's path.
    pub bundle: String,
    /// The root directory on the host.
    pub rootfs: String,
    /// RFC 3339 with nanoseconds.
    pub created: String,
    /// The caller's annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The user that created it.
    pub owner: String,
}

impl Containers {
    /// The state of one container.
    pub fn state(&self, id: &ContainerId) -> Result<Snapshot> {
        let (path, record) = self.see(id)?;
        // runc reports the owner in `list` only.
        Ok(Snapshot { owner: String::new(), ..snapshot(record, &path) })
    }

    /// All containers by name, and an error sentence for each unreadable one.
    pub fn list(&self) -> Result<(Vec<Snapshot>, Vec<String>)> {
        let entries = match std::fs::read_dir(&self.root) {
            // No container exists yet; a directory that the caller named must exist.
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound && self.is_default => {
                return Ok(Default::default());
            }
            other => other.map_err(|cause| crate::files::failed(cause, format!("read `{}`", self.root.display())))?,
        };
        let (mut found, mut broken) = (Vec::new(), Vec::new());
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            match record::read(&entry.path()) {
                Ok(record) => found.push(snapshot(record, &entry.path())),
                // It is being made or removed.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => broken.push(format!("load container {}: {error}", entry.file_name().to_string_lossy())),
            }
        }
        found.sort_by(|one, other| one.id.cmp(&other.id));
        Ok((found, broken))
    }

    /// Without the lock, whose holder may wait for the step.
    pub(super) fn see(&self, id: &ContainerId) -> Result<(PathBuf, Record)> {
        let path = self.root.join(id.as_str());
        let record = record::read(&path)?;
        Ok((path, record))
    }

    /// Pids on the host.
    pub fn processes(&self, id: &ContainerId) -> Result<Vec<i32>> {
        let (_, record) = self.see(id)?;
        let group = record.cgroup.ok_or_else(|| Error::new(Kind::State, "the container has no cgroup"))?;
        let mut pids = Cgroup::open(&group)?.processes()?;
        pids.sort_unstable();
        Ok(pids)
    }
}

fn snapshot(record: Record, path: &std::path::Path) -> Snapshot {
    let status = record.status(path);
    let owner = nix::unistd::User::from_uid(record.owner.into()).ok().flatten();
    Snapshot {
        pid: if status == Status::Stopped { 0 } else { record.pid },
        status,
        oci_version: record.oci_version,
        id: record.id,
        bundle: record.bundle,
        rootfs: record.rootfs,
        created: record.created,
        annotations: record.annotations,
        owner: owner.map_or_else(|| format!("#{}", record.owner), |user| user.name),
    }
}
