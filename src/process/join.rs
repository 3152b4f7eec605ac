//! The recipe of a process that enters a running container: into its cgroup, its namespaces, and then the same last steps as any command's.

use super::attributes::Attributes;
use super::enter;
use super::identity::{self, Identity, OomScore};
use super::launch;
use super::message::{Channel, Tag};
use super::parent::Spawned;
use super::plan::{Command, Stdio};
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::Ids;
use crate::sys::attributes::set_affinity;
use crate::sys::clone::{Side, clone_process, clone_sibling, exit};
use crate::sys::heap::StartHeap;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Everything that a process needs to enter a container.
pub(crate) struct Join {
    /// The container's first process: its namespaces are entered.
    pub init: OwnedFd,
    /// Its id.
    pub pid: i32,
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
    match start(plan, cgroup.as_ref().map(AsFd::as_fd)) {
        Ok(spawned) => Ok(spawned),
        Err((errno, plan)) => {
            let error = Error::os(Kind::Namespace, errno).doing("start a process for the container");
            let group = cgroup.is_some() && matches!(errno, Errno::BUSY | Errno::OPNOTSUPP);
            Err((if group { Refused::Group(error) } else { Refused::Other(error) }, plan))
        }
    }
}

fn start(plan: Join, cgroup: Option<BorrowedFd<'_>>) -> Result<Spawned, (Errno, Box<Join>)> {
    // The child is seen inside from its first instant, so nobody may look into it from then on (CVE-2016-9962).
    let Ok(_hidden) = identity::Hidden::begin() else { return Err((Errno::PERM, Box::new(plan))) };
    let begin = || -> Result<_, Errno> {
        let (ours, theirs) = Channel::pair().map_err(|_| Errno::MFILE)?;
        let joined = different(plan.pid)?;
        // A PID namespace is for children: we visit it, have one there, and come back (setns(2)).
        let own = rustix::fs::open("/proc/self/ns/pid_for_children", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let visits = is_different(plan.pid, "pid")?;
        // An ordinary user may not visit it before he is in the user namespace that it belongs to, from which there is no way back: a helper does.
        let in_users = joined.contains(ThreadNameSpaceType::USER) && !rustix::process::geteuid().is_root();
        // Nor could the root of a user namespace come back to a PID namespace that belongs to the one above, as in a cell.
        let by_helper =
            visits && (in_users || move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID)).is_err());
        if visits && !by_helper {
            move_into_thread_name_spaces(plan.init.as_fd(), ThreadNameSpaceType::PROCESS_ID)?;
        }
        let side = clone_process(0, cgroup);
        if visits && !by_helper && !matches!(side, Ok(Side::Child)) {
            move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
        }
        Ok((ours, theirs, joined, by_helper, side?))
    };
    match begin() {
        Err(errno) => Err((errno, Box::new(plan))),
        Ok((ours, theirs, joined, by_helper, Side::Child)) => {
            drop(ours);
            if by_helper { help(plan, joined, theirs) } else { run(plan, joined, &theirs) }
        }
        Ok((ours, theirs, _, true, Side::Parent(_, helper))) => {
            drop(theirs);
            // The helper's words are an error of its own, which the caller gets as that of the recipe.
            enter::born(ours, &helper, None).map_err(|error| {
                let errno = error.errno().map_or(Errno::PERM, Errno::from_raw_os_error);
                (errno, Box::new(plan))
            })
        }
        Ok((ours, _, _, false, Side::Parent(pid, pidfd))) => Ok(Spawned::new(pid, pidfd, ours)),
    }
}

