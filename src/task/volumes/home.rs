//! Volumes that are the homes of agents: made with their purpose before the first task that uses them.

use super::record::{VolumePaths, VolumeSize, step_of_name};
use crate::error::{Result, Step};
use crate::sandbox::{ImageAccess, needs_root};
use crate::task::store::Store;

impl Store {
    /// Makes the volume of a home unless it exists. Refuses (E-STATE) a home that another task writes.
    pub(in crate::task) fn prepare_home(&self, name: &str, purpose: &str) -> Result<()> {
        let paths = VolumePaths::of(self, name)?;
        needs_root(name)?;
        paths.create_with(VolumeSize::default(), Some(purpose), |_| Ok(()))?;
        // The first task that uses it fills it under this lock.
        let _lock = paths.lock().doing(|| step_of_name(name))?;
        paths.open(ImageAccess::Write).doing(|| step_of_name(name)).map(drop)
    }
}
