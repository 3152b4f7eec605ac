//! A process that enters a running container, up to the last steps of every command.

use super::attributes::Attributes;
use super::identity::{self, Capabilities, Identity, OomScore};
use super::message::{Channel, Tag};
use super::plan::{Command, Stdio};
use super::spawned::{Spawned, born};
use super::{directory, launch, newborn};
use crate::error::{Context, Error, Kind, Result};
use crate::seccomp;
use crate::spec::root::Ids;
use crate::sys::attributes::set_affinity;
use crate::sys::clone::{SIBLING, Side, clone_process, clone_sibling_under_filter, close_from, exit, wait};
use crate::sys::{environment, weaken};
use caps::Capability;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Signal, pidfd_send_signal, setrlimit};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub(crate) struct Join {
    /// The pidfd of its first process.
    pub init: OwnedFd,
    pub pid: i32,
    /// Whether it adopts orphans among its descendants, so that they can be found.
    pub adopts: bool,
    /// The v2 cgroup of its birth.
    pub cgroup: Option<OwnedFd>,
    pub cgroup_tasks: Vec<OwnedFd>,
    /// `cgroup.procs` of a full cgroup, where no process can be born: it moves in after its birth.
    pub full_group: Option<OwnedFd>,
    /// Until it is in the cgroup.
    pub first_affinity: Option<Vec<u64>>,
    pub oom_score: OomScore,
    /// While it crosses the container's user namespace: root, or the one mapped id.
    pub entering: Identity,
    pub command: Command,
    pub stdio: Stdio,
}

const KINDS: [(&str, ThreadNameSpaceType); 7] = [
    ("user", ThreadNameSpaceType::USER),
    ("mnt", ThreadNameSpaceType::MOUNT),
    ("net", ThreadNameSpaceType::NETWORK),
    ("ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
    ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
    ("cgroup", ThreadNameSpaceType::CONTROL_GROUP),
    ("time", ThreadNameSpaceType::TIME),
];

const START: &str = "start a process for the container";
const JOIN: &str = "enter the container's namespaces";

pub(crate) enum Refused {
    /// The v2 cgroup has child groups or another type. Another group may take the process.
    Group(Error),
    /// EAGAIN: a cgroup is at its limit of processes ([`crate::cgroup::Cgroup::join_full`]).
    Full(Error),
    Other(Error),
}

impl Refused {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Refused::Group(error) | Refused::Full(error) | Refused::Other(error) => error,
        }
    }
}

/// A later error arrives on the channel, which closes at execve.
pub(crate) fn join(mut plan: Join) -> Result<Spawned, (Refused, Box<Join>)> {
    let cgroup = plan.cgroup.take();
    start(plan, cgroup.as_ref().map(AsFd::as_fd))
}

fn start(plan: Join, cgroup: Option<BorrowedFd<'_>>) -> Result<Spawned, (Refused, Box<Join>)> {
    // With our PID namespace the container sees the child from its birth (CVE-2016-9962).
    let _hidden = match identity::Hidden::begin() {
        Ok(hidden) => hidden,
        Err(error) => return Err((Refused::Other(error), Box::new(plan))),
    };
    let begin = || -> Result<_> {
        let step = || "look at the container's namespaces";
        let joined = different(plan.pid).failing(Kind::Namespace, step)?;
        let visits = is_different(plan.pid, "pid").failing(Kind::Namespace, step)?;
        let root = if joined.contains(ThreadNameSpaceType::MOUNT) { None } else { root(plan.pid)? };
        Ok((Channel::pair()?, joined, visits, root))
    };
    let ((ours, theirs), joined, visits, root) = match begin() {
        Ok(begun) => begun,
        Err(error) => return Err((Refused::Other(error), Box::new(plan))),
    };
    match clone_process(0, cgroup) {
        Err(errno) => {
            let error = Error::os(Kind::Namespace, errno).doing(START);
            let group = cgroup.is_some() && matches!(errno, Errno::BUSY | Errno::OPNOTSUPP);
            Err((if group { Refused::Group(error) } else { refused(error) }, Box::new(plan)))
        }
        Ok(Side::Child) => {
            drop(ours);
            std::panic::set_hook(Box::new(|_| exit(1)));
            if visits && plan.full_group.is_some() && theirs.wait_for_go().is_err() {
                exit(1);
            }
            if visits { help(plan, (joined, root), theirs) } else { run(plan, (joined, root), &theirs) }
        }
        Ok(Side::Parent(pid, helper)) if visits => {
            drop(theirs);
            let born = match &plan.full_group {
                None => born(ours, &helper, None, true),
                Some(group) => born_beside(ours, (pid, &helper), group).inspect_err(|_| {
                    // The helper may have ended already.
                    let _ = pidfd_send_signal(&helper, Signal::KILL);
                    let _ = wait(helper.as_fd());
                }),
            };
            born.map_err(|error| (refused(error), Box::new(plan)))
        }
        Ok(Side::Parent(pid, pidfd)) => Ok(Spawned::new(pid, pidfd, ours)),
    }
}