/// The helper's part: into the group and the user namespace, and then a child in the PID namespace that is our parent's.
fn help(mut plan: Join, joined: ThreadNameSpaceType, parent: Channel) -> ! {
    let mut begin = || -> Result<Side> {
        identity::die_with_supervisor(&parent)?;
        identity::score(std::mem::replace(&mut plan.oom_score, OomScore::Inherited))?;
        identity::be_undumpable()?;
        if let Some(cpus) = plan.first_affinity.take() {
            set_affinity(&cpus).failing(Kind::Identity, || "set the initial CPU affinity")?;
        }
        crate::cgroup::enter(&std::mem::take(&mut plan.cgroup_tasks))
            .failing(Kind::Cgroup, || "move into the container's cgroup")?;
        let first = (joined & ThreadNameSpaceType::USER) | ThreadNameSpaceType::PROCESS_ID;
        move_into_thread_name_spaces(plan.init.as_fd(), first)
            .failing(Kind::Namespace, || "enter the container's user namespace")?;
        clone_sibling(0).failing(Kind::Namespace, || "start a process for the container")
    };
    match begin() {
        Ok(Side::Child) => {
            // What was changed for it is known to the parent before it goes on.
            let become_root = || match joined.contains(ThreadNameSpaceType::USER) {
                true => identity::become_user(&plan.entering),
                false => Ok(()),
            };
            match parent.wait_for_go().and_then(|()| become_root()) {
                Ok(()) => run(plan, joined - ThreadNameSpaceType::USER, &parent),
                Err(error) => {
                    parent.fail(&error);
                    exit(1)
                }
            }
        }
        Ok(Side::Parent(_, pidfd)) => exit(i32::from(parent.hand(Tag::Born, pidfd.as_fd()).is_err())),
        Err(error) => {
            parent.fail(&error);
            exit(1)
        }
    }
}

/// The namespaces that the process has and we have not; to enter one's own user namespace is an error for the kernel.
fn different(pid: i32) -> Result<ThreadNameSpaceType, Errno> {
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

fn run(plan: Join, joined: ThreadNameSpaceType, parent: &Channel) -> ! {
    std::panic::set_hook(Box::new(|_| exit(1)));
    let Join { init, cgroup_tasks, first_affinity, oom_score, entering, command, stdio, .. } = plan;
    let entered = enter(
        &init,
        joined,
        &cgroup_tasks,
        first_affinity.as_deref(),
        (oom_score, &entering, &command.attributes),
        parent,
    );
    match entered.and_then(|()| terminal(stdio, &command, parent)) {
        Ok(stdio) => {
            if command.errand.is_none() {
                StartHeap.last();
            }
            launch::run(command, &stdio, parent)
        }
        Err(error) => {
            parent.fail(&error);
            exit(1)
        }
    }
}

/// One line a step.
fn enter(
    init: &OwnedFd,
    joined: ThreadNameSpaceType,
    tasks: &[OwnedFd],
    affinity: Option<&[u64]>,
    (score, entering, attributes): (OomScore, &Identity, &Attributes),
    parent: &Channel,
) -> Result<()> {
    identity::die_with_supervisor(parent)?;
    identity::score(score)?;
    identity::be_undumpable()?; // before anybody inside can see us (CVE-2016-9962)
    if let Some(cpus) = affinity {
        set_affinity(cpus).failing(Kind::Identity, || "set the initial CPU affinity")?;
    }
    crate::cgroup::enter(tasks).failing(Kind::Cgroup, || "move into the container's cgroup")?;
    move_into_thread_name_spaces(init.as_fd(), joined)
        .failing(Kind::Namespace, || "enter the container's namespaces")?;
    if joined.contains(ThreadNameSpaceType::USER) {
        identity::become_user(entering)?; // its root, who may become anybody
        identity::be_undumpable()?;
    }
    identity::leave_keyring(attributes)
}

/// A terminal of the container's; a task's belongs to its user, as that of its command does.
fn terminal(stdio: Stdio, command: &Command, parent: &Channel) -> Result<Stdio> {
    let Stdio::Terminal(size) = stdio else { return Ok(stdio) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(Path::new("/"), flags, Mode::empty()).failing(Kind::Mount, || "open the container's root")?;
    let stdio = launch::open_console(root.as_fd(), size, parent)?;
    if command.managed.is_none() {
        launch::hand_over(&stdio, Ids { uid: command.identity.uid, gid: command.identity.gid })?;
    }
    Ok(stdio)
}
