//! The report of a run: outcome, usage, and the proof of removal.

use super::limits::LimitName;
use super::outcome::{LimitHit, Outcome};
use super::refusals::Refused;
use crate::egress::Ledger;
use crate::error::Error;
use crate::error::words;
use crate::process::Ended;
use serde::{Deserialize, Serialize};
use std::time::Duration;

words! {
    /// The isolation that was in force. Declared from what was done, never guessed.
    pub enum Guarantee {
        /// Nothing.
        None = "none",
        /// Inside another container that removed some kernel interfaces, or another runtime's in a cell.
        Nested = "nested",
        /// Everything that works without the machine's root: no id range, no disk on a device.
        Rootless = "rootless",
        /// Everything.
        Full = "full",
    }
}

/// The usage of a sandbox. `None` if nothing counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds from the clone to the end of the last process.
    pub wall_seconds: f64,
    /// Processor time in programs.
    pub cpu_user_seconds: Option<f64>,
    /// Processor time in the kernel.
    pub cpu_system_seconds: Option<f64>,
    /// Bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Processes and threads at once; sampled where the kernel keeps no peak.
    pub pids_peak: Option<u64>,
    /// Bytes on the scratch file system, sampled.
    pub disk_peak_bytes: Option<u64>,
    /// Files on the scratch file system, sampled.
    pub inodes_peak: Option<u64>,
    /// Bytes from disks.
    pub io_read_bytes: Option<u64>,
    /// Bytes to disks.
    pub io_written_bytes: Option<u64>,
    /// Bytes through the gateway or the sandbox's devices, with headers.
    #[serde(default)]
    pub network_sent_bytes: Option<u64>,
    /// Bytes received that way.
    #[serde(default)]
    pub network_received_bytes: Option<u64>,
    /// Bytes of standard output and error.
    pub output_bytes: u64,
}

/// The current usage. `None` if nothing counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the clone.
    pub wall_seconds: f64,
    /// Whether a user has paused it.
    pub paused: bool,
    /// Processor time.
    pub cpu_seconds: Option<f64>,
    /// Bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes.
    pub memory_limit: u64,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processes and threads.
    pub pids_limit: u64,
    /// Bytes on the scratch file system.
    pub disk_bytes: Option<u64>,
    /// Bytes on the scratch file system.
    pub disk_limit: u64,
    /// Files on the scratch file system.
    pub inodes: Option<u64>,
    /// Bytes from disks.
    pub io_read_bytes: Option<u64>,
    /// Bytes to disks.
    pub io_written_bytes: Option<u64>,
    /// Bytes through the gateway or the sandbox's devices, with headers.
    #[serde(default)]
    pub network_sent_bytes: Option<u64>,
    /// Bytes received that way.
    #[serde(default)]
    pub network_received_bytes: Option<u64>,
    /// Connections that the gateway has allowed.
    #[serde(default)]
    pub network_connections: Option<u64>,
    /// Bytes of standard output and error.
    pub output_bytes: u64,
}

/// A protection or limit that was not in force, as the caller allowed by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Degraded {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// The cleanup proof.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleanup {
    /// What was removed.
    pub removed: Vec<String>,
    /// Remains, with the reason.
    pub left: Vec<String>,
}

/// The report of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Why it ended.
    pub outcome: Outcome,
    /// The command's end, if it was started and reported.
    pub(crate) ended: Option<Ended>,
    /// The error, for example of its start.
    pub error: Option<Error>,
    /// Reached limits, also of a command that succeeded.
    pub limits_hit: Vec<LimitHit>,
    /// What it used.
    pub usage: Usage,
    /// The gateway's account, if there was a gateway.
    pub egress: Option<Ledger>,
    /// Programs whose requests for namespaces were refused.
    pub refused_namespaces: Vec<Refused>,
    /// Commands and jobs that had not ended when a drain was over.
    pub unfinished: Vec<String>,
    /// The isolation in force.
    pub guarantee: Guarantee,
    /// Default protections that were not in force.
    pub degraded: Vec<Degraded>,
    /// Removed objects and remains.
    pub cleanup: Cleanup,
}

impl Report {
    pub(crate) fn without_command(outcome: Outcome, error: Error) -> Report {
        Report {
            outcome,
            ended: None,
            error: Some(error),
            limits_hit: Vec::new(),
            usage: Usage::default(),
            egress: None,
            refused_namespaces: Vec::new(),
            unfinished: Vec::new(),
            guarantee: Guarantee::None,
            degraded: Vec::new(),
            cleanup: Cleanup::default(),
        }
    }

    /// The exit status for the shell.
    pub fn exit_status(&self) -> u8 {
        self.outcome.exit_status(self.ended, self.error.as_ref().map(Error::kind))
    }

    /// Whether a limit was reached.
    pub fn hit(&self, limit: LimitName) -> bool {
        self.limits_hit.iter().any(|hit| hit.limit == limit)
    }
}

/// Rounds to the microsecond, for a receipt.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}
