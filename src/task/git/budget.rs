//! The rest of a task's time, processor time and memory, which its couriers share.
//!
//! A silent server or a slow history must not hold a task, a mirror's lock or a processor longer than the task may run.

use crate::error::{Error, Kind, Result};
use crate::files::Lock;
use crate::host::is_off;
use crate::sandbox::{Limits, Outcome, Signals, Usage};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// Least time and processor time of couriers after the command: an attempt at its limit keeps its commits.
const LEAST: Duration = Duration::from_secs(60);
/// Between attempts to take a lock.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Budget {
    limits: Limits,
    began: Instant,
    cpu: Cell<Duration>,
    least: Cell<Duration>,
    cancelled: Cell<bool>,
}

impl Budget {
    /// Starts now.
    pub(crate) fn new(limits: &Limits) -> Budget {
        Budget {
            limits: limits.clone(),
            began: Instant::now(),
            cpu: Cell::default(),
            least: Cell::default(),
            cancelled: Cell::default(),
        }
    }

    pub(crate) fn count(&self, usage: &Usage) {
        let used = usage.cpu_user_seconds.unwrap_or(0.0) + usage.cpu_system_seconds.unwrap_or(0.0);
        let used = Duration::try_from_secs_f64(used).unwrap_or_default();
        self.cpu.set(self.cpu.get().saturating_add(used));
    }

    /// From here on couriers collect the work, with at least [`LEAST`].
    pub(crate) fn hand_back(&self) {
        self.least.set(LEAST);
    }

    /// Whether a user or a signal ended a courier, or the wait for a lock.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(super) fn cancel(&self) {
        self.cancelled.set(true);
    }

    /// For the next courier, which has a time limit even if the task has none.
    pub(super) fn limits(&self) -> Result<Limits> {
        if is_off("courier-limits") {
            return Ok(Limits { idle: Limits::default().wall, ..Limits::default() });
        }
        let (plain, wall) = (Limits::default(), self.wall_left()?);
        let cpu_time =
            bounded(self.limits.cpu_time, plain.cpu_time).saturating_sub(self.cpu.get()).max(self.least.get());
        if cpu_time.is_zero() {
            return Err(self.reached(&Outcome::CpuTime));
        }
        let (cpus, memory, swap) = (self.limits.cpus, self.limits.memory, self.limits.swap);
        // git runs quietly: an idle limit would end every long fetch.
        Ok(Limits { wall, idle: wall, cpu_time, cpus, memory, swap, ..Limits::default() })
    }

    fn wall_left(&self) -> Result<Duration> {
        let wall = bounded(self.limits.wall, Limits::default().wall)
            .saturating_sub(self.began.elapsed())
            .max(self.least.get());
        if wall.is_zero() { Err(self.reached(&Outcome::Timeout)) } else { Ok(wall) }
    }

    pub(super) fn reached(&self, outcome: &Outcome) -> Error {
        let (what, flag) = match outcome {
            Outcome::CpuTime => ("processor time", "--cpu-time"),
            Outcome::Memory => ("memory", "--memory"),
            _ => ("time", "--wall"),
        };
        Error::new(Kind::Workspace, format!("git used all the {what} that the task has left (`{flag}`)"))
            .hint(format!("see that the remote answers; for a large repository raise {flag}, or fetch less: --depth 1"))
    }

    /// Waits for other tasks until the task's time is over or the task is ended.
    pub(super) fn lock(&self, path: &Path, is_asked_to_end: impl Fn() -> bool) -> Result<Lock> {
        let mut signals = None;
        Lock::wait_while(path, || {
            // Only at the first pause: a free lock costs no further system call.
            let signals = match &signals {
                Some(taken) => taken,
                None => signals.insert(Signals::take()?),
            };
            if signals.wants_end() || is_asked_to_end() {
                self.cancel();
                return Err(Error::new(Kind::State, "ended while another task used the repository"));
            }
            let left = self.wall_left().map_err(|_| {
                Error::new(Kind::Workspace, "another task used the repository for all the time of this one (`--wall`)")
                    .hint("wait for the other task to end, or raise --wall")
            })?;
            std::thread::sleep(left.min(PAUSE));
            Ok(())
        })
    }
}

/// A time limit, or `plain` instead of none.
fn bounded(limit: Duration, plain: Duration) -> Duration {
    if limit == Limits::NO_TIME_LIMIT { plain } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn couriers_get_what_is_left_and_a_least_after_the_command() {
        let limits = Limits { wall: Duration::from_secs(50), cpu_time: Duration::from_secs(7), ..Limits::default() };
        let budget = Budget::new(&Limits { memory: 64 << 20, ..limits });
        let first = budget.limits().unwrap();
        assert!(first.wall <= Duration::from_secs(50) && first.wall > Duration::from_secs(40));
        assert_eq!((first.cpu_time, first.memory), (Duration::from_secs(7), 64 << 20));
        budget.count(&Usage { cpu_user_seconds: Some(4.0), cpu_system_seconds: Some(1.0), ..Usage::default() });
        assert_eq!(budget.limits().unwrap().cpu_time, Duration::from_secs(2));
        budget.count(&Usage { cpu_user_seconds: Some(4.0), ..Usage::default() });
        assert!(budget.limits().unwrap_err().to_string().contains("--cpu-time"));
        budget.hand_back();
        let last = budget.limits().unwrap();
        assert_eq!((last.cpu_time, last.wall), (LEAST, LEAST));
    }
}
