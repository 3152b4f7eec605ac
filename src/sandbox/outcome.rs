//! Why a sandbox ended: a closed list, decided from evidence by one pure function.

use super::limits::LimitName;
use crate::error::Kind;
use crate::process::Ended;
use serde::{Deserialize, Serialize};

/// Why an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited with 0.
    Succeeded,
    /// The command exited with this code, and no limit explains it.
    Failed {
        /// The command's own exit code.
        exit_code: u8,
    },
    /// The command died by a signal that brig did not send, and no limit explains it.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// The command's exit code asks for a person's decision.
    NeedsInput,
    /// The wall-clock limit.
    Timeout,
    /// No output for too long.
    IdleTimeout,
    /// The limit on processor time.
    CpuTime,
    /// The kernel killed a process for lack of memory within the limit.
    Memory,
    /// A process could not be made because of the limit.
    Pids,
    /// The disk limit was reached.
    Disk,
    /// The limit on files was reached.
    Inodes,
    /// Too much output.
    OutputLimit,
    /// An operator's rule ended or refused it.
    Policy,
    /// A person or a signal ended it.
    Cancelled,
    /// A sandbox without a command was stopped: it has done its work.
    Stopped,
    /// Its health check did not pass in time.
    Unhealthy,
    /// The workspace or another input could not be prepared.
    PrepareFailed,
    /// The sandbox or its command could not be started.
    StartFailed,
    /// The work could not be delivered.
    PushFailed,
    /// Something could not be removed.
    CleanupFailed,
    /// The supervisor or its network's process died or could not go on.
    Lost,
}

impl Outcome {
    /// Every name in receipts.
    pub const WORDS: [&'static str; 21] = [
        "succeeded",
        "failed",
        "signaled",
        "needs_input",
        "timeout",
        "idle_timeout",
        "cpu_time",
        "memory",
        "pids",
        "disk",
        "inodes",
        "output_limit",
        "policy",
        "cancelled",
        "stopped",
        "unhealthy",
        "prepare_failed",
        "start_failed",
        "push_failed",
        "cleanup_failed",
        "lost",
    ];

    /// Its name in the receipt.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed { .. } => "failed",
            Outcome::Signaled { .. } => "signaled",
            Outcome::NeedsInput => "needs_input",
            Outcome::Timeout => "timeout",
            Outcome::IdleTimeout => "idle_timeout",
            Outcome::CpuTime => "cpu_time",
            Outcome::Memory => "memory",
            Outcome::Pids => "pids",
            Outcome::Disk => "disk",
            Outcome::Inodes => "inodes",
            Outcome::OutputLimit => "output_limit",
            Outcome::Policy => "policy",
            Outcome::Cancelled => "cancelled",
            Outcome::Stopped => "stopped",
            Outcome::Unhealthy => "unhealthy",
            Outcome::PrepareFailed => "prepare_failed",
            Outcome::StartFailed => "start_failed",
            Outcome::PushFailed => "push_failed",
            Outcome::CleanupFailed => "cleanup_failed",
            Outcome::Lost => "lost",
        }
    }

    /// Whether it ended as it was meant to.
    pub fn is_success(&self) -> bool {
        matches!(self, Outcome::Succeeded | Outcome::Stopped)
    }

    /// Whether another attempt may end otherwise without a change.
    pub fn retryable(&self, codes: &ExitCodes) -> bool {
        match self {
            Outcome::Failed { exit_code } => codes.retryable.contains(exit_code),
            Outcome::IdleTimeout | Outcome::Unhealthy | Outcome::PushFailed | Outcome::Lost => true,
            _ => false,
        }
    }

    /// The exit status of `brig task run`: the command's own if it ended by itself, else one per outcome
    /// (docs/errors.md).
    pub(crate) fn exit_status(&self, ended: Option<Ended>, start_error: Option<Kind>) -> u8 {
        match self {
            Outcome::Succeeded | Outcome::Stopped => 0,
            Outcome::Timeout | Outcome::IdleTimeout => 124,
            Outcome::CpuTime => 152,
            Outcome::Memory => 137,
            Outcome::OutputLimit => 153,
            Outcome::Cancelled => 130,
            Outcome::StartFailed | Outcome::PrepareFailed => start_error.map_or(125, Kind::exit_status),
            Outcome::Policy | Outcome::Unhealthy | Outcome::PushFailed | Outcome::CleanupFailed | Outcome::Lost => 125,
            Outcome::Failed { .. }
            | Outcome::Signaled { .. }
            | Outcome::NeedsInput
            | Outcome::Pids
            | Outcome::Disk
            | Outcome::Inodes => match ended {
                Some(Ended::Exited(code)) => code,
                Some(Ended::Signaled(signal)) => u8::try_from(128 + signal).unwrap_or(255),
                None => 137,
            },
        }
    }
}

