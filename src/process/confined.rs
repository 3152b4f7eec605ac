//! A process beside the container that serves untrusted peers without privileges.

use super::identity::{self, Identity};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{fields_of, is_ready_by};
use crate::spec::landlock::Landlock;
use crate::sys::clone::{Side, clone_process, close_from, exit};
use crate::sys::{environment, weaken};
use crate::{landlock, seccomp};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, pidfd_send_signal, setrlimit, waitid,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub(crate) struct Confinement<'all> {
    /// `None` keeps the caller's.
    pub user: Option<u32>,
    pub tasks: &'all [OwnedFd],
    pub filter: &'all seccomp::Program,
    pub landlock_optional: bool,
}

pub(crate) trait Work {
    /// Read before the host is out of reach.
    type Sources;
    /// Hangs up when the parent ends.
    fn parent(&self) -> BorrowedFd<'_>;
    /// All others are closed.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
    /// Reads the host data, with all privileges.
    fn prepare(&self) -> Result<Self::Sources>;
    /// Without privileges.
    fn run(self, sources: Self::Sources) -> Result<()>;
}

/// Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Confined {
    /// Unique until it is reaped.
    pid: i32,
    pidfd: OwnedFd,
    reaped: bool,
    time: ProcessorTime,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessorTime {
    pub user: u64,
    pub system: u64,
}

/// `USER_HZ`, always 100 on Linux.
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// Fields 14 and 15 (proc_pid_stat(5)).
fn time_in(stat: &[u8]) -> Option<ProcessorTime> {
    let mut fields = fields_of(stat)?.skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok().map(|ticks| ticks * NANOSECONDS_PER_TICK);
    Some(ProcessorTime { user: next()?, system: next()? })
}

pub(crate) fn spawn_confined<Task: Work>(confinement: &Confinement<'_>, work: Task) -> Result<Confined> {
    match clone_process(0, None).failing(Kind::Internal, || "start a process beside the container")? {
        Side::Parent(pid, pidfd) => Ok(Confined { pid, pidfd, reaped: false, time: ProcessorTime::default() }),
        Side::Child => {
            // As in `init::run`.
            std::panic::set_hook(Box::new(|_| exit(1)));
            let done = confine(confinement, &work).and_then(|sources| work.run(sources));
            exit(i32::from(done.is_err()))
        }
    }
}

fn confine<Task: Work>(confinement: &Confinement<'_>, work: &Task) -> Result<Task::Sources> {
    identity::die_with_parent()?;
    if !weaken::is_off("gateway-environment") {
        environment::wipe();
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).failing(Kind::Identity, || "block the signals")?;
    crate::cgroup::enter(confinement.tasks).failing(Kind::Cgroup, || "move into the container's cgroup")?;
    let mut kept = work.descriptors();
    kept.push(work.parent());
    close_from(0, &kept).failing(Kind::Identity, || "close the descriptors of the parent")?;
    let sources = work.prepare()?;
    let files = getrlimit(Resource::Nofile).maximum;
    // Fewer descriptors mean fewer connections, nothing worse.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files });
    if let Some(user) = confinement.user {
        identity::become_user(&Identity::powerless(user, user), None)?;
    }
    identity::be_undumpable()?; // a change of user makes us dumpable again
    identity::keep_capabilities(&[])?;
    identity::gain_nothing()?;
    identity::die_with_parent()?;
    let mut wait = [PollFd::from_borrowed_fd(work.parent(), PollFlags::empty())];
    if poll(&mut wait, Some(&Timespec::default())).is_ok() && wait[0].revents().contains(PollFlags::HUP) {
        return Err(Error::new(Kind::Lost, "the parent is gone"));
    }
    let _ = landlock::restrict(&Landlock { rules: Vec::new(), optional: confinement.landlock_optional }, true)?;
    let _ = seccomp::install(confinement.filter)?;
    Ok(sources)
}

impl Confined {
    /// Until now, or until its end.
    pub(crate) fn time(&self) -> ProcessorTime {
        if self.reaped {
            return self.time;
        }
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid));
        stat.ok().and_then(|stat| time_in(&stat)).unwrap_or(self.time)
    }

    /// Returns whether it ended.
    pub(crate) fn wait(&mut self, most: Duration) -> bool {
        let end = Instant::now() + most;
        while !self.reaped {
            self.time = self.time();
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(Some(_)) | Err(rustix::io::Errno::CHILD) => self.reaped = true,
                _ if is_ready_by(&self.pidfd, PollFlags::IN, end) != Ok(true) => return false,
                _ => {}
            }
        }
        true
    }

    pub(crate) fn kill(&mut self) {
        if !self.reaped {
            // It may have ended already.
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            self.wait(Duration::from_secs(5));
        }
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = b"7 (a) b (c) S 1 7 7 0 -1 4194560 88 0 0 0 12 34 0 0 20 0 1 0 100 0 0";
        assert_eq!(time_in(stat), Some(ProcessorTime { user: 120_000_000, system: 340_000_000 }));
        assert_eq!(time_in(b"7 (a"), None);
    }
}
