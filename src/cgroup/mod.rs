//! A container's cgroup: create, limit, join, measure, freeze, kill, remove.
//!
//! In: [`Hierarchy::probe`], a [`CgroupPath`], a [`Purpose`] and the limits of `spec::Resources`. Out: a [`Cgroup`],
//! which holds one open directory for each hierarchy, and a [`Record`], from which another brig process opens it
//! again.
//! Order: [`Hierarchy::refusals`], which changes nothing; [`Cgroup::create`], or [`Cgroup::begin`] and later
//! [`PendingCgroup::finish`]. The process is born in the v2 group ([`Cgroup::clone_into`]) and enters the v1 groups
//! ([`enter`] on [`Cgroup::join_files`]). At the end [`Cgroup::kill`] and [`Cgroup::remove`].
//! Layouts: v2 alone; v1 controllers beside a v2 tree that counts time, freezes and kills; v1 alone.
//! Files, lowest first: `controller`, `path`; `directory`; `hierarchy`, `group`, `plan`; `make`, `devices`,
//! `counters`, `evidence`, `freeze`; `limits`, `kill`, `stats`, `refusal`; `create`, `record`, `below`, `child`.
//! Not here: systemd's units (`systemd`), and which limits a container may have.
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
pub(crate) use record::{Record, leftovers, remove_leftover};
pub(crate) use refusal::Refusal;
