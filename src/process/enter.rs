//! A first process in a user namespace that exists: a helper of ours enters that and has the process born there, as our child, so that the other
//! new namespaces belong to it. We could not do so ourselves: there is no way back out of a user namespace (user_namespaces(7)).
//!
//! It also enters a cgroup namespace that exists, over which a first process in a user namespace has no power: we could not, since from inside of one
//! nobody gets into a group outside of it, where the tree is mounted with nsdelegate (cgroup-v2, "Delegation").
//!
//! And it joins what we could not leave again ([`ns::can_return`]).

use super::init;
use super::message::{Channel, Message, Tag};
use super::parent::Spawned;
use super::plan::{Plan, UserNamespace};
use super::{identity, identity::OomScore};
use crate::error::{Context, Error, Kind, Result};
use crate::ns::{self, Maps};
use crate::sys::clone::{Side, clone_process, clone_sibling, exit, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

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

/// What a helper that ends with this has made: our child. One that `waits` goes on when we know it.
pub(super) fn born(ours: Channel, helper: &OwnedFd, maps: Option<&Maps>, waits: bool) -> Result<Spawned> {
    let step = || "start a helper in the container's user namespace";
    let born = ours.receive();
    wait(helper.as_fd()).failing(Kind::Namespace, step)?;
    match born? {
        Some(Message::Born(pidfd)) => {
            let pid = pid_of(&pidfd)?;
            let spawned = Spawned::new(pid, pidfd, ours);
            if let Some(maps) = maps {
                ns::write_maps(pid, maps).inspect_err(|_| spawned.abandon())?;
            }
            if waits {
                spawned.go()?;
            }
            Ok(spawned)
        }
        Some(Message::Failed(error)) => Err(error),
        _ => Err(Error::new(Kind::Lost, "the helper ended without a word").doing(step())),
    }
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

/// The pid of a process in our PID namespace. proc_pid_fdinfo(5).
pub(super) fn pid_of(pidfd: &OwnedFd) -> Result<i32> {
    let step = || "find the container's first process";
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).failing(Kind::Lost, step)?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or_else(|| Error::new(Kind::Lost, "it has ended").doing(step()))
}
