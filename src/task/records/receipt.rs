//! The receipt: why a task ended, with the evidence, what it used, and what became of everything.

use super::record::{Record, SCHEMA};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Cleanup, Degraded, Ledger, LimitHit, Limits, Outcome, Refused, Report, Usage};
use crate::task::definition::ProfileUsed;
use crate::task::git::Push;
use crate::task::output::artifact::Artifacts;
use crate::task::output::handback::ChangeSet;
use crate::task::output::result::TaskResult;
use crate::task::redact::Redactor;
use crate::task::secrets::{SecretUse, TaskSecrets};
use crate::task::store::Store;
use crate::task::store::json::{now, read};
use serde::{Deserialize, Serialize};

/// What `brig task show --json` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// Version of the form.
    pub schema: u32,
    /// The task's id.
    pub id: String,
    /// The version of brig that wrote it.
    pub brig: String,
    /// When the task began, RFC 3339.
    pub created: String,
    /// When it ended, RFC 3339.
    pub ended: String,
    /// The command.
    pub command: Vec<String>,
    /// Why it ended: a word of the closed list, with `exit_code` or `signal` where they belong to it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether another attempt may end otherwise without anyone changing anything.
    pub retryable: bool,
    /// The exit status of `brig task run`.
    pub exit_status: u8,
    /// What went wrong, if it was ours to say.
    pub error: Option<Failure>,
    /// Who isolated.
    pub backend: String,
    /// What isolation was in force.
    pub guarantee: crate::sandbox::Guarantee,
    /// What was not in force because the caller allowed that by name.
    pub degraded: Vec<Degraded>,
    /// What it might use.
    pub limits: Limits,
    /// Limits that were reached.
    pub limits_hit: Vec<LimitHit>,
    /// What it used.
    pub usage: Usage,
    /// The image that was the root, and what it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<crate::task::definition::image::ImageUsed>,
    /// What was reached and what was refused, where a gateway served the network.
    #[serde(default)]
    pub egress: Option<Ledger>,
    /// Programs that wanted namespaces of their own, as a program with a sandbox does, and were refused.
    #[serde(default)]
    pub refused_namespaces: Vec<Refused>,
    /// What git's couriers reached and what they were refused, to fetch and to push; missing if none had a network.
    #[serde(default)]
    pub couriers: Option<Ledger>,
    /// The commit that the workspace began with, for a repository.
    pub commit_in: Option<String>,
    /// The path of the workspace inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_at: Option<std::path::PathBuf>,
    /// The commit at which the workspace ended, for a repository.
    #[serde(default)]
    pub commit_out: Option<String>,
    /// What became of the push; missing if none was asked for.
    #[serde(default)]
    pub push: Option<Push>,
    /// The secrets that were in force, without their values.
    #[serde(default)]
    pub secrets: Vec<SecretUse>,
    /// How often something was hidden in what came out.
    #[serde(default)]
    pub redactions: u64,
    /// What changed in the workspace; missing if the task never came so far.
    #[serde(default)]
    pub changes: Option<ChangeSet>,
    /// The files that came out; missing if none were asked for.
    #[serde(default)]
    pub artifacts: Option<Artifacts>,
    /// What the task says of itself; missing if it left no result and none was demanded.
    #[serde(default)]
    pub result: Option<TaskResult>,
    /// The profile that was read; missing if none was.
    #[serde(default)]
    pub profile: Option<ProfileUsed>,
    /// What it ran on.
    #[serde(default)]
    pub versions: Versions,
    /// Seconds that each step took, in order.
    pub steps: Vec<Timing>,
    /// What was removed and what was left.
    pub cleanup: Cleanup,
}

/// What a task ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The version of brig.
    pub brig: String,
    /// The kernel's release.
    pub kernel: String,
    /// The machine's architecture, as the kernel names it.
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

/// An error as a receipt has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The catalogue's code.
    pub code: String,
    /// The whole chain.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

/// How long one step took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Its name.
    pub step: String,
    /// Seconds.
    pub seconds: f64,
}

