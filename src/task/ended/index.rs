//! The index of ended tasks, one row each, for fast lists of ten thousand tasks.
//!
//! A cache: an ended task does not change, so a row stays valid. A missing or torn row is made again from the records.
//! Too many rows of removed tasks cause a rewrite.

use super::reconcile::reconcile_one;
use crate::error::{Error, Kind, Result};
use crate::files::{self, Durability};
use crate::sandbox::HealthState;
use crate::task::definition::naming::Labels;
use crate::task::records::receipt::Receipt;
use crate::task::store::{REMOVED, Status, Store};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;

const NAME: &str = "index";
/// A file of another version is rewritten.
const VERSION: &str = "brig index 2";
const LONGEST: u64 = 256 << 20;
const STALE: usize = 1000;

/// A row of `brig task ls`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The task's id.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// Its outcome, once ended.
    pub outcome: Option<String>,
    /// Its start.
    pub created: String,
    /// Its duration in seconds, once ended.
    pub wall_seconds: Option<f64>,
    /// The command.
    pub command: Vec<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: Labels,
    /// Its health, while it runs with a health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthState>,
}

impl Summary {
    pub(crate) fn of(receipt: &Receipt) -> Summary {
        Summary {
            id: receipt.id.clone(),
            status: Status::Ended,
            outcome: Some(receipt.outcome.word().to_owned()),
            created: receipt.created.clone(),
            wall_seconds: Some(receipt.usage.wall_seconds),
            command: receipt.command.clone(),
            name: receipt.name.clone(),
            labels: receipt.labels.clone(),
            health: None,
        }
    }
}

impl Store {
    pub(crate) fn summary(&self, id: &str) -> Result<Summary> {
        let record = self.record(id)?;
        let receipt = self.receipt(id)?;
        Ok(Summary {
            id: record.id,
            status: if receipt.is_some() { Status::Ended } else { self.status(id)? },
            outcome: receipt.as_ref().map(|receipt| receipt.outcome.word().to_owned()),
            created: record.created,
            wall_seconds: receipt.map(|receipt| receipt.usage.wall_seconds),
            command: record.command,
            name: record.name,
            labels: record.labels,
            health: self.health(id)?.map(|health| health.state),
        })
    }

    /// One row a task, oldest first, and the errors of unreadable records.
    pub fn list(&self) -> Result<(Vec<Summary>, Vec<Error>)> {
        let text = files::read_bounded(&self.root().join(NAME), LONGEST).unwrap_or_default();
        let text = String::from_utf8(text).unwrap_or_default();
        let known = parse(&text);
        let is_current = known.is_some();
        let known = known.unwrap_or_default();
        let (half_gone, mut ids): (Vec<_>, Vec<_>) =
            self.names()?.into_iter().partition(|name| name.starts_with(REMOVED));
        // Finish killed removals; what stays is a leak.
        half_gone.iter().for_each(|name| drop(crate::files::remove_directory(&self.tasks().join(name))));
        ids.retain(|name| !name.starts_with('.'));
        crate::task::store::sort_by_age(&mut ids);
        let (mut rows, mut unread, mut new) = (Vec::with_capacity(ids.len()), Vec::new(), String::new());
        for id in &ids {
            if let Some(row) = known.get(id.as_str()).and_then(|line| read(line)) {
                rows.push(row);
                continue;
            }
            let row = match self.summary(id) {
                // A read-only store has the row too.
                Ok(row) if row.status == Status::Lost && reconcile_one(self, id).is_ok() => self.summary(id),
                other => other,
            };
            match row {
                Ok(row) => {
                    if row.status == Status::Ended {
                        write(&mut new, &row);
                    }
                    rows.push(row);
                }
                // A new task's record is written while its sandbox is built.
                Err(error) if error.kind() == Kind::NotFound && self.status(id)? == Status::Running => {}
                Err(error) => unread.push(error),
            }
        }
        // Without write permission, list all the same.
        let _ =
            if !is_current || known.len() > ids.len() + STALE { self.write_index(&rows) } else { self.append(&new) };
        Ok((rows, unread))
    }

