//! A container's cgroup: create, limit, join, measure, freeze, kill, remove. Not here: systemd's units (`systemd`).
//!
//! A process is born in the v2 group ([`Cgroup::clone_into`]) and enters the v1 groups ([`enter`] on
//! [`Cgroup::join_files`]). A [`Record`] lets another brig process open the groups. v2 may be mounted alone, beside v1
//! controllers, or not at all.
//! Never: moving a surviving process to the root group, where no limit holds.

mod below;
mod child;
mod controller;
mod counters;
mod create;
mod devices;
mod directory;
mod evidence;
mod freeze;
mod group;
mod hierarchy;
mod kill;
mod limits;
mod make;
mod path;
mod plan;
mod record;
mod refusal;
mod stats;

#[cfg(test)]
mod tests;

pub(crate) use controller::Purpose;
pub(crate) use counters::Usage;
pub(crate) use create::PendingCgroup;
pub(crate) use directory::remove_empty;
pub(crate) use evidence::{Evidence, OomNotifier};
pub(crate) use group::{Cgroup, FullJoin, enter};
pub(crate) use hierarchy::{Hierarchy, Layout};
pub(crate) use path::CgroupPath;
pub(crate) use record::{Leftover, Record, leftovers, remove_leftover};
pub(crate) use refusal::Refusal;
