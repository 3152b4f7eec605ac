//! The disk cap: one small file system for every write of a sandbox. A full disk is ENOSPC for the agent and does not
//! affect the host.
//!
//! As root it is an ext4 image on a loop device, otherwise a tmpfs, which init makes
//! ([`Backing::Memory`](crate::spec::root::Backing)).

mod description;
mod format;
mod image;
mod kept;
mod loop_device;
pub(crate) mod maker;
mod pending;
mod resize;
mod template;
pub(crate) mod volatile;
pub(crate) mod volume;

pub(crate) use description::{DiskFile, Size, Workshop};
pub(crate) use kept::ImageCopy;
pub(crate) use pending::{Pending, begin, begin_ahead, forget_ahead};