/// A reached limit with its evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHit {
    /// The limit.
    pub limit: LimitName,
    /// Counter or measurement, as text.
    pub evidence: String,
}

/// The meaning of a command's exit codes. 0 is success, and a code in no list a failure. The lists are empty by
/// default: `make`, `grep` and argparse end with 2 for failures that another attempt repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExitCodes {
    /// Success, besides 0.
    pub succeeded: Vec<u8>,
    /// A failure of a dependency (a network, a service): another attempt may succeed.
    pub retryable: Vec<u8>,
    /// A person must decide.
    pub needs_input: Vec<u8>,
}

impl ExitCodes {
    /// A code with two meanings, with both: in two lists, or 0.
    pub(crate) fn conflict(&self) -> Option<(u8, &'static str, &'static str)> {
        let zero = [("succeeded", &[0][..])];
        let lists =
            [("succeeded", &self.succeeded), ("retryable", &self.retryable), ("needs_input", &self.needs_input)];
        let mut seen: Vec<_> = zero.to_vec();
        for (name, codes) in lists {
            let twice = |code: &&u8| seen.iter().find(|(other, has)| *other != name && has.contains(code));
            if let Some((code, (other, _))) = codes.iter().find_map(|code| Some((*code, *twice(&code)?))) {
                return Some((code, other, name));
            }
            seen.push((name, codes));
        }
        None
    }

