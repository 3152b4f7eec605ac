//! Signals and kills a container's processes, and removes its groups.

use super::directory::{self, Directory};
use super::freeze::wait_for;
use super::group::Cgroup;
use crate::error::{Context, Error, Kind, Result};
use crate::files::is_ready_by;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Without a freezer a process may fork between the listing and the signal. Each round leaves fewer.
const ROUNDS: u32 = 100;

/// A process may have 1024 descriptors.
const PIDFDS_AT_ONCE: usize = 256;

impl Cgroup {
    /// Groups below included.
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        if let Some(group) = self.main() {
            list(&group.directory, &mut found)?;
        }
        Ok(found)
    }

    /// A process that is forked meanwhile does not escape. Uses `cgroup.kill` (5.14), otherwise freezes first. Returns
    /// before the processes have ended.
    pub(crate) fn kill(&self) -> Result<()> {
        if let Some(group) = self.v2() {
            match group.directory.write("cgroup.kill", "1") {
                Ok(()) => return self.kill_strays(),
                // ENODEV: the group is removed, so it is empty.
                Err(Errno::NODEV) => return Ok(()),
                // ENOENT: an older kernel. EOPNOTSUPP: a threaded group.
                Err(Errno::NOENT | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(group.directory.refused("cgroup.kill", "1", errno)),
            }
        }
        self.freeze_and_signal(Signal::KILL)
    }

    /// Signals once. Freezes the processes meanwhile where possible, so that no fork is missed. A frozen container
    /// stays frozen.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if signal == Signal::KILL {
            return self.kill();
        }
        if self.is_frozen().unwrap_or(false) {
            return self.signal_all(signal, 1);
        }
        self.freeze_and_signal(signal)
    }

    fn freeze_and_signal(&self, signal: Signal) -> Result<()> {
        let is_frozen = self.freeze().is_ok();
        let signalled = self.signal_all(signal, if is_frozen { 1 } else { ROUNDS });
        // After an error too: a frozen process receives no signal.
        let thawed = if is_frozen { self.thaw() } else { Ok(()) };
        signalled.and(thawed)
    }

    /// A process may be in a v1 group but not in the v2 group (hybrid hosts).
    fn kill_strays(&self) -> Result<()> {
        let mut reached = BTreeSet::new();
        self.v1().try_for_each(|group| send(&group.directory, Signal::KILL, &mut reached).map(drop))
    }

    fn signal_all(&self, signal: Signal, rounds: u32) -> Result<()> {
        let mut reached = BTreeSet::new();
        for _ in 0..rounds {
            if signal == Signal::KILL {
                reached.clear(); // a pid may be reused by now, and SIGKILL may be sent twice
            }
            let mut sent = 0;
            for group in &self.groups {
                sent += send(&group.directory, signal, &mut reached)?;
            }
            if sent == 0 {
                break;
            }
        }
        Ok(())
    }

    /// `false` after `limit`.
    pub(crate) fn wait_until_empty(&self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        if let Some(group) = self.v2()
            && !wait_for(&group.directory, "populated 0", limit)?
        {
            return Ok(false);
        }
        loop {
            let processes = self.processes_of_v1()?;
            let Some(first) = processes.first() else { return Ok(true) };
            if !wait_for_end(*first, end)? {
                return Ok(false);
            }
        }
    }

    fn processes_of_v1(&self) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        for group in self.v1() {
            list(&group.directory, &mut found)?;
        }
        Ok(found)
    }

    /// Retries a busy group for a second, then returns the remaining groups with the error of the first. A missing
    /// group is not an error.
    pub(crate) fn remove(&self) -> Result<(), BusyGroups> {
        let mut left = BusyGroups { paths: Vec::new(), processes: BTreeSet::new(), errno: Errno::BUSY };
        for group in &self.groups {
            // The process that keeps one group busy is mostly in the others too: wait once.
            let tries = if left.paths.is_empty() { directory::REMOVE_TRIES } else { 1 };
            if let Err(errno) = directory::remove(group.directory.path(), tries) {
                if left.paths.is_empty() {
                    left.errno = errno;
                }
                left.paths.push(group.directory.path().to_path_buf());
                let mut found = Vec::new();
                // Best effort: the error names the path too.
                let _ = group.directory.processes(&mut found);
                left.processes.extend(found.into_iter().filter(|&process| process > 0));
            }
        }
        if left.paths.is_empty() { Ok(()) } else { Err(left) }
    }
}

#[derive(Debug)]
pub(crate) struct BusyGroups {
    pub(crate) paths: Vec<PathBuf>,
    processes: BTreeSet<i32>,
    errno: Errno,
}

impl From<BusyGroups> for Error {
    fn from(left: BusyGroups) -> Error {
        let paths: Vec<_> = left.paths.iter().map(|path| format!("`{}`", path.display())).collect();
        let mut error = Error::os(Kind::Cgroup, left.errno);
        if !left.processes.is_empty() {
            let processes: Vec<_> = left.processes.iter().map(i32::to_string).collect();
            // A caller of an OCI verb does not see the hint.
            error = error.doing(format!("still in it: process {}; end it, then try again", processes.join(", ")));
        }
        error.doing(format!("remove the group {}", paths.join(", "))).hint("end the processes that are still in it")
    }
}

fn list(directory: &Directory, found: &mut Vec<i32>) -> Result<()> {
    match directory.processes(found) {
        Ok(()) | Err(Errno::NODEV | Errno::NOENT) => Ok(()),
        Err(errno) => {
            Err(errno).failing(Kind::Cgroup, || format!("list the processes of `{}`", directory.path().display()))
        }
    }
}

/// Adds the signalled processes to `reached` and returns their number. Opens pidfds, then lists the group again: since
/// the first listing a pid may belong to a process of the host.
fn send(group: &Directory, signal: Signal, reached: &mut BTreeSet<i32>) -> Result<usize> {
    let mut found = Vec::new();
    list(group, &mut found)?;
    // 0 is a process outside brig's PID namespace; kill(0) would signal brig itself.
    let new: BTreeSet<i32> = found.into_iter().filter(|process| *process > 0 && !reached.contains(process)).collect();
    let mut sent = 0;
    for some in new.iter().copied().collect::<Vec<_>>().chunks(PIDFDS_AT_ONCE) {
        let mut pidfds = Vec::with_capacity(some.len());
        for &process in some {
            let Some(pid) = Pid::from_raw(process) else { continue };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => pidfds.push((process, pidfd)),
                // It has ended. EINVAL and ENOENT: the pid is that of a thread by now.
                Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => {}
                Err(errno) => return Err(errno).failing(Kind::Cgroup, || format!("open the process {process}")),
            }
        }
        let mut members = Vec::new();
        list(group, &mut members)?;
        let members: BTreeSet<i32> = members.into_iter().collect();
        for (process, pidfd) in pidfds.iter().filter(|(process, _)| members.contains(process)) {
            match pidfd_send_signal(pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno).failing(Kind::Cgroup, || format!("signal the process {process}")),
            }
            reached.insert(*process);
            sent += 1;
        }
    }
    Ok(sent)
}

/// `false` after `end`.
fn wait_for_end(process: i32, end: Instant) -> Result<bool> {
    let step = || format!("wait for the end of the process {process}");
    let Some(pid) = Pid::from_raw(process).filter(|_| process > 0) else { return Ok(false) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        other => other.failing(Kind::Cgroup, step)?,
    };
    is_ready_by(&pidfd, PollFlags::IN, end).failing(Kind::Cgroup, step)
}
