//! The receipt: why a task ended, with evidence, usage and results.

use super::record::{Record, SCHEMA};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Cleanup, Degraded, Ledger, LimitHit, Limits, Mount, Outcome, Refused, Report, Usage, Volume};
use crate::task::definition::ProfileUsed;
use crate::task::definition::naming::Labels;
use crate::task::git::Push;
use crate::task::output::artifact::Artifacts;
use crate::task::output::handback::ChangeSet;
use crate::task::output::result::TaskResult;
use crate::task::redact::Redactor;
use crate::task::secrets::{SecretUse, TaskSecrets};
use crate::task::store::Store;
use crate::task::store::json::{self, now, read};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The output of `brig task show --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// The form's version.
    pub schema: u32,
    /// The task's id.
    pub id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The writing brig's version.
    pub brig: String,
    /// Start, RFC 3339.
    pub created: String,
    /// End, RFC 3339.
    pub ended: String,
    /// The command.
    pub command: Vec<String>,
    /// A word of the closed list, with `exit_code` or `signal` if it has one.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether an unchanged attempt may end otherwise.
    pub retryable: bool,
    /// The exit status of `brig task run`.
    pub exit_status: u8,
    /// brig's own error.
    pub error: Option<Failure>,
    /// The backend.
    pub backend: String,
    /// The isolation in force.
    pub guarantee: crate::sandbox::Guarantee,
    /// Whether the command was root of the sandbox's user namespace, with Docker's capabilities.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub root_inside: bool,
    /// Missing protections; the caller allowed that by name.
    pub degraded: Vec<Degraded>,
    /// Its limits.
    pub limits: Limits,
    /// Reached limits.
    pub limits_hit: Vec<LimitHit>,
    /// Its usage.
    pub usage: Usage,
    /// The root's image, with its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<crate::task::definition::image::ImageUsed>,
    /// The gateway's account of reached and refused hosts.
    #[serde(default)]
    pub egress: Option<Ledger>,
    /// Refused requests for namespaces, as a program with a sandbox makes them.
    #[serde(default)]
    pub refused_namespaces: Vec<Refused>,
    /// Commands and jobs that outlasted `brig task stop --drain`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<String>,
    /// The account of git's couriers, if any had a network.
    #[serde(default)]
    pub couriers: Option<Ledger>,
    /// The repository's commit at the start.
    pub commit_in: Option<String>,
    /// The task whose files it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The workspace's path inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_at: Option<std::path::PathBuf>,
    /// Shown files and folders of the host, without the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// The store's volumes, without the home.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The volume that was its home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The patterns of `--hide`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<String>,
    /// The repository's commit at the end.
    #[serde(default)]
    pub commit_out: Option<String>,
    /// The result of the push.
    #[serde(default)]
    pub push: Option<Push>,
    /// The secrets in force, without values.
    #[serde(default)]
    pub secrets: Vec<SecretUse>,
    /// How often the redactor hid something.
    #[serde(default)]
    pub redactions: u64,
    /// The workspace's changes; missing if never collected.
    #[serde(default)]
    pub changes: Option<ChangeSet>,
    /// Collected files; missing if not requested.
    #[serde(default)]
    pub artifacts: Option<Artifacts>,
    /// The task's result; missing if not left and not required.
    #[serde(default)]
    pub result: Option<TaskResult>,
    /// The profile.
    #[serde(default)]
    pub profile: Option<ProfileUsed>,
    /// Versions of the machine and of brig.
    #[serde(default)]
    pub versions: Versions,
    /// Seconds of each step, in order.
    pub steps: Vec<Timing>,
    /// What was removed or left.
    pub cleanup: Cleanup,
}

/// The task whose files another one began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its id.
    pub task: String,
    /// Its checkpoint; `null` for its last state.
    pub checkpoint: Option<String>,
}

/// Versions of the machine and of brig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The version of brig.
    pub brig: String,
    /// The kernel's release.
    pub kernel: String,
    /// The architecture, as the kernel names it.
    pub machine: String,
}

impl Versions {
    fn here() -> Versions {
        let system = rustix::system::uname();
        let text = |words: &std::ffi::CStr| words.to_string_lossy().into_owned();
        Versions {
            brig: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: text(system.release()),
            machine: text(system.machine()),
        }
    }
}

/// An error in a receipt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The catalogue's code.
    pub code: String,
    /// The message with all causes.
    pub message: String,
    /// The advice.
    pub hint: Option<String>,
}

/// A step's duration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Its name.
    pub step: String,
    /// Seconds.
    pub seconds: f64,
}

/// What an attempt has handed out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AttemptRecord {
    pub commit_in: Option<String>,
    pub commit_out: Option<String>,
    pub push: Option<Push>,
    pub couriers: Option<Ledger>,
    pub changes: Option<ChangeSet>,
    pub artifacts: Option<Artifacts>,
    pub result: Option<TaskResult>,
    pub steps: Vec<Timing>,
}

/// An [`AttemptRecord`] in a task's directory, until the receipt has it.
const COLLECTED: &str = "collected.json";

impl AttemptRecord {
    /// After [`AttemptRecord::redact`]: the next command makes the receipt of a supervisor that died or could not write
    /// it, and has no values of secrets. An attempt without work has no file.
    pub(crate) fn save(&self, directory: &Path) -> Result<()> {
        if self.has_work() { json::write(&directory.join(COLLECTED), self) } else { Ok(()) }
    }

    /// What a dead supervisor has saved.
    pub(crate) fn saved(directory: &Path) -> AttemptRecord {
        json::read(&directory.join(COLLECTED)).unwrap_or_default()
    }

    pub(crate) fn remove_saved(directory: &Path) {
        // The receipt replaces it.
        let _ = std::fs::remove_file(directory.join(COLLECTED));
    }

    pub(crate) fn has_work(&self) -> bool {
        let has_changes = self.changes.as_ref().is_some_and(|changes| !changes.is_nothing());
        has_changes || self.artifacts.is_some() || self.result.is_some()
    }

    /// In place: each hidden value counts once for the receipt, however often this is called.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        self.couriers = self.couriers.take().map(|ledger| account(ledger, redactor));
        self.changes = self.changes.take().map(|changes| names(changes, redactor));
    }
}

impl Failure {
    pub(crate) fn to_error(&self) -> Error {
        let kind = Kind::ALL.iter().copied().find(|kind| kind.code() == self.code);
        let error = Error::new(kind.unwrap_or(Kind::Lost), self.message.clone());
        match &self.hint {
            Some(hint) => error.hint(hint.clone()),
            None => error,
        }
    }

    /// An error may quote a program's output.
    fn redacted(error: &Error, redactor: &Redactor) -> Failure {
        let failure = Failure::from(error);
        Failure {
            message: redactor.text(&failure.message),
            hint: failure.hint.map(|hint| redactor.text(&hint)),
            ..failure
        }
    }
}

/// An agent can put a secret into a DNS request's name. Faults quote paths, headers and server names.
fn account(mut ledger: Ledger, redactor: &Redactor) -> Ledger {
    for row in &mut ledger.rows {
        (row.host, row.rule) = (redactor.text(&row.host), redactor.text(&row.rule));
    }
    ledger.faults = texts(ledger.faults, redactor);
    ledger
}

fn names(mut changes: ChangeSet, redactor: &Redactor) -> ChangeSet {
    changes.runnable.iter_mut().for_each(|each| each.path = redactor.text(&each.path));
    changes
}

fn texts(all: Vec<String>, redactor: &Redactor) -> Vec<String> {
    all.iter().map(|each| redactor.text(each)).collect()
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        Failure {
            code: error.kind().code().to_owned(),
            message: error.to_string(),
            hint: error.advice().map(str::to_owned),
        }
    }
}

impl Receipt {
    pub(crate) fn new(record: &Record, report: Report, mut course: AttemptRecord, held: &TaskSecrets) -> Receipt {
        let redactor = held.redactor();
        course.redact(redactor);
        let error = report.error.as_ref().map(|error| Failure::redacted(error, redactor));
        // Redact reasons too: an error below may quote output.
        let degraded = |each: Degraded| Degraded { reason: redactor.text(&each.reason), ..each };
        let hit = |each: LimitHit| LimitHit { evidence: redactor.text(&each.evidence), ..each };
        let refused = |each: Refused| Refused { program: redactor.text(&each.program), ..each };
        let exit_status = report.exit_status();
        let Cleanup { removed, left } = report.cleanup;
        let cleanup = Cleanup { removed: texts(removed, redactor), left: texts(left, redactor) };
        Receipt {
            schema: SCHEMA,
            id: record.id.clone(),
            name: record.name.clone(),
            labels: record.labels.clone(),
            brig: env!("CARGO_PKG_VERSION").to_owned(),
            created: record.created.clone(),
            ended: now(),
            command: record.command.clone(),
            retryable: report.outcome.retryable(&record.exit_codes)
                || report.error.as_ref().is_some_and(Error::retryable),
            exit_status,
            error,
            outcome: report.outcome,
            egress: report.egress.map(|ledger| account(ledger, redactor)),
            refused_namespaces: report.refused_namespaces.into_iter().map(refused).collect(),
            unfinished: texts(report.unfinished, redactor),
            backend: record.backend.clone(),
            guarantee: report.guarantee,
            root_inside: record.root_inside,
            degraded: report.degraded.into_iter().map(degraded).collect(),
            limits: Limits { disk: Some(record.limits.disk_bytes()), ..record.limits.clone() },
            limits_hit: report.limits_hit.into_iter().map(hit).collect(),
            usage: report.usage,
            image: record.image.clone(),
            couriers: course.couriers,
            commit_in: course.commit_in,
            parent: record.continued_from.clone().map(|task| Parent { task, checkpoint: record.checkpoint.clone() }),
            workspace_at: record.at.clone(),
            mounts: record.mounts.clone(),
            volumes: record.volumes.clone(),
            home: record.home.clone(),
            hide: record.hide.clone(),
            commit_out: course.commit_out,
            push: course.push,
            secrets: if held.is_empty() { record.secrets.clone() } else { held.told() },
            redactions: redactor.count(),
            changes: course.changes,
            artifacts: course.artifacts,
            result: course.result,
            profile: record.profile.clone(),
            versions: Versions::here(),
            steps: course.steps,
            cleanup,
        }
    }
}

impl Receipt {
    /// Why it ended, in one line: the outcome with the evidence or the error.
    pub(crate) fn end_words(&self) -> String {
        let evidence = self.limits_hit.iter().map(|hit| hit.evidence.clone());
        let error = self.error.iter().map(|error| error.message.clone());
        let reasons: Vec<_> = error.chain(evidence).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        format!("it has ended: {}{reasons}", self.outcome.word())
    }
}

impl Store {
    /// The receipt of an ended task; `None` while it runs.
    pub fn receipt(&self, id: &str) -> Result<Option<Receipt>> {
        match read(&self.task(id).join("receipt.json")) {
            Ok(receipt) => Ok(Some(receipt)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{Guarantee, LimitName, Row};
    use crate::task::output::handback::RunnableFile;
    use serde_json::json;

    const VALUE: &str = "correct-horse-battery";

    fn ledger() -> Ledger {
        let why = format!("`API_KEY` is for /v1/*, not for /x/{VALUE}");
        let row = Row { host: format!("{VALUE}.example"), rule: why, ..Row::default() };
        let mut ledger = Ledger::default();
        (ledger.rows, ledger.faults) = (vec![row], vec![format!("listen for {VALUE}")]);
        ledger
    }

    #[test]
    fn no_text_that_quotes_the_command_has_a_secret() {
        let held = TaskSecrets::none();
        assert!(held.redactor().add("API_KEY", VALUE.as_bytes()));
        let words = || vec![format!("about {VALUE}")];
        let report = Report {
            outcome: Outcome::Succeeded,
            ended: None,
            error: Some(Error::new(Kind::Policy, format!("no {VALUE}")).hint(format!("not {VALUE}"))),
            limits_hit: vec![LimitHit { limit: LimitName::Wall, evidence: VALUE.to_owned() }],
            usage: Usage::default(),
            egress: Some(ledger()),
            refused_namespaces: vec![Refused { program: VALUE.to_owned(), count: 1, hint: String::new() }],
            unfinished: words(),
            guarantee: Guarantee::None,
            degraded: vec![Degraded { name: "seccomp".to_owned(), reason: VALUE.to_owned() }],
            cleanup: Cleanup { removed: words(), left: words() },
        };
        let runnable = vec![RunnableFile { path: format!(".githooks/{VALUE}"), why: "a hook".to_owned() }];
        let changes = Some(ChangeSet { runnable, ..ChangeSet::default() });
        let mut course = AttemptRecord { couriers: Some(ledger()), changes, ..AttemptRecord::default() };
        course.redact(held.redactor());
        let hidden = held.redactor().count();
        course.redact(held.redactor());
        assert_eq!(held.redactor().count(), hidden, "a value counts twice");
        let record = json!({
            "schema": 3, "id": "t0", "created": "", "command": ["true"], "environment_names": [], "workspace": "empty", "rootfs": null,
            "limits": Limits::default(), "supervisor": 1, "may_degrade": [], "exit_codes": {}, "stream_json": false, "continued_from": null,
        });
        let record: Record = serde_json::from_value(record).unwrap();
        let receipt = Receipt::new(&record, report, course, &held);
        let written = serde_json::to_string(&receipt).unwrap();
        assert!(!written.contains(VALUE), "{written}");
        let egress = receipt.egress.unwrap();
        assert_eq!(egress.rows[0].rule, "`API_KEY` is for /v1/*, not for /x/[redacted:API_KEY]");
        assert_eq!(egress.rows[0].host, "[redacted:API_KEY].example");
        assert_eq!(receipt.changes.unwrap().runnable[0].path, ".githooks/[redacted:API_KEY]");
    }
}
