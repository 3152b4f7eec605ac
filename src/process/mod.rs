//! Runs the plan of a container: the parent's side, init's steps, the reaper, and the messages between them.
//!
//! In: a [`Plan`], with every decision made and every descriptor open that the parent can open. Out: [`Spawned`], a
//! handle on the container's first process and the channel of its reports.
//!
//! Order: `parent::spawn` clones; `init::run` builds the container; `launch::run` starts the command; `reaper::run`
//! stays as pid 1.
//!
//! Never: a thread; a host path after the root was entered; a silent failure.

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
    BuildHooks, Command, Errand, First, Gate, Inside, Joins, Plan, SHOW, Stdio, Terminal, Uplink, UserNamespace,
    Vectors, hold,
};
pub(crate) use reaper::USER as PID_1_USER;
pub(crate) use spawned::Spawned;
pub(crate) use threads::require_one as require_one_thread;
