//! The first process for a PID namespace that already has processes. With CAP_SYS_PTRACE these can read the root,
//! descriptors and memory of each process that they see. So init's steps run outside, and the program's process is born
//! inside with nothing of the host (`join::be_born`).

use super::message::{Channel, Message, Tag};
use super::plan::{Plan, UserNamespace};
use super::spawned::Spawned;
use super::{apart, identity, init, join};
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::mounts;
use crate::ns::{self, Maps};
use crate::seccomp;
use crate::spec::seccomp::{Action, Rule, Seccomp};
use crate::sys::clone::{Side, clone_process, close_from, exit, wait};
use crate::sys::environment;
use caps::Capability;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};

const STEP: &str = "start a process that prepares the container";

/// [`Message::Born`] announces the successor in `processes`.
pub(super) fn spawn(
    mut plan: Plan,
    ours: Channel,
    theirs: Channel,
    cgroup: Option<OwnedFd>,
    maps: Option<&Maps>,
    processes: &OwnedFd,
) -> Result<Spawned> {
    let privileged = rustix::process::geteuid().is_root();
    let visits = privileged && ns::can_return(&plan.namespaces);
    let arguments = join::find_arguments()?; // before another mount namespace, whose procfs may not have us
    let left = if visits { Some(ns::visit(&plan.namespaces)?) } else { None };
    let joins_users = matches!(plan.user_namespace, UserNamespace::Joined(_));
    let (pid, pidfd) = match clone_process(0, cgroup.as_ref().map(AsFd::as_fd)).failing(Kind::Namespace, || STEP)? {
        Side::Child => {
            drop(ours);
            match enter(&mut plan, &theirs, (privileged, visits), (processes, arguments)) {
                Ok(()) => init::run(plan, theirs),
                Err(error) => {
                    theirs.fail(&error);
                    exit(1)
                }
            }
        }
        Side::Parent(pid, pidfd) => (pid, pidfd),
    };
    drop(theirs);
    let spawned = Spawned::new(pid, pidfd, ours);
    if let Some(left) = left {
        left.back().inspect_err(|_| spawned.abandon())?;
    }
    if let Some(maps) = maps {
        wait_for_users(&spawned).inspect_err(|_| spawned.abandon())?;
        ns::write_maps(pid, maps).inspect_err(|_| spawned.abandon())?;
    }
    if maps.is_some() || joins_users {
        spawned.go()?;
    }
    Ok(spawned)
}

fn wait_for_users(spawned: &Spawned) -> Result<()> {
    match spawned.receive()? {
        Some(Message::Ready) => Ok(()),
        Some(Message::Failed(error)) => Err(error),
        _ => Err(Error::new(Kind::Lost, "it ended without a word").doing(STEP)),
    }
}

/// Enters and creates the namespaces, except those that its parent has `visited`. The PID namespace is for its
/// children.
fn enter(
    plan: &mut Plan,
    parent: &Channel,
    (privileged, visited): (bool, bool),
    (processes, arguments): (&OwnedFd, environment::Arguments),
) -> Result<()> {
    let has_own_users = !matches!(plan.user_namespace, UserNamespace::Callers);
    identity::die_with_supervisor(parent)?;
    join::hide_caller(arguments);
    if has_own_users {
        // Only the machine's root may do these.
        identity::score(std::mem::replace(&mut plan.oom_score, identity::OomScore::Inherited))?;
        if let Some(there) = plan.cgroup_namespace.take() {
            move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::ControlGroup))
                .failing(Kind::Namespace, || "join the cgroup namespace")?;
        }
    }
    if privileged {
        if !visited {
            let _stay = ns::visit(&plan.namespaces)?;
        }
        take_processes(plan, processes)?;
    }
    let mut flags = plan.namespaces.made;
    match &plan.user_namespace {
        UserNamespace::Joined(userns) => {
            identity::be_undumpable()?;
            move_into_link_name_space(userns.as_fd(), Some(LinkNameSpaceType::User))
                .failing(Kind::UserNamespace, || "join the container's user namespace")?;
        }
        UserNamespace::Mapped(_) | UserNamespace::Born(_) => flags |= libc::CLONE_NEWUSER as u64,
        UserNamespace::Callers | UserNamespace::Entered(_) => {}
    }
    if !privileged {
        let _stay = ns::visit(&plan.namespaces)?;
    }
    unshare(CloneFlags::from_bits_retain(flags as i32))
        .failing(Kind::Namespace, || "create the container's namespaces")?;
    if !privileged {
        take_processes(plan, processes)?;
    }
    if matches!(plan.user_namespace, UserNamespace::Mapped(_)) {
        parent.send_tag(Tag::Ready)?;
    }
    Ok(())
}

