//! The directories that a container uses on the host.

pub(crate) use crate::mounts::disk::DiskFile;
use std::path::PathBuf;

/// Where a container's own things are; all of it is ours, none of it is shown inside.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The container's name: of its cgroup, and in errors.
    pub id: String,
    /// An empty directory over which init mounts its stage.
    pub stage: PathBuf,
    /// Formatted empty disk images, shared by all; the file system of this directory holds what the container writes.
    pub templates: PathBuf,
    /// A directory for the whole machine with the locks of id ranges.
    pub id_ranges: PathBuf,
    /// The file of the disk, where everything writable is on one.
    pub disk: DiskFile,
}
