//! The health of a sandbox, as plain data.

use crate::error::words;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Letters of a check's first line in an error.
const SHOWN: usize = 200;

/// The health check that a caller asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// For `sh -c`; `None` for no check.
    pub command: Option<String>,
    /// The time between two checks.
    pub interval: Duration,
    /// The time of one check.
    pub timeout: Duration,
    /// The time until the first check passes.
    pub start: Duration,
}

impl Default for HealthCheck {
    fn default() -> HealthCheck {
        let (interval, timeout) = (Duration::from_secs(30), Duration::from_secs(30));
        HealthCheck { command: None, interval, timeout, start: Duration::from_secs(300) }
    }
}

words! {
    /// The state of a sandbox with a health check.
    pub enum HealthState {
        /// No check has passed yet.
        Starting = "starting",
        /// The last check passed.
        Healthy = "healthy",
        /// The last check failed, after one that passed.
        Unhealthy = "unhealthy",
    }
}

/// The state, with the check that led to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The state.
    pub state: HealthState,
    /// The exit status; `None` before the first check, and for one that did not end by itself.
    pub exit_status: Option<u8>,
    /// Why the check did not end by itself, or could not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The beginning of the check's output.
    pub output: String,
}

impl Health {
    pub(super) fn words(&self) -> String {
        let end = match (&self.reason, self.exit_status) {
            (Some(reason), _) => reason.clone(),
            (None, Some(status)) => format!("exit status {status}"),
            (None, None) => "no check has ended".to_owned(),
        };
        let line = self.output.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line: String = line.chars().take(SHOWN).collect();
        if line.is_empty() { end } else { format!("{end}: {line}") }
    }
}