fn refused(error: Error) -> Refused {
    if error.errno() == Some(Errno::AGAIN.raw_os_error()) { Refused::Full(error) } else { Refused::Other(error) }
}

/// Moves the helper's child into a full group. The container sees it before: CAP_SYS_PTRACE inside could make it fork,
/// past the limits. So the parent traces it until then.
fn born_beside(channel: Channel, (pid, helper): (i32, &OwnedFd), group: &OwnedFd) -> Result<Spawned> {
    let step = || "move a new process into the container's cgroup, which is full";
    let join = |pid: i32| rustix::io::write(group, pid.to_string().as_bytes()).map(drop);
    let is_traced = !weaken::is_off("traced-newborn");
    if is_traced {
        newborn::seize(pid).failing(Kind::Cgroup, step)?;
    }
    channel.send_tag(Tag::Go)?;
    if is_traced {
        newborn::hold(pid, join).failing(Kind::Cgroup, step)?;
    }
    let spawned = born(channel, helper, None, false)?;
    if !is_traced {
        join(spawned.pid).failing(Kind::Cgroup, step)?;
    }
    spawned.go().map(|()| spawned)
}

/// Takes every step that is not the process's own outside the container's PID namespace. Our parent's child is then
/// born with nothing of the host and only the program's privileges. Undumpable is not enough: without a separate user
/// namespace, CAP_SYS_PTRACE inside can trace the helper (CVE-2016-9962).
fn help(plan: Join, (joined, root): (ThreadNameSpaceType, Option<OwnedFd>), parent: Channel) -> ! {
    let visited = ThreadNameSpaceType::PROCESS_ID;
    if weaken::is_off("joined-first") {
        // Other runtimes' order.
        let born = move_into_thread_name_spaces(plan.init.as_fd(), visited).failing(Kind::Namespace, || JOIN);
        give_birth(born, &parent);
        run(plan, (joined, root), &parent);
    }
    // Only children enter a PID namespace (setns(2)), so this exposes nothing.
    match prepare(plan, (joined | visited, root), &parent) {
        Ok(ready) => {
            give_birth(Ok(()), &parent);
            become_program(ready, &parent)
        }
        Err(error) => give_up(&error, &parent),
    }
}

/// Returns in the child, silent until our parent knows it. The helper ends.
fn give_birth(prepared: Result<()>, parent: &Channel) {
    match prepared.and_then(|()| clone_sibling_under_filter().failing(Kind::Namespace, || START)) {
        Ok(Side::Child) => {
            if let Err(error) = parent.wait_for_go() {
                give_up(&error, parent);
            }
        }
        Ok(Side::Parent(_, pidfd)) => exit(i32::from(parent.hand(Tag::Born, pidfd.as_fd()).is_err())),
        Err(error) => give_up(&error, parent),
    }
}

/// The end of a first process that prepares everything outside an existing PID namespace. The program's process is born
/// inside.
pub(super) fn be_born(mut command: Command, stdio: Stdio, has_own_users: bool, parent: &Channel) -> ! {
    let prepared = command
        .attributes
        .label_ahead()
        .and_then(|()| close(&command, &stdio, [Some(parent.as_fd()), None, None]))
        .and_then(|()| become_command(command, stdio, has_own_users, !has_own_users));
    match prepared {
        Ok(ready) => {
            give_birth(Ok(()), parent);
            become_program(ready, parent)
        }
        Err(error) => give_up(&error, parent),
    }
}

