//! The recipe of the container's first process, from the clone to the moment when the command is on its way.

use super::message::{Channel, Tag};
use super::plan::{Plan, Stdio, UserNamespace};
use super::{identity, launch, reaper};
use crate::error::{Context, Kind, Result};
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::weaken;
use crate::{mounts, ns, sys};
use nix::sched::CloneFlags;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::umask;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};

/// Runs in the new process; whatever goes wrong is reported whole, and then there is no container.
pub(super) fn run(plan: Plan, parent: Channel) -> ! {
    // A panic would unwind or abort: abort signals a stale thread id after a raw clone on musl. Say it and leave.
    std::panic::set_hook(Box::new(|_| exit(1)));
    match recipe(plan, &parent) {
        Ok(never) => match never {},
        Err(error) => {
            parent.fail(&error);
            exit(1)
        }
    }
}

/// One line a step; a reason where the order could be questioned.
fn recipe(plan: Plan, parent: &Channel) -> Result<std::convert::Infallible> {
    identity::die_with_supervisor(parent)?;
    umask(Mode::WGRP | Mode::WOTH); // what is built does not depend on the caller's
    identity::be_killable()?;
    let mut inner = None;
    match plan.user_namespace {
        UserNamespace::Born(maps) => ns::write_own_map(&maps)?,
        UserNamespace::Entered(userns) => inner = Some(userns),
    }
    identity::be_undumpable()?; // after the maps: from here on our files of /proc are the machine's root's
    join_cgroups(&plan.cgroup_tasks)?;
    unshare_cgroup()?; // after joining: its root is the cgroup we are in
    identity::leave_keyring()?;
    name_machine(&plan.hostname)?;
    bring_loopback_up()?;
    let user = plan.mounts.user;
    let built = mounts::apply::build(plan.mounts)?;
    parent.hand(Tag::Scratch, built.scratch.as_fd())?;
    drop(built.scratch);
    let stdio = match plan.stdio {
        Stdio::Terminal(size) => launch::open_console(built.root.as_fd(), size, parent)?,
        Stdio::Descriptors { .. } => plan.stdio,
    };
    launch::hand_over(&stdio, user)?;
    mounts::enter(built.root.as_fd())?; // from here on no host path can be named
    drop(built.root);
    let reaper = inner.is_some().then_some(reaper::USER); // an id of its own, where more than one is mapped
    if let Some(userns) = inner.filter(|_| !weaken::is_off("user-namespace")) {
        enter_user_namespace(userns)?; // last: what was built so far belongs to the machine's root, not to us
    }
    match clone_process(0, None).failing(Kind::Namespace, || "start the command's process")? {
        Side::Child => launch::run(&plan.command, &stdio, parent),
        Side::Parent(command, _) => reaper::run(command, reaper, parent),
    }
}

/// Moves ourselves into the v1 cgroups. Writing "0" to `tasks` moves the writing thread and so needs no grace period of the kernel, where
/// `cgroup.procs` waits 5 to 15 ms after an idle moment (docs/decisions/0002-cgroup-joining.md).
fn join_cgroups(tasks: &[OwnedFd]) -> Result<()> {
    tasks.iter().try_for_each(|file| {
        rustix::io::write(file, b"0").failing(Kind::Cgroup, || "move into the container's cgroup").map(|_| ())
    })
}

fn unshare_cgroup() -> Result<()> {
    if weaken::is_off("cgroup-namespace") {
        return Ok(());
    }
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).failing(Kind::Namespace, || "make a cgroup namespace")
}

fn name_machine(name: &str) -> Result<()> {
    if weaken::is_off("uts-namespace") {
        return Ok(()); // it would be the host's own name
    }
    rustix::system::sethostname(name.as_bytes()).failing(Kind::Namespace, || "set the host name")
}

fn enter_user_namespace(userns: OwnedFd) -> Result<()> {
    move_into_link_name_space(userns.as_fd(), Some(LinkNameSpaceType::User))
        .failing(Kind::UserNamespace, || "enter the sandbox's user namespace")
}

/// Programs expect 127.0.0.1 to answer, in a network of its own too.
fn bring_loopback_up() -> Result<()> {
    let step = || "bring the loopback interface up";
    let socket =
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).failing(Kind::Network, step)?;
    sys::net::bring_loopback_up(socket.as_fd()).failing(Kind::Network, step)
}
