//! The directories that a container uses on the host.

pub(crate) use crate::mounts::disk::{DiskFile, Workshop};
use std::path::PathBuf;

/// Where a container's own things are; all of it is ours, none of it is shown inside.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The container's name: of its cgroup, and in errors.
    pub id: String,
    /// An empty directory over which init mounts its stage.
    pub stage: PathBuf,
    /// Where its disk is made; that file system holds what the container writes.
    pub workshop: Workshop,
    /// A directory for the whole machine with the locks of id ranges.
    pub id_ranges: PathBuf,
    /// The file of the disk, where everything writable is on one.
    pub disk: DiskFile,
}
