//! The parent's side: one clone, and its result.

use super::message::Channel;
use super::plan::{First, Plan, UserNamespace};
use super::spawned::Spawned;
use super::{enter, init, newcomer};
use crate::error::{Context, Kind, Result, Step};
use crate::host::user_namespace_advice;
use crate::ns;
use crate::sys::clone::{Side, clone_process};
use std::os::fd::AsFd;

/// A later error of init arrives as `Message::Failed`. If `plan.waits`, the process waits until `settle` has returned,
/// which gets its pid and can abandon it by an error.
pub(crate) fn spawn_with(mut plan: Plan, settle: impl FnOnce(i32) -> Result<()>) -> Result<Spawned> {
    let (ours, theirs) = Channel::pair()?;
    let mut flags = plan.namespaces.made;
    if matches!(plan.user_namespace, UserNamespace::Born(_) | UserNamespace::Mapped(_)) {
        flags |= libc::CLONE_NEWUSER as u64;
    }
    let cgroup = plan.cgroup.take();
    let maps = match &plan.user_namespace {
        UserNamespace::Mapped(maps) => Some(maps.clone()),
        _ => None,
    };
    let waits = plan.waits;
    if let Some(processes) = plan.namespaces.take_processes()? {
        plan.first = First::Newcomer;
        let spawned = newcomer::spawn(plan, ours, theirs, cgroup, maps.as_ref(), &processes)?;
        return settled(spawned, waits, settle);
    }
    let is_helped = matches!(plan.user_namespace, UserNamespace::Joined(_))
        || (maps.is_some() && plan.cgroup_namespace.is_some())
        || !ns::can_return(&plan.namespaces);
    if is_helped {
        let spawned = enter::spawn(plan, ours, theirs, cgroup, maps.as_ref())?;
        return settled(spawned, waits, settle);
    }
    let left = ns::visit(&plan.namespaces)?; // children inherit joined namespaces, so that one clone is enough
    let side = clone_process(flags, cgroup.as_ref().map(AsFd::as_fd))
        .failing(Kind::Namespace, || "create the container's namespaces")
        .hint(user_namespace_advice)?;
    match side {
        Side::Child => {
            drop(ours); // so that a close of our end is seen
            init::run(plan, theirs)
        }
        Side::Parent(pid, pidfd) => {
            let spawned = Spawned::new(pid, pidfd, ours);
            left.back().inspect_err(|_| spawned.abandon())?;
            if let Some(maps) = maps {
                ns::write_maps(pid, &maps).inspect_err(|_| spawned.abandon())?;
                spawned.go()?;
            }
            settled(spawned, waits, settle)
        }
    }
}

fn settled(spawned: Spawned, waits: bool, settle: impl FnOnce(i32) -> Result<()>) -> Result<Spawned> {
    if waits {
        settle(spawned.pid).inspect_err(|_| spawned.abandon())?;
        spawned.go()?;
    }
    Ok(spawned)
}
