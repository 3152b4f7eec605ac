//! The first process in an existing user namespace, to which its other new namespaces belong. A helper makes it as our
//! child: the parent could not return (user_namespaces(7)). Nor could it from all others ([`ns::can_return`]), so the
//! helper joins these too.
//!
//! The helper also enters an existing cgroup namespace: no process inside can join an outside group under nsdelegate
//! (cgroup-v2, "Delegation").

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

/// The user namespace of `plan` is joined, or new with `maps`.
pub(super) fn spawn(
    mut plan: Plan,
    ours: Channel,
    theirs: Channel,
    cgroup: Option<OwnedFd>,
    maps: Option<&Maps>,
) -> Result<Spawned> {
    // The machine's root joins what it may, the helper what only the namespace's root may.
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
                Ok(Side::Child) => {
                    // The helper's message comes first.
                    if !waits && theirs.wait_for_go().is_err() {
                        exit(1);
                    }
                    init::run(plan, theirs)
                }
                // Without this message init gets no answer and ends.
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
    if let Some(Err(error)) = left.map(ns::Left::back) {
        let _ = born(ours, &helper, None, false).inspect(Spawned::abandon);
        return Err(error);
    }
    born(ours, &helper, maps, true)
}

/// Joins the namespaces that the parent has not visited, with the caller's privileges or with those inside.
fn enter(plan: &mut Plan, parent: &Channel, privileged: bool, visited: bool) -> Result<Side> {
    identity::die_with_supervisor(parent)?;
    identity::score(std::mem::replace(&mut plan.oom_score, OomScore::Inherited))?; // only the outside may lower it
    if !matches!(plan.user_namespace, UserNamespace::Callers | UserNamespace::Born(_)) {
        identity::be_undumpable()?; // the namespace's root must not trace us
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