/// Erases variables and command line: the container's processes can read them (variables with CAP_SYS_PTRACE).
pub(super) fn hide_caller(arguments: environment::Arguments) {
    if weaken::is_off("hidden-caller") {
        return;
    }
    environment::wipe();
    arguments.wipe();
}

pub(super) fn find_arguments() -> Result<environment::Arguments> {
    environment::Arguments::find().failing(Kind::Identity, || "find our command line")
}

fn give_up(error: &Error, parent: &Channel) -> ! {
    parent.fail(error);
    exit(1)
}

/// setns(2) fails for our own user namespace.
pub(super) fn different(pid: i32) -> Result<ThreadNameSpaceType, Errno> {
    KINDS.iter().try_fold(ThreadNameSpaceType::empty(), |all, (name, kind)| {
        Ok(if is_different(pid, name)? { all | *kind } else { all })
    })
}

fn is_different(pid: i32, name: &str) -> Result<bool, Errno> {
    let inode = |path: String| rustix::fs::stat(path).map(|status| status.st_ino);
    match (inode(format!("/proc/{pid}/ns/{name}")), inode(format!("/proc/self/ns/{name}"))) {
        (Ok(theirs), Ok(ours)) => Ok(theirs != ours),
        // The kernel has no namespaces of this kind.
        (_, Err(Errno::NOENT)) => Ok(false),
        (Err(errno), _) | (_, Err(errno)) => Err(errno),
    }
}

pub(super) fn directory(path: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).failing(Kind::Mount, || format!("open `{path}`"))
}

fn enter_namespaces(process: &OwnedFd, joined: ThreadNameSpaceType) -> Result<()> {
    if joined.is_empty() {
        return Ok(()); // the container has only ours, and setns(2) refuses none
    }
    move_into_thread_name_spaces(process.as_fd(), joined).failing(Kind::Namespace, || JOIN)
}

/// As root of the user namespace, if that is one of them.
pub(super) fn enter_all(process: OwnedFd, joined: ThreadNameSpaceType) -> Result<()> {
    enter_namespaces(&process, joined)?;
    if joined.contains(ThreadNameSpaceType::USER) {
        identity::become_user(&Identity::default(), None)?;
    }
    Ok(())
}

/// `None` if it is our root. For a process in our mount namespace.
fn root(pid: i32) -> Result<Option<OwnedFd>> {
    let step = || "open the container's root";
    let (theirs, ours) = (directory(&format!("/proc/{pid}/root"))?, directory("/")?);
    let place = |root: &OwnedFd| -> Result<_> {
        let status = rustix::fs::fstat(root).failing(Kind::Mount, step)?;
        Ok((status.st_dev, status.st_ino))
    };
    Ok(if place(&theirs)? == place(&ours)? { None } else { Some(theirs) })
}

fn run(plan: Join, there: (ThreadNameSpaceType, Option<OwnedFd>), parent: &Channel) -> ! {
    match prepare(plan, there, parent) {
        Ok(ready) => become_program(ready, parent),
        Err(error) => give_up(&error, parent),
    }
}

struct Ready {
    command: Command,
    stdio: Stdio,
    master: Option<OwnedFd>,
    adopts: bool,
}

fn become_program(ready: Ready, parent: &Channel) -> ! {
    let Ready { command, stdio, master, adopts } = ready;
    let begun = || -> Result<()> {
        identity::die_with_supervisor(parent)?;
        identity::be_undumpable()?;
        if adopts {
            // execve keeps it (PR_SET_CHILD_SUBREAPER(2const)).
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .failing(Kind::Identity, || "adopt orphans")?;
        }
        master.map_or(Ok(()), |master| parent.hand(Tag::Console, master.as_fd()))
    };
    if let Err(error) = begun() {
        give_up(&error, parent);
    }
    launch::run(command, &stdio, None, parent)
}

