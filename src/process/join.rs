//! The recipe of a process that enters a running container: into its cgroup, its namespaces, and then the same last steps as any command's.

use super::attributes::Attributes;
use super::identity::{self, Capabilities, Identity, OomScore};
use super::message::{Channel, Tag};
use super::plan::{Command, Stdio};
use super::spawned::{Spawned, born};
use super::{directory, launch};
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::Ids;
use crate::seccomp;
use crate::sys::attributes::set_affinity;
use crate::sys::clone::{SIBLING, Side, clone_process, clone_sibling_under_filter, close_from, exit};
use crate::sys::{environment, weaken};
use caps::Capability;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, setrlimit};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Everything that a process needs to enter a container.
pub(crate) struct Join {
    /// The container's first process: its namespaces are entered.
    pub init: OwnedFd,
    /// Its id.
    pub pid: i32,
    /// Whether the process is the new parent of orphans among its descendants, so that they can be found.
    pub adopts: bool,
    /// The v2 cgroup to be born in.
    pub cgroup: Option<OwnedFd>,
    /// The `tasks` files of v1 cgroups.
    pub cgroup_tasks: Vec<OwnedFd>,
    /// CPUs until it is in the cgroup.
    pub first_affinity: Option<Vec<u64>>,
    /// How ready the kernel is to end it when memory runs out.
    pub oom_score: OomScore,
    /// Who it is on its way through the container's user namespace: its root, or the one id that is mapped there.
    pub entering: Identity,
    /// What it becomes.
    pub command: Command,
    /// Where its input and output go.
    pub stdio: Stdio,
}

/// The namespaces of /proc/PID/ns in the words of setns(2).
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

/// Why a process could not be started in the container.
pub(crate) enum Refused {
    /// Its v2 group takes no processes, having groups below it or being of another kind; another group may.
    Group(Error),
    /// Anything else.
    Other(Error),
}

/// Starts the process. The caller has one thread. An error of its recipe arrives later; when its program has taken over, the channel ends.
pub(crate) fn join(mut plan: Join) -> Result<Spawned, (Refused, Box<Join>)> {
    let cgroup = plan.cgroup.take();
    start(plan, cgroup.as_ref().map(AsFd::as_fd))
}

fn start(plan: Join, cgroup: Option<BorrowedFd<'_>>) -> Result<Spawned, (Refused, Box<Join>)> {
    // Where the container has our PID namespace the child is seen inside from its first instant (CVE-2016-9962).
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
            Err((if group { Refused::Group(error) } else { Refused::Other(error) }, Box::new(plan)))
        }
        Ok(Side::Child) => {
            drop(ours);
            std::panic::set_hook(Box::new(|_| exit(1)));
            if visits { help(plan, (joined, root), theirs) } else { run(plan, (joined, root), &theirs) }
        }
        Ok(Side::Parent(_, helper)) if visits => {
            drop(theirs);
            born(ours, &helper, None, true).map_err(|error| (Refused::Other(error), Box::new(plan)))
        }
        Ok(Side::Parent(pid, pidfd)) => Ok(Spawned::new(pid, pidfd, ours)),
    }
}

/// The helper's part. It stays outside of the container's PID namespace and does there all that is not the process's own to do: that one, our parent's
/// child, is born when nothing of the host is left to be seen in it, and with no more power than its program gets. That nobody may look into it is not
/// enough: without a user namespace of the container's own, CAP_SYS_PTRACE inside is a power over us too (CVE-2016-9962).
fn help(plan: Join, (joined, root): (ThreadNameSpaceType, Option<OwnedFd>), parent: Channel) -> ! {
    let visited = ThreadNameSpaceType::PROCESS_ID;
    if weaken::is_off("joined-first") {
        // As runtimes did: born first, joining then.
        let born = move_into_thread_name_spaces(plan.init.as_fd(), visited).failing(Kind::Namespace, || JOIN);
        give_birth(born, &parent);
        run(plan, (joined, root), &parent);
    }
    // A PID namespace is entered by children alone (setns(2)), so that one call is all and shows nobody anything.
    match prepare(plan, (joined | visited, root), &parent) {
        Ok(ready) => {
            give_birth(Ok(()), &parent);
            become_program(ready, &parent)
        }
        Err(error) => give_up(&error, &parent),
    }
}

/// Has the child, and returns in it when our parent knows it; it is silent before. We end.
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

/// Ends the recipe of a container's first process that prepares everything outside of the PID namespace that exists: has the child that becomes the
/// program born there, by the same steps as a process that enters a container.
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

/// Forgets the caller's variables and command line: other processes of the container can read the command line of every process that they see, and
/// with CAP_SYS_PTRACE its variables.
pub(super) fn hide_caller(arguments: environment::Arguments) {
    if weaken::is_off("hidden-caller") {
        return;
    }
    environment::wipe();
    arguments.wipe();
}

/// Finds the caller's command line, for [`hide_caller`].
pub(super) fn find_arguments() -> Result<environment::Arguments> {
    environment::Arguments::find().failing(Kind::Identity, || "find our command line")
}

