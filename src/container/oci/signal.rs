//! `kill`: a signal to the first process, or to all.

use super::Containers;
use super::id::ContainerId;
use super::record::Record;
use crate::cgroup::Cgroup;
use crate::container::tree::Stat;
use crate::error::{Context, Error, Kind, Result};
use crate::spec::state::Status;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;

impl Containers {
    /// Sends a signal by its number; 0 only tests whether the container runs. `all` also accepts a container that has
    /// ended. Without a private PID namespace the other processes outlive the first one, so SIGKILL goes to all, as in
    /// runc.
    pub fn kill(&self, id: &ContainerId, number: i32, all: bool) -> Result<()> {
        // Without the lock: its holder may wait for the container's end.
        let (path, record) = self.see(id)?;
        let status = record.status(&path);
        let is_running = !matches!(status, Status::Stopped | Status::Creating);
        if number == 0 {
            return if is_running { Ok(()) } else { Err(Error::new(Kind::State, "container not running")) };
        }
        let number = signal(number)?;
        let all = all || (number == Signal::KILL && !record.own_pids && record.cgroup.is_some());
        if all {
            let group = record.cgroup.as_ref().map(Cgroup::open).transpose()?.filter(|group| !group.is_gone());
            if let Some(group) = group {
                group.signal(number)?;
                return thaw_for(&record, status, number);
            }
        }
        // Without a group, as of a user without a delegated one, only the first process can be found.
        match is_running {
            false if all => return Ok(()),
            false => return Err(Error::new(Kind::State, "container not running")),
            true => {}
        }
        send(&record, number)?;
        thaw_for(&record, status, number)
    }
}

/// On v1 a frozen process does not die before it is thawed, even of SIGKILL.
fn thaw_for(record: &Record, status: Status, signal: Signal) -> Result<()> {
    if status == Status::Paused
        && signal == Signal::KILL
        && let Some(group) = &record.cgroup
    {
        let group = Cgroup::open(group)?;
        if !group.is_gone() {
            group.thaw()?;
        }
    }
    Ok(())
}

/// Sends a signal by its number. A process that has ended is not an error.
pub fn signal_process(process: std::os::fd::BorrowedFd<'_>, number: i32) -> Result<()> {
    match pidfd_send_signal(process, signal(number)?) {
        Err(Errno::SRCH) => Ok(()),
        other => other.failing(Kind::State, || "pass a signal on"),
    }
}

pub(super) fn signal(number: i32) -> Result<Signal> {
    // Real-time signals have only numbers.
    Signal::from_named_raw(number)
        .or_else(|| (34..=64).contains(&number).then(|| crate::sys::signal::real_time(number)))
        .ok_or_else(|| Error::new(Kind::Usage, format!("unknown signal \"{number}\"")))
}

/// The first process, held so that its pid cannot be reused; `None` after its end.
pub(super) fn hold(record: &Record) -> Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(record.pid) else { return Ok(None) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        other => other.failing(Kind::State, || "look at the container's first process")?,
    };
    let same = Stat::of(record.pid).is_some_and(|stat| stat.started == record.pid_started);
    Ok(same.then_some(pidfd))
}

pub(super) fn send(record: &Record, signal: Signal) -> Result<()> {
    let process = hold(record)?.ok_or_else(|| Error::new(Kind::State, "container not running"))?;
    match pidfd_send_signal(&process, signal) {
        Err(Errno::SRCH) => Err(Error::new(Kind::State, "container not running")),
        other => other.failing(Kind::State, || "signal the container"),
    }
}
