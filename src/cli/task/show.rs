//! `brig task show`: the receipt.

use crate::cli::output;
use brig::error::Result;
use brig::sandbox::{Row, counted, size};
use brig::task::{Receipt, Status, Store};
use clap::Args;
use std::process::ExitCode;

/// Show the receipt of a task: why it ended, what it used, what was removed. Of a running one, show its state
#[derive(Args)]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print the receipt as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if store.status(&id)? == Status::Running {
        show_running(store, &id, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let receipt = store.final_receipt(&id)?;
    if arguments.json {
        output::json(&receipt);
    } else {
        output::pairs(&rows(&receipt), false);
    }
    Ok(ExitCode::SUCCESS)
}

fn show_running(store: &Store, id: &str, json: bool) -> Result<()> {
    let (record, health) = (store.record(id)?, store.health(id)?);
    if json {
        output::json(&serde_json::json!({
            "id": id, "name": record.name, "labels": record.labels, "created": record.created, "status": "running",
            "health": health,
        }));
        return Ok(());
    }
    let mut rows = vec![("task", id.to_owned())];
    rows.extend(record.name.map(|name| ("name", name)));
    rows.extend([("command", record.command.join(" ")), ("began", record.created)]);
    rows.push(("status", "running".to_owned()));
    if let Some(health) = health {
        rows.push(("health", health.state.word().to_owned()));
        rows.extend(health.exit_status.map(|status| ("check", format!("exit status {status}"))));
        rows.extend(health.reason.map(|reason| ("check", reason)));
        rows.extend(health.output.lines().map(|line| ("output", line.to_owned())));
    }
    output::pairs(&rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Vec<_>>(), false);
    Ok(())
}

