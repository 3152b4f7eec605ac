//! The state of workers: file, unit, running task. Their deaths, from the tasks' receipts.

use super::LABEL;
use super::file::Folder;
use super::unit::{Unit, units};
use crate::error::Result;
use crate::sandbox::HealthState;
use crate::task::{Receipt, Status, Store, Summary};
use serde::Serialize;
use std::collections::BTreeSet;

/// The state of a worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerState {
    /// Its name.
    pub name: String,
    /// `running`, `starting`, `restarting`, `failed` or `down`.
    pub state: &'static str,
    /// Its health, if it has a health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthState>,
    /// The running task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The task's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The task's image, by digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whether it has a file.
    pub has_file: bool,
    /// `None` where systemd does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Its recorded deaths.
    pub deaths: usize,
    /// Its last death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_death: Option<Death>,
}

/// All workers with a file, a unit or a running task, and systemd's error, if any.
pub fn states(folder: &Folder, store: &Store) -> Result<(Vec<WorkerState>, Option<crate::error::Error>)> {
    let files = folder.names()?;
    let (units, error) = match units(&files) {
        Ok(units) => (Some(units), None),
        Err(error) => (None, Some(error)),
    };
    let rows = tasks(store)?;
    let running: Vec<_> = rows.into_iter().filter(|row| row.status == Status::Running).collect();
    let mut names: BTreeSet<String> = files.iter().cloned().collect();
    names.extend(units.iter().flat_map(|units| units.keys().cloned()));
    names.extend(running.iter().filter_map(worker_of).map(str::to_owned));
    let mut states = Vec::new();
    for name in names {
        let unit = units.as_ref().and_then(|units| units.get(&name).cloned());
        let task = running.iter().rev().find(|row| worker_of(row) == Some(&name));
        let mut deaths = history(store, &name)?;
        let health = task.and_then(|task| task.health);
        let image = task.and_then(|task| Some(store.record(&task.id).ok()?.image?.digest));
        states.push(WorkerState {
            state: word(task.is_some(), health, unit.as_ref()),
            health,
            task: task.map(|task| task.id.clone()),
            since: task.map(|task| task.created.clone()),
            image,
            has_file: files.contains(&name),
            unit,
            deaths: deaths.len(),
            last_death: deaths.pop(),
            name,
        });
    }
    Ok((states, error))
}

/// The state of one worker.
pub fn state(folder: &Folder, store: &Store, name: &str) -> Result<WorkerState> {
    let (states, _) = states(folder, store)?;
    let found = states.into_iter().find(|state| state.name == name);
    found.ok_or_else(|| super::unknown(name))
}

fn word(runs: bool, health: Option<HealthState>, unit: Option<&Unit>) -> &'static str {
    match (runs, health, unit) {
        (true, Some(HealthState::Starting), _) => "starting",
        (true, ..) => "running",
        (false, _, Some(unit)) if unit.sub == "auto-restart" || unit.sub == "auto-restart-queued" => "restarting",
        (false, _, Some(unit)) if unit.active == "activating" => "starting",
        (false, _, Some(unit)) if unit.active == "failed" => "failed",
        _ => "down",
    }
}

/// A past life of a worker.
#[derive(Clone, Debug, Serialize)]
pub struct Death {
    /// The task's id.
    pub task: String,
    /// When it began.
    pub began: String,
    /// When it ended.
    pub ended: String,
    /// How long it ran.
    pub wall_seconds: f64,
    /// Its outcome.
    pub outcome: String,
    /// Its exit status.
    pub exit_status: u8,
    /// The error and the evidence of limits.
    pub reasons: Vec<String>,
    /// The digest of its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl Death {
    fn new(receipt: Receipt) -> Death {
        let error = receipt.error.into_iter().map(|error| error.message);
        let limits = receipt.limits_hit.into_iter().map(|hit| format!("{}: {}", hit.limit.word(), hit.evidence));
        let unfinished = receipt.unfinished.into_iter().map(|each| format!("had not ended: {each}"));
        Death {
            task: receipt.id,
            began: receipt.created,
            ended: receipt.ended,
            wall_seconds: receipt.usage.wall_seconds,
            outcome: receipt.outcome.word().to_owned(),
            exit_status: receipt.exit_status,
            reasons: error.chain(limits).chain(unfinished).collect(),
            image: receipt.image.map(|image| image.digest),
        }
    }
}

impl Death {
    /// Outcome and reasons in one line.
    pub fn words(&self) -> String {
        match self.reasons.is_empty() {
            true => self.outcome.clone(),
            false => format!("{}: {}", self.outcome, self.reasons.join("; ")),
        }
    }
}

/// The tasks of all workers, oldest first.
pub(super) fn tasks(store: &Store) -> Result<Vec<Summary>> {
    let (mut rows, _) = store.list()?;
    rows.retain(|row| row.labels.contains_key(LABEL));
    Ok(rows)
}

pub(super) fn worker_of(row: &Summary) -> Option<&str> {
    row.labels.get(LABEL).map(String::as_str)
}

/// The readable deaths of a worker, oldest first.
pub fn history(store: &Store, name: &str) -> Result<Vec<Death>> {
    let rows = tasks(store)?;
    let ended = rows.iter().filter(|row| worker_of(row) == Some(name) && row.outcome.is_some());
    // An unreadable receipt hides no other death.
    Ok(ended.filter_map(|row| store.receipt(&row.id).ok().flatten()).map(Death::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_that_of_the_task_before_that_of_the_unit() {
        let unit = |active: &str, sub: &str| Unit { active: active.into(), sub: sub.into(), ..Unit::default() };
        assert_eq!(word(true, Some(HealthState::Starting), None), "starting");
        assert_eq!(word(true, Some(HealthState::Unhealthy), Some(&unit("failed", "failed"))), "running");
        assert_eq!(word(false, None, Some(&unit("activating", "auto-restart"))), "restarting");
        assert_eq!(word(false, None, Some(&unit("activating", "start"))), "starting");
        assert_eq!(word(false, None, Some(&unit("failed", "failed"))), "failed");
        assert_eq!(word(false, None, None), "down");
    }
}
