//! From a plan to a running command: the parent's side, init's recipe, the reaper, and the words between them.
//!
//! In: a [`Plan`] in which everything is decided and opened that the parent can decide and open. Out: [`Spawned`], a handle on the
//! container's first process and the channel on which it reports.
//! Order: `parent::spawn` clones; `init::run` is the recipe of the new process; `launch::run` that of the command;
//! `reaper::run` what stays as pid 1.
//! Never: a thread; a path of the host after the root was entered; a silent failure.

mod apart;
mod aside;
pub(crate) mod attributes;
mod background;
mod companion;
mod confined;
mod directory;
mod enter;
mod identity;
mod init;
mod join;
mod launch;
mod lookup;
mod message;
mod newborn;
mod newcomer;
mod own;
mod parent;
mod plan;
mod procfs;
mod reaper;
mod spawned;
mod threads;

pub(crate) use apart::apart;
pub(crate) use aside::Aside;
pub(crate) use background::{Starter, in_background};
pub(crate) use companion::{Companion, Service};
pub(crate) use confined::{Confined, Confinement, ProcessorTime, Work, spawn_confined};
pub(crate) use identity::{Capabilities, Identity, OomScore};
pub(crate) use join::{Join, Refused, join};
pub(crate) use message::{Ended, Message};
pub(crate) use newcomer::beside;
pub(crate) use own::protect_own_executable;
pub(crate) use parent::spawn_with;
pub(crate) use plan::{
    BuildHooks, Command, Errand, First, Gate, Inside, Joins, Plan, SHOW, Stdio, Terminal, UserNamespace, Vectors,
    WayOut, hold,
};
pub(crate) use reaper::USER as PID_1_USER;
pub(crate) use spawned::Spawned;
pub(crate) use threads::require_one as require_one_thread;
