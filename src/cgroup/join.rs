//! How a process gets into the group.

use super::Cgroup;
use super::controller::{Controller, Controllers};
use super::create::Group;
use crate::error::{Context, Kind, Result};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// The kernel refuses to move a process that is still being made (`TASK_NEW`) with EINVAL; that state lasts as long as
/// its parent takes to be scheduled again.
const JOIN_TRIES: u32 = 5;
const JOIN_PAUSE: Duration = Duration::from_millis(30);

impl Cgroup {
    /// The v2 group, for a process that is to be born in it (`CLONE_INTO_CGROUP`, clone(2)).
    pub(crate) fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.v2().map(|group| group.directory.fd())
    }

    /// The v1 groups' `tasks` files, for the new process itself to [`enter`]: moving only the calling thread spares the
    /// kernel the lock of the whole thread group, which a write to `cgroup.procs` waits for.
    pub(crate) fn join_files(&self) -> Result<Vec<OwnedFd>> {
        let v1 = self.groups.iter().filter(|group| !group.is_v2);
        v1.map(|group| {
            let path = || format!("open `{}`", group.directory.path().join("tasks").display());
            group.directory.writer("tasks").failing(Kind::Cgroup, path)
        })
        .collect()
    }

    /// Moves the process `pid`, with all its threads, into every group.
    pub(crate) fn join(&self, pid: i32) -> Result<()> {
        self.groups.iter().try_for_each(|group| join_one(group, pid))
    }

    /// Moves a process that serves the container from outside into the v1 groups that share out and count processor time, and into no other: it must
    /// outlive the container's end, and the memory limit must not kill it. Returns whether [`Cgroup::usage`] counts its time now. A v2 group
    /// cannot be joined for the time alone.
    pub(crate) fn join_time(&self, pid: i32) -> Result<bool> {
        const TIME: Controllers = Controllers::of(&[Controller::Cpu, Controller::Cpuacct]);
        let is_killed = |group: &Group| self.any().is_some_and(|any| std::ptr::eq(any, group));
        let mut is_counted = false;
        for group in self.groups.iter().filter(|group| !group.is_v2 && !is_killed(group)) {
            if group.controllers.and(TIME) == group.controllers && !group.controllers.is_empty() {
                join_one(group, pid)?;
                is_counted |= self.v2().is_none() && group.controllers.has(Controller::Cpuacct);
            }
        }
        Ok(is_counted)
    }
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

/// Moves the calling thread into the groups of `files`. It must be its process's only one. For the child between clone
/// and execve: no allocation, no words.
pub(crate) fn enter(files: &[OwnedFd]) -> Result<(), Errno> {
    files.iter().try_for_each(|file| rustix::io::write(file, b"0").map(drop))
}
