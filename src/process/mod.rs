//! Runs a container's [`Plan`], in which every decision is made and every descriptor open that the parent can open.
//!
//! Order: `parent::spawn_with`, `init::run`, `launch::run` for the command, `reaper::run` as pid 1. Never: a host path
//! after the root was entered; a silent failure; a thread ([`require_one_thread`]) in a caller that clones.

mod apart;
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

pub(crate) use apart::{Aside, apart};
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
