//! The receipt of an OCI container.

use crate::cgroup::{Cgroup, Evidence, Usage};
use crate::egress::{Ledger, Row};
use crate::error::{Error, Kind, Result};
use crate::files::{self, Durability};
use crate::landlock;
use crate::spec::protections::{DiskCap, Protections};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

const SCHEMA: u32 = 1;

pub(super) struct End {
    pub created: SystemTime,
    pub ended: SystemTime,
    /// `None` if the kernel does not have the wait status.
    pub status: Option<i32>,
    /// Of the monitor.
    pub faults: Vec<String>,
}

/// The file has its fields in this order.
#[derive(Debug, Serialize)]
struct Receipt<'all> {
    schema: u32,
    runtime: String,
    id: &'all str,
    created: String,
    ended: String,
    outcome: &'static str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// Reached limits, also without being ended.
    limits_hit: Vec<&'static str>,
    evidence: Option<Evidence>,
    usage: Option<Usage>,
    protections: InForce<'all>,
    disk: Option<DiskUse>,
    egress: Option<&'all [Row]>,
    faults: Vec<String>,
}

#[derive(Debug, Serialize)]
struct InForce<'all> {
    /// All of it.
    landlock: bool,
    seccomp: Option<&'static str>,
    disk_bytes: Option<u64>,
    disk_inodes: Option<u64>,
    egress: Option<&'all [String]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct DiskUse {
    used_bytes: u64,
    used_inodes: u64,
    /// No block or no inode is left.
    is_full: bool,
}

pub(super) fn check(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let words = format!("the directory `{}` of `dev.brig.receipt` does not exist: make it", directory.display());
    Err(Error::new(Kind::Spec, words))
}

/// Writes `<directory>/<id>.json`.
pub(super) fn write(
    directory: &Path,
    id: &str,
    protections: &Protections,
    end: &End,
    cgroup: Option<&Cgroup>,
    scratch: &Option<OwnedFd>,
    ledger: Option<&Ledger>,
) -> Result<()> {
    let evidence = cgroup.and_then(|cgroup| cgroup.evidence().ok());
    let usage = cgroup.and_then(|cgroup| cgroup.usage().ok());
    let disk = scratch.as_ref().and_then(disk_use);
    let (exit_code, signal) = (end.status.and_then(exit_code), end.status.and_then(signal));
    let mut faults = end.faults.clone();
    faults.extend(ledger.iter().flat_map(|ledger| ledger.faults.iter().cloned()));
    if end.status.is_none() {
        faults.push("the kernel does not say how it ended (Linux 6.15 does)".to_owned());
    }
    let time = |time| humantime::format_rfc3339_millis(time).to_string();
    let receipt = Receipt {
        schema: SCHEMA,
        runtime: format!("brig {}", env!("CARGO_PKG_VERSION")),
        id,
        created: time(end.created),
        ended: time(end.ended),
        outcome: outcome(exit_code, signal, evidence),
        exit_code,
        signal,
        limits_hit: limits_hit(evidence, disk),
        evidence,
        usage,
        protections: InForce {
            landlock: protections.landlock.is_some() && landlock::lacks().is_none(),
            seccomp: protections.agent_filter.then_some("agent"),
            disk_bytes: protections.disk.map(|DiskCap { bytes, .. }| bytes),
            disk_inodes: protections.disk.map(|DiskCap { inodes, .. }| inodes),
            egress: protections.egress.as_deref(),
        },
        disk,
        egress: ledger.map(|ledger| ledger.rows.as_slice()),
        faults,
    };
    let text = serde_json::to_vec_pretty(&receipt).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    files::replace(&directory.join(format!("{id}.json")), &text, 0o644, Durability::Synced)
}

/// wait(2).
fn exit_code(status: i32) -> Option<i32> {
    (status & 0x7f == 0).then_some(status >> 8 & 0xff)
}

/// wait(2).
fn signal(status: i32) -> Option<i32> {
    Some(status & 0x7f).filter(|signal| *signal != 0)
}

/// `memory` only if the kernel counted a kill in the container's cgroup.
fn outcome(exit_code: Option<i32>, signal: Option<i32>, evidence: Option<Evidence>) -> &'static str {
    let out_of_memory = evidence.is_some_and(|evidence| evidence.oom_kills > 0);
    match (exit_code, signal) {
        (Some(0), _) => "succeeded",
        (Some(_), _) => "failed",
        (None, Some(libc::SIGKILL)) if out_of_memory => "memory",
        (None, Some(_)) => "signaled",
        (None, None) => "unknown",
    }
}

fn limits_hit(evidence: Option<Evidence>, disk: Option<DiskUse>) -> Vec<&'static str> {
    let evidence = evidence.unwrap_or_default();
    let all = [
        ("memory", evidence.oom_kills > 0),
        ("pids", evidence.pids_max_hits > 0),
        ("disk", disk.is_some_and(|disk| disk.is_full)),
    ];
    all.into_iter().filter(|(_, is_hit)| *is_hit).map(|(name, _)| name).collect()
}

fn disk_use(root: &OwnedFd) -> Option<DiskUse> {
    let found = rustix::fs::fstatvfs(root).ok()?;
    Some(DiskUse {
        used_bytes: (found.f_blocks - found.f_bfree) * found.f_frsize,
        used_inodes: found.f_files - found.f_ffree,
        is_full: found.f_bavail == 0 || found.f_ffree == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_follows_the_status_and_the_evidence() {
        let killed = Some(Evidence { oom_kills: 1, ..Evidence::default() });
        let check = |status: Option<i32>, evidence, expected| {
            let found = outcome(status.and_then(exit_code), status.and_then(signal), evidence);
            assert_eq!(found, expected, "{status:?}");
        };
        check(Some(0), None, "succeeded");
        check(Some(3 << 8), killed, "failed");
        check(Some(9), killed, "memory");
        check(Some(9), Some(Evidence::default()), "signaled");
        check(Some(15), killed, "signaled");
        check(Some(9 | 0x80), None, "signaled");
        check(None, killed, "unknown");
        assert_eq!(limits_hit(killed, None), ["memory"]);
    }
}