fn rows(receipt: &Receipt) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("task", receipt.id.clone());
    receipt.name.iter().for_each(|name| row("name", name.clone()));
    receipt.labels.iter().for_each(|(key, value)| row("label", format!("{key}={value}")));
    row("outcome", receipt.outcome.word().to_owned());
    row("exit status", receipt.exit_status.to_string());
    row("retryable", receipt.retryable.to_string());
    row("command", receipt.command.join(" "));
    row("began", receipt.created.clone());
    row("ended", receipt.ended.clone());
    let root = if receipt.root_inside { ", root inside" } else { "" };
    row("guarantee", format!("{}{root} ({})", receipt.guarantee.word(), receipt.backend));
    receipt.hide.iter().for_each(|pattern| row("hidden", pattern.clone()));
    receipt.mounts.iter().for_each(|mount| row("mount", mount.words()));
    if let Some(failure) = &receipt.error {
        row("error", format!("{} {}", failure.code, failure.message));
    }
    if let Some(commit) = &receipt.commit_in {
        row("commit in", commit.clone());
    }
    if let Some(commit) = &receipt.commit_out {
        row("commit out", commit.clone());
    }
    if let Some(push) = &receipt.push {
        row("push", format!("{:?} to {}", push.state, push.branch).to_lowercase());
        push.error.iter().for_each(|why| row("not pushed", why.clone()));
        push.bundle.iter().for_each(|path| row("commits", path.display().to_string()));
    }
    for secret in &receipt.secrets {
        let more = [
            (secret.replaced > 0, ", replaced"),
            (secret.revoked, ", revoked"),
            (!secret.redacted, ", not hidden: too short"),
        ];
        let more: String = more.iter().filter(|(is, _)| *is).map(|(_, words)| *words).collect();
        let exposure = format!("{:?}", secret.exposure).to_lowercase();
        row("secret", format!("{} ({exposure} from {}{more})", secret.name, secret.source));
    }
    if receipt.redactions > 0 {
        row("hidden", counted(receipt.redactions, "time", "times"));
    }
    if let Some(changes) = &receipt.changes {
        let mut words = format!("{} added, {} modified, {} deleted", changes.added, changes.modified, changes.deleted);
        let more = [(changes.in_git as u64, "in .git"), (changes.skipped, "not taken")];
        more.iter().filter(|(count, _)| *count > 0).for_each(|(count, what)| words += &format!(", {count} {what}"));
        if !changes.complete {
            words += ", and more that was not looked at";
        }
        row("changes", words);
        changes.not_taken.iter().for_each(|each| row("not taken", format!("{}: {}", each.path, each.why)));
        changes.secrets.iter().for_each(|path| row("holds a secret", path.clone()));
        changes.unsearched.iter().for_each(|path| row("not searched for secrets", path.clone()));
        changes.runnable.iter().for_each(|each| row("could run later", format!("{}: {}", each.path, each.why)));
    }
    for (name, ledger) in [("network", &receipt.egress), ("git's network", &receipt.couriers)] {
        ledger.iter().flat_map(|ledger| &ledger.rows).for_each(|line| row(name, network(line)));
        ledger.iter().flat_map(|ledger| &ledger.faults).for_each(|fault| row(name, fault.clone()));
    }
    if let Some(profile) = &receipt.profile {
        row("profile", format!("{} (sha256 {})", profile.path.display(), profile.sha256));
    }
    if let Some(result) = &receipt.result {
        row(
            "result",
            if result.valid { result.value.to_string() } else { format!("not valid: {}", result.faults.join("; ")) },
        );
    }
    if let Some(artifacts) = &receipt.artifacts {
        artifacts.path.iter().for_each(|path| row("artifacts", path.display().to_string()));
        artifacts
            .files
            .iter()
            .for_each(|each| row("artifact", format!("{} ({} bytes, sha256 {})", each.path, each.size, each.sha256)));
        artifacts.refused.iter().for_each(|each| row("no artifact", format!("{}: {}", each.path, each.why.words())));
        artifacts.unmatched.iter().for_each(|text| row("no artifact", format!("nothing fits `{text}`")));
    }
    receipt.unfinished.iter().for_each(|each| row("unfinished", each.clone()));
    receipt.refused_namespaces.iter().for_each(|each| row("refused", each.words()));
    for hit in &receipt.limits_hit {
        row(&format!("hit: {}", hit.limit.word()), hit.evidence.clone());
    }
    for missing in &receipt.degraded {
        row(&format!("missing: {}", missing.name), missing.reason.clone());
    }
    let usage = &receipt.usage;
    row("wall", format!("{:.3} s", usage.wall_seconds));
    if let (Some(user), Some(system)) = (usage.cpu_user_seconds, usage.cpu_system_seconds) {
        row("processor", format!("{user:.3} s in programs, {system:.3} s in the kernel"));
    }
    let used = |bytes: Option<u64>, limit: Option<u64>| {
        bytes.map(|bytes| {
            format!(
                "{} at most{}",
                output::approximate(bytes),
                limit.map_or_else(String::new, |limit| format!(" of {}", size(limit)))
            )
        })
    };
    let measured = [
        ("memory", used(usage.memory_peak_bytes, Some(receipt.limits.memory))),
        ("disk", used(usage.disk_peak_bytes, receipt.limits.disk)),
        ("processes", usage.pids_peak.map(|count| format!("{count} at most of {}", receipt.limits.pids))),
        ("output", Some(output::approximate(usage.output_bytes))),
    ];
    for (name, value) in measured {
        if let Some(value) = value {
            row(name, value);
        }
    }
    for step in &receipt.steps {
        row(&format!("step: {}", step.step), format!("{:.4} s", step.seconds));
    }
    for removed in &receipt.cleanup.removed {
        row("removed", removed.clone());
    }
    for left in &receipt.cleanup.left {
        row("LEFT", left.clone());
    }
    rows.sort_by_key(|(name, _)| FIRST.iter().position(|first| name.starts_with(first)).unwrap_or(FIRST.len()));
    rows
}

/// What a reader looks for first, in this order; all else follows as it is.
const FIRST: [&str; 20] = [
    "task",
    "command",
    "outcome",
    "exit status",
    "error",
    "hit: ",
    "LEFT",
    "missing: ",
    "refused",
    "retryable",
    "changes",
    "holds a secret",
    "could run later",
    "not taken",
    "result",
    "artifact",
    "no artifact",
    "commit in",
    "commit out",
    "push",
];

/// One line of the network's account.
pub(super) fn network(line: &Row) -> String {
    let port = line.port.map_or(String::new(), |port| format!(":{port}"));
    let times = if line.count > 1 { format!(" {} times", line.count) } else { String::new() };
    if !line.allowed {
        return format!("refused {}{port}{times}: {}", line.host, line.rule);
    }
    let (sent, received) = (output::approximate(line.sent_bytes), output::approximate(line.received_bytes));
    let statuses: Vec<_> = line.statuses.iter().map(|(status, count)| format!("{status} × {count}")).collect();
    let answers = if statuses.is_empty() { String::new() } else { format!(", answered {}", statuses.join(" ")) };
    format!("reached {}{port}{times} by `{}`, {sent} out, {received} in{answers}", line.host, line.rule)
}