    fn is_success(&self, ended: Option<Ended>) -> bool {
        matches!(ended, Some(Ended::Exited(code)) if code == 0 || self.succeeded.contains(&code))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Wall,
    Idle,
    CpuTime,
    Output,
    /// Out of memory: the whole sandbox ends, not one process.
    Memory,
    /// Too many files or bytes in a writable folder of the host.
    Disk,
    Cancelled,
    /// A sandbox without a command ends only so.
    Wished,
    Unhealthy,
    Gateway,
    Link,
    /// The supervisor could not write output or read a meter.
    Blind,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The command's end; `None` when pid 1 was killed before its report.
    pub ended: Option<Ended>,
    pub stopped: Option<Stopped>,
    /// In the order of [`LimitName::ALL`].
    pub hits: Vec<LimitHit>,
    /// Whether init or the command's process reported a failed start.
    pub start_failed: bool,
    pub exit_codes: ExitCodes,
}

/// The supervisor's reason comes first. A command that exited with 0 has succeeded whatever limit it reached; a reached
/// limit explains any other end.
pub(crate) fn decide(facts: &Facts) -> Outcome {
    if facts.start_failed {
        return Outcome::StartFailed;
    }
    let hit = |name| facts.hits.iter().any(|hit| hit.limit == name);
    match facts.stopped {
        Some(Stopped::Cancelled) => return Outcome::Cancelled,
        Some(Stopped::Wished) => return Outcome::Stopped,
        Some(Stopped::Unhealthy) => return Outcome::Unhealthy,
        Some(Stopped::Memory) => return Outcome::Memory,
        Some(Stopped::CpuTime) => return Outcome::CpuTime,
        Some(Stopped::Output) => return Outcome::OutputLimit,
        Some(Stopped::Disk) => return Outcome::Disk,
        Some(Stopped::Wall) => return Outcome::Timeout,
        Some(Stopped::Idle) => return Outcome::IdleTimeout,
        Some(Stopped::Gateway | Stopped::Link | Stopped::Blind) => return Outcome::Lost,
        None => {}
    }
    if facts.exit_codes.is_success(facts.ended) {
        return Outcome::Succeeded;
    }
    let explained = [
        (LimitName::Memory, Outcome::Memory),
        (LimitName::Disk, Outcome::Disk),
        (LimitName::Inodes, Outcome::Inodes),
        (LimitName::Pids, Outcome::Pids),
    ];
    if let Some((_, outcome)) = explained.into_iter().find(|(name, _)| hit(*name)) {
        return outcome;
    }
    match facts.ended {
        Some(Ended::Exited(code)) if facts.exit_codes.needs_input.contains(&code) => Outcome::NeedsInput,
        Some(Ended::Exited(exit_code)) => Outcome::Failed { exit_code },
        Some(Ended::Signaled(signal)) => Outcome::Signaled { signal },
        // pid 1 does not end by itself and brig did not kill it: another process on the host did.
        None => Outcome::Signaled { signal: 9 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_that_of_an_outcome() {
        for word in Outcome::WORDS {
            let value = serde_json::json!({ "outcome": word, "exit_code": 1, "signal": 1 });
            assert_eq!(serde_json::from_value::<Outcome>(value).unwrap().word(), word);
        }
        assert!(Outcome::Stopped.is_success() && !Outcome::Cancelled.is_success());
    }

    #[test]
    fn the_outcome_is_what_the_evidence_proves() {
        let hit = |limit| LimitHit { limit, evidence: "seen".into() };
        let check = |ended, stopped, hits: &[LimitName], expected: Outcome| {
            let facts =
                Facts { ended, stopped, hits: hits.iter().map(|&limit| hit(limit)).collect(), ..Facts::default() };
            assert_eq!(decide(&facts), expected, "{facts:?}");
        };
        let exited = |code| Some(Ended::Exited(code));
        check(exited(0), None, &[], Outcome::Succeeded);
        check(exited(0), Some(Stopped::Wished), &[LimitName::Disk], Outcome::Stopped);
        check(exited(0), None, &[LimitName::Memory, LimitName::Disk], Outcome::Succeeded);
        check(exited(1), None, &[], Outcome::Failed { exit_code: 1 });
        check(exited(137), None, &[], Outcome::Failed { exit_code: 137 });
        check(exited(3), None, &[], Outcome::Failed { exit_code: 3 });
        check(exited(1), None, &[LimitName::Disk], Outcome::Disk);
        check(exited(1), None, &[LimitName::Inodes], Outcome::Inodes);
        check(exited(1), None, &[LimitName::Pids, LimitName::Memory], Outcome::Memory);
        check(Some(Ended::Signaled(9)), None, &[], Outcome::Signaled { signal: 9 });
        check(Some(Ended::Signaled(9)), None, &[LimitName::Memory], Outcome::Memory);
        check(None, None, &[LimitName::Memory], Outcome::Memory);
        check(None, None, &[], Outcome::Signaled { signal: 9 });
        check(None, Some(Stopped::Wall), &[], Outcome::Timeout);
        check(exited(0), Some(Stopped::Wall), &[], Outcome::Timeout);
        check(Some(Ended::Signaled(15)), Some(Stopped::Cancelled), &[LimitName::Pids], Outcome::Cancelled);
        check(None, Some(Stopped::Unhealthy), &[LimitName::Memory], Outcome::Unhealthy);
        check(None, Some(Stopped::Output), &[], Outcome::OutputLimit);
        check(None, Some(Stopped::CpuTime), &[], Outcome::CpuTime);
        check(None, Some(Stopped::Idle), &[], Outcome::IdleTimeout);
        check(None, Some(Stopped::Disk), &[], Outcome::Disk);
        check(exited(0), Some(Stopped::Gateway), &[], Outcome::Lost);
        check(None, Some(Stopped::Link), &[], Outcome::Lost);
        check(None, Some(Stopped::Blind), &[LimitName::Disk], Outcome::Lost);
    }

    #[test]
    fn exit_codes_mean_what_the_caller_says_and_each_only_one_thing() {
        let codes = ExitCodes { succeeded: vec![10], retryable: vec![75, 4], needs_input: vec![20] };
        let check = |code, hits: &[LimitName], expected: Outcome, retryable| {
            let hits = hits.iter().map(|&limit| LimitHit { limit, evidence: "seen".into() }).collect();
            let ended = Some(Ended::Exited(code));
            let outcome = decide(&Facts { ended, hits, exit_codes: codes.clone(), ..Facts::default() });
            assert_eq!(outcome.retryable(&codes), retryable, "{code}");
            assert_eq!(outcome, expected, "{code}");
        };
        check(0, &[], Outcome::Succeeded, false);
        check(10, &[LimitName::Disk], Outcome::Succeeded, false);
        check(75, &[], Outcome::Failed { exit_code: 75 }, true);
        check(75, &[LimitName::Disk], Outcome::Disk, false);
        check(20, &[], Outcome::NeedsInput, false);
        check(2, &[], Outcome::Failed { exit_code: 2 }, false);
        check(3, &[], Outcome::Failed { exit_code: 3 }, false);
        assert_eq!(codes.conflict(), None);
        assert_eq!(ExitCodes::default().conflict(), None);
        let twice = ExitCodes { needs_input: vec![1, 4], ..codes.clone() };
        assert_eq!(twice.conflict(), Some((4, "retryable", "needs_input")));
        let zero = ExitCodes { retryable: vec![0], ..codes };
        assert_eq!(zero.conflict(), Some((0, "succeeded", "retryable")));
    }
}
