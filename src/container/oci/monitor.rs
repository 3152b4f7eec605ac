//! For containers with `dev.brig.egress.allow` or `dev.brig.receipt`: starts the gateway, outlives `create`, waits for
//! the first process, ends the gateway, writes the receipt. `delete` waits for it before it removes the cgroup with the
//! counters.
//!
//! Never: a second gateway. If the monitor or the gateway is killed, the container loses its network.

use super::receipt::{self, End};
use crate::cgroup::{self, Cgroup};
use crate::container::check::privileged;
use crate::container::gateway::{Gateway, Prepared, USER, Wish};
use crate::container::tree::Stat;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{Channel, is_ready_by};
use crate::ns::Range;
use crate::process::{Starter, in_background};
use crate::spec::protections::Protections;
use crate::sys::{environment, pidfd};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// For the whole machine.
const ID_RANGES: &str = "/run/brig";
/// For the engine to reap the first process.
const REAPED: Duration = Duration::from_secs(2);
/// `delete` waits so long: the gateway has two seconds for the rest of its account.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Monitor {
    pub id: String,
    pub created: SystemTime,
    pub protections: Protections,
    /// With the channel by which init sends sockets.
    pub gateway: Option<(Wish, Channel)>,
    pub init: OwnedFd,
    pub pid: i32,
    pub cgroup: Option<cgroup::Record>,
    /// The root directory of the capped disk.
    pub scratch: Option<OwnedFd>,
}

/// As in a container's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: i32,
    /// In clock ticks after the boot: the pid may be reused.
    started: u64,
}

impl Monitor {
    /// Returns when the gateway serves.
    pub(super) fn start(&self) -> Result<Process> {
        let channel = self.gateway.iter().map(|(_, channel)| channel.as_fd());
        let broker = self.gateway.iter().filter_map(|(wish, _)| wish.broker.as_ref());
        let secrets = broker.flat_map(|broker| [broker.key.as_fd(), broker.values.as_fd()]);
        let kept: Vec<_> =
            channel.chain(secrets).chain([self.init.as_fd()]).chain(self.scratch.iter().map(AsFd::as_fd)).collect();
        let word = in_background(&kept, |starter| self.run(starter))?;
        let lost = || Error::new(Kind::Lost, "the container's monitor ended at once");
        let pid = word.parse().map_err(|_| lost())?;
        let started = Stat::of(pid).ok_or_else(lost)?.started;
        Ok(Process { pid, started })
    }

    fn run(&self, starter: &mut Starter) -> Result<()> {
        let step = || "watch the container";
        // Signals for the caller's session or service must not end the network. SIGKILL ends both.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).failing(Kind::Internal, step)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).failing(Kind::Internal, step)?;
        if !cfg!(feature = "weakened") {
            environment::wipe(); // a weakened build reads its switches later
        }
        let counters = self.cgroup.as_ref().map(Cgroup::open).transpose()?;
        if let Some(group) = &counters {
            group.open_counters();
        }
        let range = match &self.gateway {
            Some(_) if privileged() => Some(Range::take(Path::new(ID_RANGES))?),
            _ => None,
        };
        let mut gateway = match &self.gateway {
            Some((wish, channel)) => {
                let channel = channel.try_clone().failing(Kind::Egress, step)?;
                let prepared = Prepared::with_channel(wish.clone(), channel)?;
                Some(prepared.start(range.as_ref().map(|range| range.base + USER), &[], false, true)?)
            }
            None => None,
        };
        starter.began(&std::process::id().to_string());
        let mut faults = Vec::new();
        self.wait(&mut gateway, &mut faults)?;
        let ended = SystemTime::now();
        let status = self.status();
        let ledger = gateway.map(|gateway| gateway.finish().0);
        let Some(directory) = &self.protections.receipt else { return Ok(()) };
        let end = End { created: self.created, ended, status, faults };
        receipt::write(directory, &self.id, &self.protections, &end, counters.as_ref(), &self.scratch, ledger.as_ref())
    }

    fn wait(&self, gateway: &mut Option<Gateway>, faults: &mut Vec<String>) -> Result<()> {
        loop {
            let served = gateway.as_ref().filter(|gateway| !gateway.is_over());
            let mut wait = vec![PollFd::new(&self.init, PollFlags::IN)];
            wait.extend(served.map(|gateway| PollFd::from_borrowed_fd(gateway.channel(), PollFlags::IN)));
            match poll(&mut wait, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.failing(Kind::Lost, || "wait for the container's end")?,
            };
            if !wait[0].revents().is_empty() {
                return Ok(());
            }
            if let Some(gateway) = gateway {
                gateway.receive()?;
                if gateway.is_over() {
                    faults.push("the gateway ended before the container".to_owned());
                }
            }
        }
    }

    /// The wait status of the first process, another process's child. The kernel keeps it for pidfds from 6.15 on, and
    /// in `/proc/PID/stat` until the process is reaped (proc_pid_stat(5), `exit_code`).
    fn status(&self) -> Option<i32> {
        let end = Instant::now() + REAPED;
        loop {
            match pidfd::exit_status(self.init.as_fd()) {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                _ => return Stat::of(self.pid).filter(Stat::is_over).map(|stat| stat.exit_code),
            }
        }
    }
}

impl Process {
    /// For a limited time.
    pub(super) fn wait(self) {
        let Some(process) = Pid::from_raw(self.pid) else { return };
        // A process that reuses the pid started later.
        let Ok(pidfd) = pidfd_open(process, PidfdFlags::empty()) else { return };
        if Stat::of(self.pid).is_some_and(|stat| stat.started == self.started) {
            // A monitor that hangs does not keep the container.
            let _ = is_ready_by(&pidfd, PollFlags::IN, Instant::now() + PATIENCE);
        }
    }
}