    pub(crate) fn remember(&self, receipt: &Receipt) {
        let mut line = String::new();
        write(&mut line, &Summary::of(receipt));
        // The next list adds it.
        let _ = self.append(&line);
    }

    fn append(&self, lines: &str) -> std::io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let path = self.root().join(NAME);
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let head = if file.metadata()?.len() == 0 { format!("{VERSION}\n") } else { String::new() };
        file.write_all((head + lines).as_bytes()) // one write: concurrent rows do not mix
    }

    fn write_index(&self, rows: &[Summary]) -> std::io::Result<()> {
        let mut text = format!("{VERSION}\n");
        rows.iter().filter(|row| row.status == Status::Ended).for_each(|row| write(&mut text, row));
        files::replace(&self.root().join(NAME), text.as_bytes(), 0o600, Durability::Cached)
            .map_err(|error| std::io::Error::other(error.to_string()))
    }
}

/// `None` for another version. The first line may occur twice.
fn parse(text: &str) -> Option<HashMap<&str, &str>> {
    let mut lines = text.lines();
    if lines.next() != Some(VERSION) {
        return None;
    }
    Some(lines.filter_map(|line| Some((line.split_once('\t')?.0, line))).collect())
}

/// `ID OUTCOME CREATED SECONDS TEXTS`, separated by tabs. `TEXTS` is command, name and labels as JSON, which escapes
/// tabs.
fn write(text: &mut String, row: &Summary) {
    let texts = serde_json::to_string(&(&row.command, &row.name, &row.labels)).unwrap_or_default();
    let outcome = row.outcome.as_deref().unwrap_or_default();
    let seconds = row.wall_seconds.unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}\t{outcome}\t{}\t{seconds}\t{texts}", row.id, row.created);
}

fn read(line: &str) -> Option<Summary> {
    let mut fields = line.splitn(5, '\t');
    let mut next = || fields.next().filter(|field| !field.is_empty());
    let (id, outcome, created) = (next()?.to_owned(), next()?.to_owned(), next()?.to_owned());
    let wall_seconds = Some(next()?.parse().ok()?);
    let (command, name, labels) = serde_json::from_str(next()?).ok()?;
    Some(Summary {
        id,
        status: Status::Ended,
        outcome: Some(outcome),
        created,
        wall_seconds,
        command,
        name,
        labels,
        health: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> Summary {
        Summary {
            id: id.into(),
            status: Status::Ended,
            outcome: Some("failed".into()),
            created: "2026-01-01T00:00:00Z".into(),
            wall_seconds: Some(1.5),
            command: vec!["sh".into(), "a\tb\nc\u{1b}".into()],
            name: Some("nightly".into()),
            labels: [("team".to_owned(), "a\tb".to_owned())].into(),
            health: None,
        }
    }

    #[test]
    fn a_row_is_read_as_it_was_written_and_a_torn_one_is_none() {
        let mut line = String::new();
        write(&mut line, &row("t1"));
        assert_eq!(line.lines().count(), 1);
        let back = read(line.trim_end()).unwrap();
        assert_eq!((back.id.as_str(), &back.command, back.wall_seconds), ("t1", &row("t1").command, Some(1.5)));
        assert_eq!((back.name, back.labels), (row("t1").name, row("t1").labels));
        let whole = line.trim_end();
        assert!((0..whole.len()).filter(|&cut| whole.is_char_boundary(cut)).all(|cut| read(&whole[..cut]).is_none()));
        assert!(parse("other\n").is_none());
    }

    #[test]
    fn the_directory_says_which_tasks_there_are_and_the_records_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_path_buf());
        for id in ["a1", "a2"] {
            drop(store.begin(id).unwrap());
            store.make(id).unwrap();
        }
        let mut text = String::new();
        ["a1", "gone"].iter().for_each(|id| write(&mut text, &row(id)));
        store.append(&text).unwrap();
        let (rows, unread) = store.list().unwrap();
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a1"]);
        assert_eq!(unread.len(), 1, "a2 has no record");
        std::fs::write(directory.path().join(NAME), "brig index 9\n\u{1}").unwrap();
        assert_eq!(store.list().unwrap().0.len(), 0);
        assert!(std::fs::read_to_string(directory.path().join(NAME)).unwrap().starts_with(VERSION));
    }
}