fn prepare(plan: Join, (joined, root): (ThreadNameSpaceType, Option<OwnedFd>), parent: &Channel) -> Result<Ready> {
    let Join {
        init, adopts, cgroup_tasks, full_group, first_affinity, oom_score, entering, mut command, stdio, ..
    } = plan;
    identity::die_with_supervisor(parent)?;
    identity::score(oom_score)?;
    identity::be_undumpable()?; // before a process inside can see us
    if let Some(cpus) = first_affinity {
        set_affinity(&cpus).failing(Kind::Identity, || "set the initial CPU affinity")?;
    }
    crate::cgroup::enter(&cgroup_tasks).failing(Kind::Cgroup, || "move into the container's cgroup")?;
    drop(cgroup_tasks);
    if let Some(group) = full_group.filter(|_| !joined.contains(ThreadNameSpaceType::PROCESS_ID)) {
        // No helper: this process itself moves.
        crate::cgroup::enter(&[group]).failing(Kind::Cgroup, || "move into the container's cgroup")?;
    }
    command.attributes.label_ahead()?; // while no procfs is the container's
    close(&command, &stdio, [Some(init.as_fd()), root.as_ref().map(AsFd::as_fd), Some(parent.as_fd())])?;
    hide_caller(find_arguments()?);
    enter_namespaces(&init, joined)?;
    drop(init);
    if let Some(root) = root {
        enter_root(root)?;
    }
    if joined.contains(ThreadNameSpaceType::USER) {
        identity::become_user(&entering, None)?; // the root of the namespace, which may become any user
        identity::be_undumpable()?;
    }
    identity::leave_keyring(&command.attributes)?;
    let has_own_users = joined.contains(ThreadNameSpaceType::USER);
    let is_seen_early = !has_own_users && joined.contains(ThreadNameSpaceType::PROCESS_ID);
    if command.outlives_parent && matches!(stdio, Stdio::Inherited) && joined.contains(ThreadNameSpaceType::MOUNT) {
        launch::use_own_null_device()?;
    }
    let ready = become_command(command, stdio, has_own_users, is_seen_early)?;
    Ok(Ready { adopts, ..ready })
}

/// Drops all of the host, and all but the program's privileges.
fn become_command(mut command: Command, stdio: Stdio, has_own_users: bool, is_seen_early: bool) -> Result<Ready> {
    identity::set_umask(&command.identity);
    enter_directory(&mut command)?;
    let (stdio, master) = terminal(stdio)?;
    launch::put(&stdio)?; // a process that traces this one finds only its streams
    let Identity { uid, gid, .. } = command.identity;
    if master.is_some() && !command.outlives_parent {
        launch::hand_over(&stdio, Ids { uid, gid })?; // a task's streams belong to its user
    }
    launch::give_streams(&command);
    if is_seen_early {
        filter_first(&mut command)?;
    }
    let kept = Identity { capabilities: kept(&command, has_own_users), ..command.identity.clone() };
    identity::bound_capabilities(&kept.capabilities)?;
    identity::become_user(&kept, None)?;
    command.identity.born_with_groups = true;
    identity::be_undumpable()?;
    identity::take_capabilities(&kept.capabilities)?;
    Ok(Ready { command, stdio, master, adopts: false })
}

/// Installs the filter before the birth, after the steps that need capabilities. A process born without it keeps
/// CAP_SYS_ADMIN until then, which CAP_SYS_PTRACE inside is enough to take over. In a separate user namespace
/// undumpable is enough.
///
/// A filter that refuses the remaining calls or has a listener comes last, and so does one with no_new_privs, which
/// needs no capability.
fn filter_first(command: &mut Command) -> Result<()> {
    let is_late = command.identity.no_new_privileges || command.seccomp.is_empty() || command.seccomp.listens();
    // A child may lose its parent's scheduling (sched(7), "Reset-on-fork").
    if !command.outlives_parent
        || is_late
        || command.attributes.need_priority()
        || weaken::is_off("filter-first")
        || !leaves_calls(&command.seccomp)
    {
        return Ok(());
    }
    // These could prevent the birth. The parent sets those that the process itself may not.
    let is_hindrance = |which: &Resource| matches!(which, Resource::Nproc | Resource::Nofile);
    let (later, now): (Vec<_>, Vec<_>) = command.rlimits.drain(..).partition(|(which, _)| is_hindrance(which));
    command.rlimits = later;
    for (resource, limit) in now {
        setrlimit(resource, limit)
            .failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"))?;
    }
    command.attributes.apply()?;
    command.attributes = Attributes::default();
    let program = std::mem::replace(&mut command.seccomp, Cow::Owned(seccomp::Program::empty()));
    seccomp::install(&program).map(drop)
}