fn give_up(error: &Error, parent: &Channel) -> ! {
    parent.fail(error);
    exit(1)
}

/// The namespaces that the process has and we have not; to enter one's own user namespace is an error for the kernel.
pub(super) fn different(pid: i32) -> Result<ThreadNameSpaceType, Errno> {
    KINDS.iter().try_fold(ThreadNameSpaceType::empty(), |all, (name, kind)| {
        Ok(if is_different(pid, name)? { all | *kind } else { all })
    })
}

fn is_different(pid: i32, name: &str) -> Result<bool, Errno> {
    let inode = |path: String| rustix::fs::stat(path).map(|status| status.st_ino);
    match (inode(format!("/proc/{pid}/ns/{name}")), inode(format!("/proc/self/ns/{name}"))) {
        (Ok(theirs), Ok(ours)) => Ok(theirs != ours),
        // A kernel without namespaces of this kind.
        (_, Err(Errno::NOENT)) => Ok(false),
        (Err(errno), _) | (_, Err(errno)) => Err(errno),
    }
}

/// Names a directory of a process, or of ours.
pub(super) fn directory(path: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).failing(Kind::Mount, || format!("open `{path}`"))
}

/// Enters these namespaces of a process, as root of its user namespace where that is one of them.
pub(super) fn enter_all(process: OwnedFd, joined: ThreadNameSpaceType) -> Result<()> {
    move_into_thread_name_spaces(process.as_fd(), joined).failing(Kind::Namespace, || JOIN)?;
    if joined.contains(ThreadNameSpaceType::USER) {
        identity::become_user(&Identity::default(), None)?;
    }
    Ok(())
}

/// The root of a process in our own mount namespace, if it is another one than ours.
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

/// What is left to the process itself.
struct Ready {
    command: Command,
    stdio: Stdio,
    /// The master of its terminal, for the parent.
    master: Option<OwnedFd>,
    adopts: bool,
}

