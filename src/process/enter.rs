//! A first process in a user namespace that exists: a helper of ours enters that and has the process born there, as our child, so that the other
//! new namespaces belong to it. We could not do so ourselves: there is no way back out of a user namespace (user_namespaces(7)).
//!
//! It also enters a cgroup namespace that exists, over which a first process in a user namespace has no power: we could not, since from inside of one
//! nobody gets into a group outside of it, where the tree is mounted with nsdelegate (cgroup-v2, "Delegation").
//!
//! And it joins what we could not leave again ([`ns::can_return`]).

use super::init;
use super::message::{Channel, Tag};
use super::plan::{Plan, UserNamespace};
use super::spawned::{Spawned, born};
use super::{identity, identity::OomScore};
use crate::error::{Context, Kind, Result};
use crate::ns::{self, Maps};
use crate::sys::clone::{Side, clone_process, clone_sibling, exit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};

/// Starts the container that `plan`, with a joined user namespace or with a new one that has `maps`, describes.
pub(super) fn spawn(
    mut plan: Plan,
    ours: Channel,
    theirs: Channel,
    cgroup: Option<OwnedFd>,
    maps: Option<&Maps>,
) -> Result<Spawned> {
    // What the machine's root may join is joined with its privileges; what only the namespace's own root may is left to the helper.
    let privileged = rustix::process::geteuid().is_root();
    let _hidden = identity::Hidden::begin()?;
    let visits = privileged && ns::can_return(&plan.namespaces);
    let left = if visits { Some(ns::visit(&plan.namespaces)?) } else { None };
    let waits = maps.is_some() || matches!(plan.user_namespace, UserNamespace::Joined(_));
    let step = || "start a helper in the container's user namespace";
    let helper = match clone_process(0, cgroup.as_ref().map(AsFd::as_fd)).failing(Kind::Namespace, step)? {
        Side::Child => {
            drop(ours);
            match enter(&mut plan, &theirs, privileged, visits) {
                Ok(Side::Child) => init::run(plan, theirs),
                // If that cannot be told, nobody answers the process, and it ends.
                Ok(Side::Parent(_, pidfd)) => exit(i32::from(theirs.hand(Tag::Born, pidfd.as_fd()).is_err())),
                Err(error) => {
                    theirs.fail(&error);
                    exit(1)
                }
            }
        }
        Side::Parent(_, pidfd) => pidfd,
    };
    drop(theirs);
    if let Some(left) = left {
        left.back()?;
    }
    born(ours, &helper, maps, waits)
}

/// The helper's part, one line a step. Its parent has visited the namespaces, or it joins them: with the caller's privileges, or with those inside.
fn enter(plan: &mut Plan, parent: &Channel, privileged: bool, visited: bool) -> Result<Side> {
    identity::die_with_supervisor(parent)?;
    identity::score(std::mem::replace(&mut plan.oom_score, OomScore::Inherited))?; // ours to lower now, and not inside
    if !matches!(plan.user_namespace, UserNamespace::Callers | UserNamespace::Born(_)) {
        identity::be_undumpable()?; // who is root inside must not look into us
    }
    if let Some(there) = plan.cgroup_namespace.take() {
        move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::ControlGroup))
            .failing(Kind::Namespace, || "join the cgroup namespace")?;
    }
    if privileged && !visited {
        let _stay = ns::visit(&plan.namespaces)?;
    }
    let mut flags = plan.namespaces.made;
    match &plan.user_namespace {
        UserNamespace::Joined(userns) => move_into_link_name_space(userns.as_fd(), Some(LinkNameSpaceType::User))
            .failing(Kind::UserNamespace, || "join the container's user namespace")?,
        UserNamespace::Mapped(_) | UserNamespace::Born(_) => flags |= libc::CLONE_NEWUSER as u64,
        UserNamespace::Callers | UserNamespace::Entered(_) => {}
    }
    if !privileged {
        let _stay = ns::visit(&plan.namespaces)?;
    }
    clone_sibling(flags).failing(Kind::Namespace, || "create the container's namespaces")
}
