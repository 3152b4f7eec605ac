//! The directories that a container uses on the host.

use std::path::PathBuf;

/// Where a container's own things are; all of it is ours, none of it is shown inside.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The container's name: of its cgroup, and in errors.
    pub id: String,
    /// An empty directory over which init mounts its stage.
    pub stage: PathBuf,
    /// The disk image, which does not exist yet.
    pub image: PathBuf,
    /// Formatted empty images, shared by all.
    pub templates: PathBuf,
    /// A directory for the whole machine with the locks of id ranges.
    pub id_ranges: PathBuf,
}