/// What an attempt came to know on its way.
#[derive(Debug, Default)]
pub(crate) struct AttemptRecord {
    /// The commit that the workspace began with.
    pub commit_in: Option<String>,
    /// The commit at which it ended.
    pub commit_out: Option<String>,
    /// What became of the push.
    pub push: Option<Push>,
    /// What its couriers reached.
    pub couriers: Option<Ledger>,
    /// What changed in it.
    pub changes: Option<ChangeSet>,
    /// The files that came out.
    pub artifacts: Option<Artifacts>,
    /// What the task says of itself.
    pub result: Option<TaskResult>,
    /// How long each step took, in order.
    pub steps: Vec<Timing>,
}

impl Failure {
    /// The same with every secret hidden: an error may quote what a program said.
    fn redacted(error: &Error, redactor: &Redactor) -> Failure {
        let failure = Failure::from(error);
        Failure {
            message: redactor.text(&failure.message),
            hint: failure.hint.map(|hint| redactor.text(&hint)),
            ..failure
        }
    }
}

/// A name that was asked for can hold a secret: whoever wants to carry it out by DNS asks for one. So can why it was refused: that quotes paths,
/// headers and names of servers.
fn account(mut ledger: Ledger, redactor: &Redactor) -> Ledger {
    for row in &mut ledger.rows {
        (row.host, row.rule) = (redactor.text(&row.host), redactor.text(&row.rule));
    }
    ledger.faults = texts(ledger.faults, redactor);
    ledger
}

/// What the command called its files.
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
    pub(crate) fn new(record: &Record, report: Report, course: AttemptRecord, held: &TaskSecrets) -> Receipt {
        let redactor = held.redactor();
        let error = report.error.as_ref().map(|error| Failure::redacted(error, redactor));
        // Also what quotes nobody today: an error below may begin to.
        let degraded = |each: Degraded| Degraded { reason: redactor.text(&each.reason), ..each };
        let hit = |each: LimitHit| LimitHit { evidence: redactor.text(&each.evidence), ..each };
        let refused = |each: Refused| Refused { program: redactor.text(&each.program), ..each };
        let exit_status = report.exit_status();
        let Cleanup { removed, left } = report.cleanup;
        let cleanup = Cleanup { removed: texts(removed, redactor), left: texts(left, redactor) };
        Receipt {
            schema: SCHEMA,
            id: record.id.clone(),
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
            backend: record.backend.clone(),
            guarantee: report.guarantee,
            degraded: report.degraded.into_iter().map(degraded).collect(),
            limits: Limits { disk: Some(crate::sandbox::disk_limit(&record.limits)), ..record.limits.clone() },
            limits_hit: report.limits_hit.into_iter().map(hit).collect(),
            usage: report.usage,
            image: record.image.clone(),
            couriers: course.couriers.map(|ledger| account(ledger, redactor)),
            commit_in: course.commit_in,
            workspace_at: record.at.clone(),
            commit_out: course.commit_out,
            push: course.push,
            secrets: if held.is_empty() { record.secrets.clone() } else { held.told() },
            redactions: redactor.count(),
            changes: course.changes.map(|changes| names(changes, redactor)),
            artifacts: course.artifacts,
            result: course.result,
            profile: record.profile.clone(),
            versions: Versions::here(),
            steps: course.steps,
            cleanup,
        }
    }
}

impl Store {
    /// The receipt of a task that has ended; `None` while it runs.
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
            guarantee: Guarantee::None,
            degraded: vec![Degraded { name: "seccomp".to_owned(), reason: VALUE.to_owned() }],
            cleanup: Cleanup { removed: words(), left: words() },
        };
        let runnable = vec![RunnableFile { path: format!(".githooks/{VALUE}"), why: "a hook".to_owned() }];
        let changes = Some(ChangeSet { runnable, ..ChangeSet::default() });
        let course = AttemptRecord { couriers: Some(ledger()), changes, ..AttemptRecord::default() };
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
