//! The drain of a sandbox: new processes are refused, and running ones may end.

use super::control::Control;
use super::outcome::Stopped;
use super::supervise::{Findings, State, Watch};
use crate::error::{Error, Kind, Result};
use std::time::{Duration, Instant};

impl Watch<'_> {
    pub(super) fn wish(&self) -> Stopped {
        if self.holds { Stopped::Wished } else { Stopped::Cancelled }
    }

    /// Ends the sandbox at once, or when what entered it has ended, after `limit` at the latest.
    pub(super) fn stop(
        &mut self,
        grace: Option<Duration>,
        limit: Option<Duration>,
        state: &mut State,
        seen: &mut Findings,
    ) -> Result<()> {
        if let Some(limit) = limit
            && seen.stopped.is_none()
        {
            let until = Instant::now().checked_add(limit).ok_or_else(|| {
                Error::new(Kind::Usage, "the time of the drain is too long").hint("give it like `--drain 5m`")
            })?;
            state.drain = Some((until, grace));
            return Ok(());
        }
        state.drain = None;
        self.ask(self.wish(), state, seen)?;
        if let Some(grace) = grace {
            state.kill_at = Some(Instant::now() + grace);
        }
        Ok(())
    }

    pub(super) fn check_drain(&mut self, now: Instant, state: &mut State, seen: &mut Findings) -> Result<()> {
        let Some((until, grace)) = state.drain else { return Ok(()) };
        let running = self.control.as_deref().map(Control::running).unwrap_or_default();
        if !running.is_empty() && now < until {
            return Ok(());
        }
        seen.unfinished = running;
        self.stop(grace, None, state, seen)
    }
}

pub(super) fn check_open(state: &State) -> Result<()> {
    match state.drain {
        Some(_) => Err(Error::new(Kind::State, "the task is being drained and takes no new process")
            .hint("wait for its end: brig task wait ID")),
        None => Ok(()),
    }
}
