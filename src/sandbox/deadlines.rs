//! What the supervisor does by the clock: limits of time, meters, jobs, health checks.

use super::control::Control;
use super::limits::LimitName;
use super::meters::has_run;
use super::monitor::{self, Monitor};
use super::outcome::{LimitHit, Stopped};
use super::streams::Notice;
use super::supervise::{DRAIN, Findings, SAMPLE, State, USAGE, Watch};
use crate::container;
use crate::error::{Error, Kind, Result};
use std::time::{Duration, Instant};

impl Watch<'_> {
    pub(super) fn next_deadline(&self, state: &State) -> Duration {
        let now = Instant::now();
        let next = match state.over {
            Some(since) => since + DRAIN,
            None => [
                Some(state.started + self.limits.wall).filter(|_| state.kill_at.is_none()),
                Some(state.last_output + self.limits.idle)
                    .filter(|_| state.paused.is_none() && state.kill_at.is_none()),
                self.control.as_deref().and_then(Control::deadline).filter(|_| state.paused.is_none()),
                Some(state.next_sample),
                Some(state.next_disk),
                Some(state.next_queues),
                state.kill_at,
                state.drain.map(|(until, _)| until),
                self.health.as_ref().and_then(Monitor::deadline).filter(|_| state.is_ready && state.paused.is_none()),
            ]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now),
        };
        next.saturating_duration_since(now)
    }

    pub(super) fn check_deadlines(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        let now = Instant::now();
        if state.over.is_some() {
            return Ok(());
        }
        if state.kill_at.is_some_and(|at| now >= at) {
            state.kill_at = Some(now + self.grace.max(SAMPLE));
            self.running.kill()?;
        }
        if self.control.as_deref().is_some_and(Control::is_active) {
            state.last_output = now;
        }
        self.check_drain(now, state, seen)?;
        if state.paused.is_none() {
            self.check_jobs(now, seen.stopped.is_some() || seen.ended.is_some());
        }
        self.check_health(now, state, seen)?;
        if seen.stopped.is_none() && state.kill_at.is_none() {
            let hit = if now >= state.started + self.limits.wall {
                let evidence = format!("ran for {:.1} s", state.started.elapsed().as_secs_f64());
                Some((Stopped::Wall, LimitHit { limit: LimitName::Wall, evidence }))
            } else if state.paused.is_none() && now >= state.last_output + self.limits.idle {
                let evidence = format!("no output for {:.1} s", state.last_output.elapsed().as_secs_f64());
                Some((Stopped::Idle, LimitHit { limit: LimitName::Idle, evidence }))
            } else {
                None
            };
            if let Some((why, hit)) = hit {
                // After the command's end the limit holds for the other processes only.
                if seen.ended.is_none() {
                    seen.hits.push(hit);
                }
                self.ask(why, state, seen)?;
            }
        }
        if now >= state.next_disk {
            self.look_at_disk(state, seen)?;
        }
        let is_due = [state.next_queues, state.next_usage, state.next_sample].into_iter().any(|at| now >= at);
        let run = if is_due { self.running.processor_time() } else { None };
        if now >= state.next_queues {
            self.look_at_queues(run, state, seen)?;
        }
        if now >= state.next_usage {
            state.next_usage = now + USAGE;
            if has_run(&mut state.run_at_usage, run) {
                container::rest();
            }
            let sample = self.measure(state)?;
            self.sink.notice(Notice::Usage(sample))?;
        }
        if now >= state.next_sample {
            self.sink.notice(Notice::Tick)?;
            if has_run(&mut state.run_at_sample, run) {
                self.sample(state, seen)?;
            }
            self.look_at_locks(state, seen)?;
            self.look_at_link(state, seen)?;
            for renewal in self.sink.tick(self.running.secrets())? {
                self.running.renew_secret(&renewal)?;
            }
            if let Some(why) = self.sink.must_end() {
                self.kill(why, seen)?;
            }
            state.next_sample = now + SAMPLE.min(self.processor_time_left(state));
            let limit = u64::try_from(self.limits.cpu_time.as_nanos()).unwrap_or(u64::MAX);
            if state.cpu_ns >= limit && seen.stopped.is_none() {
                let evidence = format!("{:.2} s of processor time", state.cpu_ns as f64 / 1e9);
                seen.hits.push(LimitHit { limit: LimitName::CpuTime, evidence });
                self.kill(Stopped::CpuTime, seen)?;
            }
        }
        Ok(())
    }

    pub(super) fn serve_health(&mut self, slot: monitor::Slot, seen: &mut Findings) -> Result<()> {
        let health = self.health.as_mut().and_then(|monitor| monitor.serve(slot, &mut seen.refusals));
        health.map_or(Ok(()), |health| self.sink.notice(Notice::Health(health)))
    }

    fn check_health(&mut self, now: Instant, state: &mut State, seen: &mut Findings) -> Result<()> {
        let Some(monitor) = self.health.as_mut().filter(|_| state.is_ready && state.paused.is_none()) else {
            return Ok(());
        };
        let is_ending = seen.stopped.is_some() || seen.ended.is_some();
        if let Some(health) = monitor.advance(self.running, now, is_ending) {
            self.sink.notice(Notice::Health(health))?;
        }
        if let Some(fault) = monitor.fault(now) {
            let hint = "run the command of --health by `brig task exec`, or give it more time: --health-start";
            seen.failure.get_or_insert(Error::new(Kind::State, fault).hint(hint));
            self.ask(Stopped::Unhealthy, state, seen)?;
        }
        Ok(())
    }

    /// The service manager ends a sandbox without a sign of life.
    pub(super) fn watchdog(&mut self, state: &State, seen: &mut Findings) -> Stopped {
        let Some(monitor) = self.health.as_ref().filter(|_| !state.is_decided(seen)) else { return self.wish() };
        let words = format!("the health check has not passed for too long: {}", monitor.words());
        let hint = "the log of the task has what the command wrote";
        seen.failure.get_or_insert(Error::new(Kind::State, words).hint(hint));
        Stopped::Unhealthy
    }
}
