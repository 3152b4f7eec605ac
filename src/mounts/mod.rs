//! The file system that a container sees: planned by the parent, built by init in a mount namespace of its own.
//!
//! In: a [`Plan`], made without a system call. Out: a root that init has entered, with nothing of the host above it.
//! Order: [`stage`](apply::stage) (own propagation, a place to build), [`build`](apply::build), [`enter`](pivot::enter), then masks.
//! A config.json's root is a [`Bundle`](bundle::Bundle), built by the same functions in its own order.
//! Not here: what a sandbox should see (that is `sandbox::profile` or a config.json).
//! Never: a mount in the host's namespace; a path below the new root that is opened other than through [`resolve`].

mod amend;
pub(crate) mod apply;
pub(crate) mod bundle;
mod bundle_plan;
pub(crate) mod capped;
mod copy_up;
mod cover;
mod destination;
pub(crate) mod device;
pub(crate) mod disk;
mod file_system;
mod folder;
mod format;
mod kept;
mod layers;
pub(crate) mod maker;
mod mount;
pub(crate) mod options;
mod pivot;
mod plan;
mod program;
pub(crate) mod resolve;
mod secrets;
pub(crate) mod skeleton;
mod template;
pub(crate) mod tun;
pub(crate) mod volatile;
mod write;

pub(crate) use pivot::enter;
pub(crate) use plan::{Ids, Plan};
