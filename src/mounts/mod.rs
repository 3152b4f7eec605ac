//! The file system of a container: planned by the parent, built by init in a new mount namespace.
//!
//! A [`Plan`](sandbox::Plan) or a [`Bundle`], made without a system call, becomes a root without a path to the host,
//! which init enters.
//!
//! Never: a mount in the host's namespace; a path below the new root that is opened without [`resolve`].

pub(crate) mod bundle;
mod cover;
pub(crate) mod device;
pub(crate) mod disk;
mod mount;
mod pivot;
pub(crate) mod resolve;
pub(crate) mod sandbox;
pub(crate) mod tun;
mod write;

use crate::error::Result;
use crate::spec::root::{Ids, Root as Base};
use bundle::Bundle;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Not sealed yet.
#[derive(Debug)]
pub(crate) struct Built {
    pub root: OwnedFd,
    /// The readable root directory of the file system for all writes; `None` without a cap.
    pub scratch: Option<OwnedFd>,
    /// The files of written volumes in memory, in the order of the volumes.
    pub volumes: Vec<OwnedFd>,
    /// The directory of the secrets, writable; `None` without secrets.
    pub secrets: Option<OwnedFd>,
    is_entered: bool,
    /// Read-only once the root is sealed.
    late: Vec<OwnedFd>,
}

/// The root of a container in init: [`build`](Root::build), hooks and the terminal, [`seal`](Root::seal),
/// [`enter`](Root::enter).
#[derive(Debug)]
pub(crate) enum Root {
    Sandbox(sandbox::Plan),
    Bundle(Bundle),
}

impl Root {
    /// Takes the parts of the plan that can be used once.
    pub(crate) fn build(&mut self) -> Result<Built> {
        match self {
            Root::Sandbox(plan) => sandbox::build(plan),
            Root::Bundle(bundle) => bundle::build(bundle),
        }
    }

    /// The steps after the hooks. A sandbox has none; its own steps seal it.
    pub(crate) fn seal(&self, built: &Built, directory: &Path, console: Option<BorrowedFd<'_>>) -> Result<()> {
        let Root::Bundle(bundle) = self else { return Ok(()) };
        if let Some(terminal) = console.filter(|_| bundle.own_mounts) {
            bundle::show_console(built.root.as_fd(), terminal)?;
        }
        bundle::make_directory(built.root.as_fd(), directory);
        bundle::seal(bundle, &built.root, &built.late)
    }

    /// Afterwards this process can name no path of the host.
    pub(crate) fn enter(&self, built: &Built) -> Result<()> {
        match self {
            Root::Sandbox(plan) if plan.file_system.root == Base::Host || built.is_entered => Ok(()),
            Root::Sandbox(_) => pivot::enter(built.root.as_fd()),
            Root::Bundle(bundle) => bundle.enter(built.root.as_fd()),
        }
    }

    /// The sandbox's user gets the standard streams before init loses the power to change owners.
    pub(crate) fn user(&self) -> Option<Ids> {
        match self {
            Root::Sandbox(plan) => Some(plan.user),
            Root::Bundle(_) => None,
        }
    }

    /// Whether the container's null device replaces the caller's on a standard stream.
    pub(crate) fn has_null_device(&self) -> bool {
        matches!(self, Root::Bundle(bundle) if bundle.own_mounts)
    }

    /// The container's cgroups must count files that are copied into memory.
    pub(crate) fn fills_memory(&self) -> bool {
        matches!(self, Root::Sandbox(plan) if plan.fills_memory())
    }
}
