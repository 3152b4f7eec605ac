//! The root of a container in init: [`build`](Root::build), hooks and the terminal, [`seal`](Root::seal),
//! [`enter`](Root::enter).

use super::bundle::{self, Bundle};
use super::{Built, pivot, sandbox};
use crate::error::Result;
use crate::spec::root::{Ids, Root as Base};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

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
