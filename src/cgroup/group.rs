//! The groups of one container, and how a process joins them.

use super::controller::{Controller, Controllers};
use super::directory::Directory;
use crate::error::{Context, Kind, Result};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// The kernel refuses to move a process that is still being made (`TASK_NEW`) with EINVAL, until the parent is
/// scheduled again.
const JOIN_TRIES: u32 = 5;
const JOIN_PAUSE: Duration = Duration::from_millis(30);

/// `PROC_USER_INIT_INO` of linux/proc_ns.h. An id map is not enough: another namespace may have the same one.
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// For the sandbox's processes, once other groups below the sandbox's have limits (`child`).
pub(super) const LEAF: &str = "main";

#[derive(Debug)]
pub(super) struct Group {
    pub(super) directory: Directory,
    /// v1: those of the hierarchy. v2: those that the group was given.
    pub(super) controllers: Controllers,
    pub(super) is_v2: bool,
}

impl Group {
    pub(super) fn leaf(&self) -> Option<Directory> {
        if self.is_v2 { self.directory.child(LEAF).ok() } else { None }
    }
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceControl {
    NotAsked,
    InForce,
    /// The caller lacks CAP_BPF or CAP_SYS_ADMIN over the host. A user namespace cannot make device nodes: the
    /// container has only those that were mounted into it.
    NotPermitted,
}

/// At most one group in each hierarchy.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(super) groups: Vec<Group>,
    pub(super) devices: DeviceControl,
}

/// For full groups ([`Cgroup::join_full`]).
#[derive(Debug)]
pub(crate) struct FullJoin {
    /// To be born in, if it counts no processes.
    pub clone_into: Option<OwnedFd>,
    /// The `tasks` files of the v1 groups that count no processes.
    pub tasks: Vec<OwnedFd>,
    /// The `cgroup.procs` file of the group that counts processes.
    pub counted: OwnedFd,
}

impl Cgroup {
    pub(super) fn of(groups: Vec<Group>) -> Cgroup {
        Cgroup { groups, devices: DeviceControl::NotAsked }
    }

    pub(super) fn group(&self, controller: Controller) -> Option<&Group> {
        self.groups.iter().find(|group| group.controllers.has(controller))
    }

    pub(super) fn v2(&self) -> Option<&Group> {
        self.groups.iter().find(|group| group.is_v2)
    }

    pub(super) fn v1(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| !group.is_v2)
    }

    #[cfg(test)]
    pub(super) fn devices(&self) -> DeviceControl {
        self.devices
    }

    pub(super) fn device_group(&self) -> Option<&Group> {
        self.group(Controller::Devices).or_else(|| self.v2())
    }

    /// The group to list and kill by: every group has all processes, and v2 can kill and freeze.
    pub(super) fn main(&self) -> Option<&Group> {
        self.v2().or_else(|| self.group(Controller::Freezer)).or_else(|| self.groups.first())
    }

    /// The v2 group (`CLONE_INTO_CGROUP`, clone(2)).
    pub(crate) fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.v2().map(|group| group.directory.fd())
    }

    /// The v1 groups' `tasks` files, for [`enter`]. A write to `cgroup.procs` waits for the lock of the thread group
    /// (docs/decisions/0002).
    pub(crate) fn join_files(&self) -> Result<Vec<OwnedFd>> {
        self.v1().map(|group| open_file(group, "tasks")).collect()
    }

    /// The pids controller refuses a fork(2) in a full group, not a move into it (cgroup-v2, "PID"). `None` without
    /// that controller.
    pub(crate) fn join_full(&self) -> Result<Option<FullJoin>> {
        let Some(counted) = self.group(Controller::Pids) else { return Ok(None) };
        let step = || "keep the container's cgroup open";
        let directory =
            self.clone_into().filter(|_| !counted.is_v2).map(|group| group.try_clone_to_owned()).transpose();
        let others = self.v1().filter(|group| !std::ptr::eq(*group, counted));
        Ok(Some(FullJoin {
            clone_into: directory.failing(Kind::Cgroup, step)?,
            tasks: others.map(|group| open_file(group, "tasks")).collect::<Result<_>>()?,
            counted: open_file(counted, "cgroup.procs")?,
        }))
    }

    pub(crate) fn join(&self, pid: i32) -> Result<()> {
        self.groups.iter().try_for_each(|group| join_one(group, pid))
    }

    /// The `tasks` files of the v1 groups for processor time alone, and whether [`Cgroup::usage`] counts that time. A
    /// helper joins no other group: it outlives the container, and the memory limit must not kill it. A v2 group cannot
    /// be joined for its time alone.
    pub(crate) fn time_files(&self) -> Result<(Vec<OwnedFd>, bool)> {
        const TIME: Controllers = Controllers::of(&[Controller::Cpu, Controller::Cpuacct]);
        let is_main = |group: &Group| self.main().is_some_and(|main| std::ptr::eq(main, group));
        let (mut files, mut is_counted) = (Vec::new(), false);
        for group in self.v1().filter(|group| !is_main(group)) {
            if group.controllers.and(TIME) == group.controllers && !group.controllers.is_empty() {
                files.push(open_file(group, "tasks")?);
                is_counted |= self.v2().is_none() && group.controllers.has(Controller::Cpuacct);
            }
        }
        Ok((files, is_counted))
    }
}

fn open_file(group: &Group, name: &str) -> Result<OwnedFd> {
    let step = || format!("open `{}`", group.directory.path().join(name).display());
    group.directory.writer(name).failing(Kind::Cgroup, step)
}

fn join_one(group: &Group, pid: i32) -> Result<()> {
    let value = pid.to_string();
    let mut result = group.directory.write("cgroup.procs", &value);
    for _ in 1..JOIN_TRIES {
        if result != Err(Errno::INVAL) {
            break;
        }
        std::thread::sleep(JOIN_PAUSE);
        result = group.directory.write("cgroup.procs", &value);
    }
    result.map_err(|errno| {
        let error = group.directory.refused("cgroup.procs", &value, errno);
        error.doing(format!("move the process {pid} into the container's cgroup"))
    })
}

/// The caller is the only thread of its process. Runs between clone and execve, so it does not allocate.
pub(crate) fn enter(files: &[OwnedFd]) -> Result<(), Errno> {
    files.iter().try_for_each(|file| rustix::io::write(file, b"0").map(drop))
}

/// Not only root of a user namespace.
pub(super) fn is_host_root() -> bool {
    let is_initial = || {
        let namespace = rustix::fs::stat("/proc/self/ns/user");
        namespace.is_ok_and(|status| status.st_ino == INITIAL_USER_NAMESPACE)
    };
    rustix::process::geteuid().is_root() && is_initial()
}
