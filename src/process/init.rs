//! The container's first process, from the clone to the start of the command.

use super::identity::Identity;
use super::message::{Channel, Tag};
use super::plan::{BuildHooks, First, Joins, Plan, Stdio, Uplink, UserNamespace};
use super::procfs::Procfs;
use super::{identity, join, launch, reaper};
use crate::error::{Context, Kind, Result};
use crate::spec::config::linux::NamespaceKind;
use crate::spec::state::State;
use crate::sys::clone::{Side, clone_process, exit};
use crate::sys::weaken;
use crate::{hooks, mounts, net, ns, sys};
use nix::sched::CloneFlags;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::umask;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Sends the whole error of a failed step, and ends.
pub(super) fn run(plan: Plan, parent: Channel) -> ! {
    // A panic would unwind or abort: abort signals a stale thread id after a raw clone on musl.
    std::panic::set_hook(Box::new(|_| exit(1)));
    match recipe(plan, &parent) {
        Ok(never) => match never {},
        Err(error) => {
            parent.fail(&error);
            exit(1)
        }
    }
}

fn recipe(plan: Plan, parent: &Channel) -> Result<std::convert::Infallible> {
    identity::die_with_supervisor(parent)?;
    umask(Mode::WGRP | Mode::WOTH); // the result does not depend on the caller's umask
    identity::score(plan.oom_score)?; // before undumpable: root owns its file then
    if let Some(network) = &plan.network {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .failing(Kind::Network, || "enter the sandbox's network namespace")?;
    }
    let has_own_users = !matches!(plan.user_namespace, UserNamespace::Callers);
    let mut inner = None;
    match plan.user_namespace {
        UserNamespace::Callers => {}
        UserNamespace::Born(maps) => ns::write_own_map(&maps)?,
        UserNamespace::Entered(userns) => inner = Some(userns),
        UserNamespace::Mapped(_) | UserNamespace::Joined(_) => {
            be_root_inside(parent)?;
            if matches!(plan.first, First::Reaper) {
                ns::forbid_nested(); // a supervised sandbox
            }
        }
    }
    if plan.waits {
        parent.wait_for_go()?;
    }
    ns::shift_time(&plan.namespaces)?; // before undumpable too
    identity::be_undumpable()?; // after the maps: root then owns our files of /proc
    if let Joins::AtOnce(tasks) = &plan.joins {
        tasks.iter().try_for_each(join_cgroup)?;
        share_no_cgroup(&plan.namespaces)?;
        if let Some(there) = &plan.cgroup_namespace {
            move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::ControlGroup))
                .failing(Kind::Namespace, || "join the cgroup namespace")?;
        }
    }
    if plan.new_keyring {
        identity::leave_keyring(&plan.command.attributes)?;
    }
    if let Some(name) = &plan.hostname {
        name_machine(name)?;
    }
    if let Some(name) = &plan.domainname {
        rustix::system::setdomainname(name.as_bytes()).failing(Kind::Namespace, || "set the domain name")?;
    }
    // A namespace joined for a gateway may have its loopback down; one made ahead is up.
    if plan.namespaces.makes(NamespaceKind::Network) || (plan.inside.is_some() && plan.network.is_none()) {
        bring_loopback_up()?;
    }
    if let Some(inside) = plan.inside {
        // before identities change: low ports and routes need privileges
        net::serve(&inside.wish, &inside.gateway)?;
    }
    match plan.uplink {
        Some(Uplink::Veth(inside)) => net::bring_up(&inside)?,
        Some(Uplink::Fenced(fence)) => net::fence_inside(&fence)?,
        Some(Uplink::Engines) => {
            let network = net::EngineNetwork::open()?;
            network.descriptors().into_iter().try_for_each(|each| parent.hand(Tag::Network, each))?;
        }
        None => {}
    }
    // Before the image is visible; the weakened build is late, as deceived runtimes were (CVE-2025-52881).
    let is_late = weaken::is_off("own-procfs");
    if !plan.sysctls.is_empty() && !is_late {
        Procfs::open()?.set(&plan.sysctls)?;
    }
    let is_counted = plan.root.fills_memory();
    if is_counted {
        // before the root is filled: a group never counts earlier memory
        join_when_told(&plan.joins, &plan.namespaces, parent)?;
    }
    let stdio = enter_root(plan.root, &plan.hooks, &plan.command.directory, plan.stdio, parent)?; // no host path after
    if !plan.sysctls.is_empty() && is_late {
        Procfs::open()?.set(&plan.sysctls)?;
    }
    if !is_counted {
        join_when_told(&plan.joins, &plan.namespaces, parent)?;
    }
    let reaper = inner.is_some().then_some(reaper::USER); // a separate id, if more than one is mapped
    if let Some(userns) = inner.filter(|_| !weaken::is_off("user-namespace")) {
        enter_user_namespace(userns)?; // last: the machine's root owns everything built so far
    }
    match plan.first {
        First::Command => launch::run(plan.command, &stdio, None, parent),
        First::Newcomer => join::be_born(plan.command, stdio, has_own_users, parent),
        First::Reaper => {}
    }
    let step = || "start the command's process";
    let command = plan.command;
    let (gate, latch) = reaper::gate().failing(Kind::Namespace, step)?;
    match clone_process(0, None).failing(Kind::Namespace, step)? {
        Side::Child => {
            drop(latch); // so that the gate sees the end of pid 1
            launch::run(command, &stdio, Some(gate), parent)
        }
        Side::Parent(command, _) => {
            let settled = reaper::drop_privileges(reaper, latch, parent);
            reaper::run(command, settled, parent)
        }
    }
}

