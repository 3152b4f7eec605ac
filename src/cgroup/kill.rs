//! Ending every process of the container, and taking its groups away.

use super::Cgroup;
use super::directory::{self, Directory};
use super::freeze::{timespec, wait_for};
use crate::error::{Context, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Without a freezer new processes may be born between the look and the signal; each round leaves fewer.
const ROUNDS: u32 = 100;

/// How many processes are held at once while they are signalled: each takes a descriptor, of which we may have 1024.
const HELD_AT_ONCE: usize = 256;

impl Cgroup {
    /// Every process in the container's groups, once, those of groups below included.
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        if let Some(group) = self.any() {
            list(&group.directory, &mut found)?;
        }
        Ok(found)
    }

    /// Sends SIGKILL to every process, so that none that is born meanwhile escapes: by the kernel's own `cgroup.kill`
    /// (5.14); before that, or on v1 alone, all are frozen first. They are dying when this returns, not yet gone.
    pub(crate) fn kill(&self) -> Result<()> {
        if let Some(group) = self.v2() {
            match group.directory.write("cgroup.kill", "1") {
                Ok(()) => return self.kill_strays(),
                // ENODEV: the group is removed already; nobody is in it.
                Err(Errno::NODEV) => return Ok(()),
                // ENOENT: an older kernel. EOPNOTSUPP: a threaded group.
                Err(Errno::NOENT | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(group.directory.refused("cgroup.kill", "1", errno)),
            }
        }
        self.hold_and_signal(Signal::KILL)
    }

    /// Sends a signal to every process, once to each. They stand still meanwhile where they can be frozen, so that none is born unseen; those that
    /// stood still before go on doing so.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if signal == Signal::KILL {
            return self.kill();
        }
        if self.is_frozen().unwrap_or(false) {
            return self.signal_all(signal, 1);
        }
        self.hold_and_signal(signal)
    }

    fn hold_and_signal(&self, signal: Signal) -> Result<()> {
        let is_held = self.freeze().is_ok();
        let signalled = self.signal_all(signal, if is_held { 1 } else { ROUNDS });
        // Always, or the signals are never delivered (and a frozen container would stay behind for ever).
        let thawed = if is_held { self.thaw() } else { Ok(()) };
        signalled.and(thawed)
    }

    /// On a hybrid host a process could be in a v1 group without being in the v2 one, if somebody else put it there.
    fn kill_strays(&self) -> Result<()> {
        let mut reached = BTreeSet::new();
        let mut v1 = self.groups.iter().filter(|group| !group.is_v2);
        v1.try_for_each(|group| send(&group.directory, Signal::KILL, &mut reached).map(drop))
    }

    /// Signals who is there, round by round until nobody has come.
    fn signal_all(&self, signal: Signal, rounds: u32) -> Result<()> {
        let mut reached = BTreeSet::new();
        for _ in 0..rounds {
            if signal == Signal::KILL {
                reached.clear(); // by now a number may be that of another process, and this signal may be sent twice
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

    /// Waits until no process is left in any group; `false` when the time is up first.
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
        for group in self.groups.iter().filter(|group| !group.is_v2) {
            list(&group.directory, &mut found)?;
        }
        Ok(found)
    }

    /// Removes the container's groups and those below them. Gone already is fine. What could not be removed (somebody is
    /// still in it) is tried for a second and then returned, with the error of the first.
    pub(crate) fn remove(&self) -> Result<(), Leftover> {
        let mut left = Leftover { paths: Vec::new(), processes: BTreeSet::new(), errno: Errno::BUSY };
        for group in &self.groups {
            // Who keeps one group busy is mostly in the others, too: there is one wait for all.
            let tries = if left.paths.is_empty() { directory::REMOVE_TRIES } else { 1 };
            if let Err(errno) = directory::remove(group.directory.path(), tries) {
                if left.paths.is_empty() {
                    left.errno = errno;
                }
                left.paths.push(group.directory.path().to_path_buf());
                let mut found = Vec::new();
                // What cannot be read is named by its path.
                let _ = group.directory.processes(&mut found);
                left.processes.extend(found.into_iter().filter(|&process| process > 0));
            }
        }
        if left.paths.is_empty() { Ok(()) } else { Err(left) }
    }
}

/// Groups that could not be removed.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) paths: Vec<PathBuf>,
    /// Who is still in them.
    processes: BTreeSet<i32>,
    errno: Errno,
}

impl From<Leftover> for Error {
    fn from(left: Leftover) -> Error {
        let paths: Vec<_> = left.paths.iter().map(|path| format!("`{}`", path.display())).collect();
        let mut error = Error::os(Kind::Cgroup, left.errno);
        if !left.processes.is_empty() {
            let processes: Vec<_> = left.processes.iter().map(i32::to_string).collect();
            // Of an OCI verb callers see one line, without the hint.
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

/// Signals the processes of a group that `reached` does not have yet, and adds them; how many these were. Each is held and then looked for in the
/// group again: a number alone may have become that of a process of the host since it was listed.
fn send(group: &Directory, signal: Signal, reached: &mut BTreeSet<i32>) -> Result<usize> {
    let mut found = Vec::new();
    list(group, &mut found)?;
    // 0 stands for a process of a namespace that we cannot see; killing 0 would be suicide.
    let new: BTreeSet<i32> = found.into_iter().filter(|process| *process > 0 && !reached.contains(process)).collect();
    let mut sent = 0;
    for some in new.iter().copied().collect::<Vec<_>>().chunks(HELD_AT_ONCE) {
        let mut held = Vec::with_capacity(some.len());
        for &process in some {
            let Some(pid) = Pid::from_raw(process) else { continue };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => held.push((process, pidfd)),
                // It has ended; the others are said of a number that is a thread's by now.
                Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => {}
                Err(errno) => return Err(errno).failing(Kind::Cgroup, || format!("hold the process {process}")),
            }
        }
        let mut still = Vec::new();
        list(group, &mut still)?;
        let still: BTreeSet<i32> = still.into_iter().collect();
        for (process, pidfd) in held.iter().filter(|(process, _)| still.contains(process)) {
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

/// Waits for the end of one process; `false` when the time is up.
fn wait_for_end(process: i32, end: Instant) -> Result<bool> {
    let words = || format!("wait for the end of the process {process}");
    let Some(pid) = Pid::from_raw(process).filter(|_| process > 0) else { return Ok(false) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        other => other.failing(Kind::Cgroup, words)?,
    };
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timespec(left))) {
        Ok(0) => Ok(false),
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno).failing(Kind::Cgroup, words),
    }
}