fn leaves_calls(filter: &seccomp::Program) -> bool {
    const CONTROLLING_TERMINAL: u64 = 0x540e; // TIOCSCTTY, asm-generic/ioctls.h: its type differs between C libraries
    const SIZE: u64 = 0x5401; // TCGETS
    let plain = [
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_ppoll,
        libc::SYS_prctl,
        libc::SYS_setsid,
        libc::SYS_getsid,
        libc::SYS_dup3,
        libc::SYS_umask,
        libc::SYS_setresgid,
        libc::SYS_setresuid,
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_prlimit64,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_exit_group,
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
    ];
    #[cfg(target_arch = "x86_64")]
    let plain = plain.into_iter().chain([libc::SYS_poll, libc::SYS_dup2]);
    filter.allows(libc::SYS_clone, [SIBLING, 0, 0, 0, 0, 0])
        && [CONTROLLING_TERMINAL, SIZE].iter().all(|word| filter.allows(libc::SYS_ioctl, [0, *word, 0, 0, 0, 0]))
        && plain.into_iter().all(|call| filter.allows(call, [0; 6]))
}

/// A directory of the host in a visible process is a way to escape (CVE-2024-21626).
fn close(command: &Command, stdio: &Stdio, needed: [Option<BorrowedFd<'_>>; 3]) -> Result<()> {
    if weaken::is_off("descriptors") {
        return Ok(());
    }
    let mut kept = command.kept_descriptors();
    kept.extend(needed.into_iter().flatten());
    if let Stdio::Descriptors { input, output, error } = stdio {
        kept.extend([input.as_fd(), output.as_fd(), error.as_fd()]);
    }
    close_from(3 + command.preserved, &kept).failing(Kind::Identity, || "close the descriptors of the parent")
}

/// A container without a mount namespace has a root all the same.
pub(super) fn enter_root(root: OwnedFd) -> Result<()> {
    rustix::process::fchdir(&root)
        .and_then(|()| rustix::process::chroot("."))
        .failing(Kind::Mount, || "enter the container's root")
}

/// As the container's root, since its user may lack access. After a failure the process tries again as its user.
fn enter_directory(command: &mut Command) -> Result<()> {
    if rustix::process::chdir(&command.directory).is_ok() {
        directory::verify(&command.directory, Ok(()))?;
        command.directory = directory::ENTERED.into();
    }
    Ok(())
}

/// Adds what the remaining steps need.
fn kept(command: &Command, has_own_users: bool) -> Capabilities {
    let mut extra = 0;
    if !command.identity.no_new_privileges && !command.seccomp.is_empty() {
        extra |= Capability::CAP_SYS_ADMIN.bitmask(); // seccomp(2)
    }
    if command.attributes.need_priority() {
        extra |= Capability::CAP_SYS_NICE.bitmask();
    }
    // An engine's parent raises the limits. In a user namespace no process may.
    if !command.outlives_parent && !command.rlimits.is_empty() && !has_own_users {
        extra |= Capability::CAP_SYS_RESOURCE.bitmask();
    }
    let own = command.identity.capabilities;
    Capabilities { effective: own.effective | extra, permitted: own.permitted | extra, ..own }
}

fn terminal(stdio: Stdio) -> Result<(Stdio, Option<OwnedFd>)> {
    let Stdio::Terminal(size) = stdio else { return Ok((stdio, None)) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(Path::new("/"), flags, Mode::empty()).failing(Kind::Mount, || "open the container's root")?;
    launch::make_console(root.as_fd(), size).map(|(stdio, master)| (stdio, Some(master)))
}