/// The hooks run in the specification's order. The supervisor receives the writable file systems.
fn enter_root(
    mut root: mounts::Root,
    hooks: &BuildHooks,
    directory: &Path,
    stdio: Stdio,
    parent: &Channel,
) -> Result<Stdio> {
    let mut built = root.build()?;
    let handed = built.scratch.take().into_iter().map(|made| (Tag::Scratch, made));
    let handed = handed.chain(built.volumes.drain(..).map(|made| (Tag::Volume, made)));
    for (tag, made) in handed.chain(built.secrets.take().map(|made| (Tag::Secrets, made))) {
        parent.hand(tag, made.as_fd())?;
    }
    run_hooks(hooks, built.root.as_fd(), parent)?;
    let (gets_terminal, inherits) = (matches!(stdio, Stdio::Terminal(_)), matches!(stdio, Stdio::Inherited));
    let stdio = open_terminal(built.root.as_fd(), stdio, parent)?;
    if let Some(user) = root.user() {
        launch::hand_over(&stdio, user)?;
    }
    let console = match &stdio {
        Stdio::Descriptors { input, .. } if gets_terminal => Some(input.as_fd()),
        _ => None,
    };
    root.seal(&built, directory, console)?;
    root.enter(&built)?;
    if inherits && root.has_null_device() {
        launch::use_own_null_device()?;
    }
    Ok(stdio)
}

fn run_hooks(hooks: &BuildHooks, root: BorrowedFd<'_>, parent: &Channel) -> Result<()> {
    if hooks.of_parent {
        parent.send_tag(Tag::Hooks)?; // prestart and createRuntime: our namespaces, their root
        parent.wait_for_go()?;
    }
    if hooks.of_container.is_empty() {
        return Ok(());
    }
    let state = State { pid: std::process::id() as i32, ..hooks.state.clone() };
    rustix::process::fchdir(root).failing(Kind::Hook, || "enter the root for the hooks")?; // as in runc
    hooks::run("createContainer", &hooks.of_container, &state)
}

fn open_terminal(root: BorrowedFd<'_>, stdio: Stdio, parent: &Channel) -> Result<Stdio> {
    match stdio {
        Stdio::Terminal(size) => launch::open_console(root, size, parent),
        Stdio::Descriptors { .. } | Stdio::Inherited => Ok(stdio),
    }
}

/// In a user namespace that another process has mapped; without the caller's groups.
fn be_root_inside(parent: &Channel) -> Result<()> {
    parent.wait_for_go()?;
    identity::become_user(&Identity::default(), None)?;
    identity::die_with_supervisor(parent)
}

fn join_when_told(joins: &Joins, namespaces: &ns::Namespaces, parent: &Channel) -> Result<()> {
    match joins {
        Joins::Told => {
            parent.wait_for_groups(|file| join_cgroup(&file))?;
            share_no_cgroup(namespaces)
        }
        Joins::AtOnce(_) => Ok(()),
    }
}

/// "0" in a v1 `tasks` file moves one thread without a grace period of the kernel. `cgroup.procs` waits 5 to 15 ms
/// after an idle moment (docs/decisions/0002-cgroup-joining.md).
fn join_cgroup(tasks: &OwnedFd) -> Result<()> {
    rustix::io::write(tasks, b"0").failing(Kind::Cgroup, || "move into the container's cgroup").map(|_| ())
}

/// After joining: our cgroup becomes the namespace's root.
fn share_no_cgroup(namespaces: &ns::Namespaces) -> Result<()> {
    if !namespaces.cgroup || weaken::is_off("cgroup-namespace") {
        return Ok(());
    }
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).failing(Kind::Namespace, || "make a cgroup namespace")
}

fn name_machine(name: &str) -> Result<()> {
    if weaken::is_off("uts-namespace") {
        return Ok(()); // would rename the host
    }
    rustix::system::sethostname(name.as_bytes()).failing(Kind::Namespace, || "set the host name")
}

fn enter_user_namespace(userns: OwnedFd) -> Result<()> {
    move_into_link_name_space(userns.as_fd(), Some(LinkNameSpaceType::User))
        .failing(Kind::UserNamespace, || "enter the sandbox's user namespace")
}

/// Programs expect 127.0.0.1 to answer.
fn bring_loopback_up() -> Result<()> {
    let step = || "bring the loopback interface up";
    let socket =
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).failing(Kind::Network, step)?;
    sys::ioctl::bring_loopback_up(socket.as_fd()).failing(Kind::Network, step)
}
