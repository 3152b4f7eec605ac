//! The deaths of a worker, from its tasks' receipts.

use super::LABEL;
use crate::error::Result;
use crate::task::{Receipt, Store, Summary};
use serde::Serialize;

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

/// The recorded deaths of a worker, oldest first.
pub fn history(store: &Store, name: &str) -> Result<Vec<Death>> {
    let rows = tasks(store)?;
    let ended = rows.iter().filter(|row| worker_of(row) == Some(name) && row.outcome.is_some());
    ended.filter_map(|row| store.receipt(&row.id).transpose()).map(|receipt| receipt.map(Death::new)).collect()
}