fn become_program(ready: Ready, parent: &Channel) -> ! {
    let Ready { command, stdio, master, adopts } = ready;
    let begun = || -> Result<()> {
        identity::die_with_supervisor(parent)?;
        identity::be_undumpable()?;
        if adopts {
            // Of the process itself, and kept by execve (PR_SET_CHILD_SUBREAPER(2const)).
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

/// One line a step.
fn prepare(plan: Join, (joined, root): (ThreadNameSpaceType, Option<OwnedFd>), parent: &Channel) -> Result<Ready> {
    let Join { init, adopts, cgroup_tasks, first_affinity, oom_score, entering, mut command, stdio, .. } = plan;
    identity::die_with_supervisor(parent)?;
    identity::score(oom_score)?;
    identity::be_undumpable()?; // before anybody inside can see us (CVE-2016-9962)
    if let Some(cpus) = first_affinity {
        set_affinity(&cpus).failing(Kind::Identity, || "set the initial CPU affinity")?;
    }
    crate::cgroup::enter(&cgroup_tasks).failing(Kind::Cgroup, || "move into the container's cgroup")?;
    drop(cgroup_tasks);
    command.attributes.label_ahead()?; // where no procfs is one of the container's
    close(&command, &stdio, [Some(init.as_fd()), root.as_ref().map(AsFd::as_fd), Some(parent.as_fd())])?;
    hide_caller(find_arguments()?);
    move_into_thread_name_spaces(init.as_fd(), joined).failing(Kind::Namespace, || JOIN)?;
    drop(init);
    if let Some(root) = root {
        enter_root(root)?;
    }
    if joined.contains(ThreadNameSpaceType::USER) {
        identity::become_user(&entering, None)?; // its root, who may become anybody
        identity::be_undumpable()?;
    }
    identity::leave_keyring(&command.attributes)?;
    let has_own_users = joined.contains(ThreadNameSpaceType::USER);
    // Where the container has our own PID namespace it is seen from the beginning, whatever comes first.
    let is_seen_early = !has_own_users && joined.contains(ThreadNameSpaceType::PROCESS_ID);
    if command.managed.is_some() && matches!(stdio, Stdio::Inherited) && joined.contains(ThreadNameSpaceType::MOUNT) {
        launch::use_own_null_device()?;
    }
    let ready = become_command(command, stdio, has_own_users, is_seen_early)?;
    Ok(Ready { adopts, ..ready })
}

/// The last steps on the way to a process that has nothing of the host and no more power than its program gets, but for what it needs itself.
fn become_command(mut command: Command, stdio: Stdio, has_own_users: bool, is_seen_early: bool) -> Result<Ready> {
    identity::set_umask(&command.identity);
    enter_directory(&mut command)?;
    let (stdio, master) = terminal(stdio)?;
    launch::put(&stdio)?; // who looks into the process finds no stream that it does not have
    let Identity { uid, gid, .. } = command.identity;
    if master.is_some() && command.managed.is_none() {
        launch::hand_over(&stdio, Ids { uid, gid })?; // a task's belongs to its user, as that of its command does
    }
    launch::give_streams(command.managed.as_ref(), uid);
    if is_seen_early {
        filter_first(&mut command)?;
    }
    let kept = Identity { capabilities: kept(&command, has_own_users), ..command.identity.clone() };
    identity::bound_capabilities(&kept.capabilities)?;
    identity::become_user(&kept, None)?;
    identity::be_undumpable()?;
    identity::take_capabilities(&kept.capabilities)?;
    Ok(Ready { command, stdio, master, adopts: false })
}

/// Puts the filter in force before the process is born, together with what would need capabilities after that. A process that is born without the filter
/// keeps CAP_SYS_ADMIN until then, and CAP_SYS_PTRACE is enough to take both over. In a user namespace of the container's own it is not: undumpable is enough.
///
/// A filter that refuses what is left to be done, or that asks a listener, comes last as it always did; the same with no_new_privs, where it needs no
/// capability.
fn filter_first(command: &mut Command) -> Result<()> {
    let Some(managed) = &mut command.managed else { return Ok(()) };
    let is_late = command.identity.no_new_privileges || command.seccomp.is_empty() || command.seccomp.listens();
    // Scheduling may be one that a child does not have (sched(7), "Reset-on-fork").
    if is_late
        || command.attributes.need_priority()
        || weaken::is_off("filter-first")
        || !leaves_calls(&command.seccomp)
    {
        return Ok(());
    }
    // These two could keep the process from being born. What it may not set itself then its parent does.
    let is_hindrance = |which: &Resource| matches!(which, Resource::Nproc | Resource::Nofile);
    let (later, now): (Vec<_>, Vec<_>) = managed.rlimits.drain(..).partition(|(which, _)| is_hindrance(which));
    managed.rlimits = later;
    for (resource, limit) in now {
        setrlimit(resource, limit)
            .failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"))?;
    }
    command.attributes.apply()?;
    command.attributes = Attributes::default();
    let program = std::mem::replace(&mut command.seccomp, Cow::Owned(seccomp::Program::empty()));
    seccomp::install(&program).map(drop)
}

/// Whether a process can be born under the filter and do what is left to it.
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
        libc::SYS_getgroups,
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

/// Closes what the program is not to have and what nobody needs on the way to it: a directory of the host's in a process that is seen inside is a
/// way out (CVE-2024-21626).
fn close(command: &Command, stdio: &Stdio, needed: [Option<BorrowedFd<'_>>; 3]) -> Result<()> {
    if weaken::is_off("descriptors") {
        return Ok(());
    }
    let mut kept: Vec<_> = needed.into_iter().flatten().chain(command.handed.as_ref().map(AsFd::as_fd)).collect();
    if let Stdio::Descriptors { input, output, error } = stdio {
        kept.extend([input.as_fd(), output.as_fd(), error.as_fd()]);
    }
    let gate = command.managed.as_ref().and_then(|managed| managed.gate.as_ref());
    kept.extend(gate.iter().flat_map(|gate| [gate.fifo.as_fd(), gate.report.as_fd()]));
    let preserved = command.managed.as_ref().map_or(0, |managed| managed.preserved);
    close_from(3 + preserved, &kept).failing(Kind::Identity, || "close the descriptors of the parent")
}

/// A container without a mount namespace of its own has its root all the same.
pub(super) fn enter_root(root: OwnedFd) -> Result<()> {
    rustix::process::fchdir(&root)
        .and_then(|()| rustix::process::chroot("."))
        .failing(Kind::Mount, || "enter the container's root")
}

/// Goes to where the program begins, as root of the container: its user may not be able to. What cannot be entered is left to the process, which tries
/// again as its user and says why not.
fn enter_directory(command: &mut Command) -> Result<()> {
    if rustix::process::chdir(&command.directory).is_ok() {
        directory::settle(&command.directory, Ok(()))?;
        command.directory = directory::ENTERED.into();
    }
    Ok(())
}

/// The capabilities of the program, and those without which the process cannot do what is left to it.
fn kept(command: &Command, has_own_users: bool) -> Capabilities {
    let mut extra = 0;
    if !command.identity.no_new_privileges && !command.seccomp.is_empty() {
        extra |= Capability::CAP_SYS_ADMIN.bitmask(); // seccomp(2)
    }
    if command.attributes.need_priority() {
        extra |= Capability::CAP_SYS_NICE.bitmask();
    }
    // The parent of a managed one raises its limits. In a user namespace nobody may.
    if !command.rlimits.is_empty() && !has_own_users {
        extra |= Capability::CAP_SYS_RESOURCE.bitmask();
    }
    let own = command.identity.capabilities;
    Capabilities { effective: own.effective | extra, permitted: own.permitted | extra, ..own }
}

/// A terminal of the container's, and its master.
fn terminal(stdio: Stdio) -> Result<(Stdio, Option<OwnedFd>)> {
    let Stdio::Terminal(size) = stdio else { return Ok((stdio, None)) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(Path::new("/"), flags, Mode::empty()).failing(Kind::Mount, || "open the container's root")?;
    launch::make_console(root.as_fd(), size).map(|(stdio, master)| (stdio, Some(master)))
}
