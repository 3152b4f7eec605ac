//! The end of an agent's run: what changed, what was refused, what could run later, and the question about it.

use crate::cli::output;
use crate::cli::task::{self, refusals};
use brig::error::Result;
use brig::task::{Definition, Receipt, Store};
use nix::sys::signal::SigSet;
use rustix::termios::{QueueSelector, isatty, tcflush};
use std::io::{BufRead, Write};

/// The most lines of a kind.
const MOST: usize = 10;

/// Prints what a person should see before the changes reach the folder.
pub(super) fn show(receipt: &Receipt) {
    lines(receipt).iter().for_each(|line| tell!("brig: {}", output::escaped(line)));
}

fn lines(receipt: &Receipt) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(changes) = &receipt.changes {
        let in_git = if changes.in_git > 0 { format!(", {} in .git", changes.in_git) } else { String::new() };
        let counts = format!("{} added, {} modified, {} deleted", changes.added, changes.modified, changes.deleted);
        lines.push(format!("changes: {counts}{in_git}"));
        let runnable = changes.runnable.iter().map(|each| format!("could run later: {}: {}", each.path, each.why));
        lines.extend(bounded(runnable.collect()));
    }
    let refused = receipt.egress.iter().flat_map(|ledger| ledger.rows.iter().filter(|row| !row.allowed));
    let refused = refused.map(|row| {
        let hint = match row.rule.starts_with("no rule ") {
            true => format!("for the next run: --allow {}", refusals::target(row)),
            false => row.rule.clone(),
        };
        format!("refused: {}{}; {hint}", refusals::target(row), row.times())
    });
    lines.extend(bounded(refused.collect()));
    lines
}

/// The first lines, and the number of the others.
fn bounded(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    lines.extend((more > 0).then(|| format!("{more} more: see `brig task show`")));
    lines
}

/// Asks what becomes of the changes. Without a terminal they are kept, and the commands are printed.
pub(super) fn ask(store: &Store, receipt: &Receipt) -> Result<()> {
    let id = &receipt.id;
    let has_changes =
        receipt.changes.as_ref().is_some_and(|changes| changes.added + changes.modified + changes.deleted > 0);
    if !has_changes {
        return Ok(());
    }
    if !isatty(rustix::stdio::stdin()) || !isatty(rustix::stdio::stderr()) {
        tell!("brig: the changes are kept: brig task diff {id}, brig task apply {id}, brig task rm {id}");
        return Ok(());
    }
    // Keys that were for the agent answer nothing.
    let _ = tcflush(rustix::stdio::stdin(), QueueSelector::IFlush);
    // The task took signals as messages. From now on Ctrl-C ends brig, and the changes are kept.
    let _ = SigSet::all().thread_unblock();
    loop {
        match question("apply? [y/n/diff/keep] ").as_deref() {
            Some("y" | "yes") => return task::apply(store, id).map(|_| ()),
            Some("n" | "no") if store.has_more_than_changes(id) => {
                tell!(
                    "brig: the changes are not applied. The task has artifacts, commits or a kept workspace, and stays"
                );
                tell!("brig: to remove all of it: brig task rm {id}");
                return Ok(());
            }
            Some("n" | "no") => {
                store.remove(id)?;
                tell!("brig: the changes are discarded");
                return Ok(());
            }
            Some("d" | "diff") => {
                task::diff(store, id)?;
            }
            None | Some("k" | "keep") => {
                tell!("brig: the changes are kept: brig task apply {id}, brig task rm {id}");
                return Ok(());
            }
            Some(_) => {}
        }
    }
}

/// The answer to a question; `None` at the end of the input.
fn question(words: &str) -> Option<String> {
    let mut error = std::io::stderr();
    let _ = error.write_all(words.as_bytes());
    let mut answer = String::new();
    let count = std::io::stdin().lock().read_line(&mut answer).ok()?;
    (count > 0).then(|| answer.trim().to_ascii_lowercase())
}

/// Writes the hosts that the agent reached into the project's file.
pub(super) fn learn(definition: &Definition, receipt: &Receipt) {
    let mut ledger = receipt.egress.clone().unwrap_or_default();
    ledger.rows.retain(|row| row.allowed);
    let rules = ledger.as_rules();
    let known = &definition.sandbox.network.policy.allowed;
    let rules: Vec<_> =
        rules.into_iter().filter(|rule| !known.iter().any(|known| known.to_string() == *rule)).collect();
    if rules.is_empty() {
        tell!("brig: it reached no other host");
        return;
    }
    match brig::task::learn(definition, &rules) {
        Ok(path) => {
            let folder = path.parent().unwrap_or(&path).display();
            let words =
                format!("{} has the hosts that it reached. Read it, then: brig agent trust {folder}", path.display());
            tell!("brig: {}", output::escaped(&words));
        }
        Err(error) => {
            output::error(&error);
            rules.iter().for_each(|rule| tell!("brig: it reached {}", output::escaped(rule)));
        }
    }
}