/// Puts children into `processes`, and makes the container's procfs of that namespace.
fn take_processes(plan: &mut Plan, processes: &OwnedFd) -> Result<()> {
    if let mounts::Root::Bundle(bundle) = &mut plan.root {
        let wanting: Vec<_> = bundle.mounts.iter_mut().filter(|mount| mount.is_procfs()).collect();
        let opened = if wanting.is_empty() { Vec::new() } else { procfs(processes, wanting.len())? };
        wanting.into_iter().zip(opened).for_each(|(mount, context)| mount.context = Some(context));
    }
    join_processes(processes)
}

fn join_processes(processes: &OwnedFd) -> Result<()> {
    move_into_link_name_space(processes.as_fd(), Some(LinkNameSpaceType::ProcessID))
        .failing(Kind::Namespace, || "join the pid namespace")
}

/// Opens file systems, makes and awaits a child, allocates memory, sends a descriptor.
const CALLS: [&str; 10] =
    ["fsopen", "clone3", "sendmsg", "waitid", "exit", "exit_group", "close", "brk", "mmap", "munmap"];

/// fsopen(2) takes the caller's PID namespace, so a child without descriptors and rights calls it.
fn procfs(processes: &OwnedFd, count: usize) -> Result<Vec<OwnedFd>> {
    let step = || "open a procfs of the container's PID namespace";
    let filter = seccomp::compile(&Seccomp {
        default_action: Action::KillProcess,
        default_errno_ret: None,
        architectures: Vec::new(),
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: vec![Rule {
            names: CALLS.map(str::to_owned).into(),
            action: Action::Allow,
            errno_ret: None,
            args: Vec::new(),
        }],
    })?;
    let (ours, theirs) = files::Channel::pair().failing(Kind::Internal, step)?;
    match clone_process(0, None).failing(Kind::Namespace, step)? {
        Side::Child => {
            drop(ours);
            exit(i32::from(open_inside(processes, count, &theirs, &filter).is_err()))
        }
        Side::Parent(_, pidfd) => {
            drop(theirs);
            let opened: Vec<_> = (0..count).map_while(|_| ours.receive().ok().flatten()?.descriptor).collect();
            wait(pidfd.as_fd()).failing(Kind::Namespace, step)?;
            if opened.len() == count {
                Ok(opened)
            } else {
                Err(Error::new(Kind::Namespace, "the process that opens it has ended").doing(step()))
            }
        }
    }
}

/// Opens the contexts in a child in the PID namespace. An attacker in control of it has an empty root, CAP_SYS_ADMIN
/// and the filter's calls: contexts without effect before fsconfig(2).
fn open_inside(processes: &OwnedFd, count: usize, to: &files::Channel, filter: &seccomp::Program) -> Result<()> {
    let step = || "open a procfs";
    identity::die_with_parent()?;
    environment::wipe();
    let nowhere = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .and_then(|context| fsconfig_create(&context).map(|()| context))
        .and_then(|context| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()))
        .failing(Kind::Mount, || "make an empty root")?;
    join::enter_root(nowhere)?;
    join_processes(processes)?;
    close_from(0, &[to.as_fd()]).failing(Kind::Identity, || "close the descriptors of the parent")?;
    identity::bound_capabilities(&identity::Capabilities::default())?;
    identity::keep_capabilities(&[Capability::CAP_SYS_ADMIN])?;
    identity::gain_nothing()?;
    identity::be_undumpable()?;
    seccomp::install(filter)?;
    match clone_process(0, None).failing(Kind::Namespace, step)? {
        Side::Child => exit(i32::from(
            (0..count)
                .try_for_each(|_| {
                    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
                    to.send(b"P", Some(context.as_fd()))
                })
                .is_err(),
        )),
        Side::Parent(_, pidfd) => wait(pidfd.as_fd()).failing(Kind::Namespace, step).map(drop),
    }
}

/// Runs a hook (`createContainer`), a host program, outside the PID namespace and in all other namespaces of the
/// process, as root there.
pub(crate) fn beside(pid: i32, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let step = || "enter the container's namespaces for a hook";
    let enter = || -> Result<()> {
        let target =
            rustix::process::Pid::from_raw(pid).ok_or_else(|| Error::new(Kind::Internal, "the process has ended"))?;
        let process = pidfd_open(target, PidfdFlags::empty()).failing(Kind::Namespace, step)?;
        let joined = join::different(pid).failing(Kind::Namespace, step)?;
        let [root, place] = ["root", "cwd"].map(|name| join::directory(&format!("/proc/{pid}/{name}")));
        let place = place?;
        join::enter_all(process, joined)?;
        join::enter_root(root?)?;
        rustix::process::fchdir(place).failing(Kind::Namespace, step)
    };
    apart(|| enter().and_then(|()| work()).map(|()| Vec::new())).map(drop)
}
