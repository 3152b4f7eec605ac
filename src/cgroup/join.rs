//! How a process gets into the group.

use super::Cgroup;
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
        let value = pid.to_string();
        for group in &self.groups {
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
            })?;
        }
        Ok(())
    }
}

/// Moves the calling thread into the groups of `files`. It must be its process's only one. For the child between clone
/// and execve: no allocation, no words.
pub(crate) fn enter(files: &[OwnedFd]) -> Result<(), Errno> {
    files.iter().try_for_each(|file| rustix::io::write(file, b"0").map(drop))
}
