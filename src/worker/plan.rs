//! The changes that make the units match the files: a pure function decides them.

use super::file::{Folder, Worker};
use super::state::{tasks, worker_of};
use super::unit::{Unit, systemctl, unit_name, units};
use crate::error::{Error, Kind, Result, words};
use crate::sandbox::VolumeAccess;
use crate::task::Store;
use serde::Serialize;
use std::collections::BTreeMap;

words! {
    /// What is done with a unit.
    pub enum Verb {
        /// Enabled, and started.
        Start = "start",
        /// Drained and started again.
        Restart = "restart",
        /// Enabled; it runs already.
        Enable = "enable",
        /// Drained, stopped and disabled.
        Stop = "stop",
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The worker.
    pub worker: String,
    /// What is done.
    pub change: Verb,
    /// Why.
    pub reason: &'static str,
}

/// `started` has the digest of each worker's file at its last start.
fn plan(
    files: &BTreeMap<String, String>,
    units: &BTreeMap<String, Unit>,
    started: &BTreeMap<String, String>,
) -> Vec<Change> {
    let none = Unit::default();
    let mut changes = Vec::new();
    let mut add = |worker: &String, change, reason| changes.push(Change { worker: worker.clone(), change, reason });
    for (name, sha256) in files {
        let unit = units.get(name).unwrap_or(&none);
        match started.get(name) {
            _ if !unit.is_up() && unit.active == "failed" => add(name, Verb::Start, "it has failed"),
            None if !unit.is_up() => add(name, Verb::Start, "it is new"),
            _ if !unit.is_up() => add(name, Verb::Start, "it does not run"),
            Some(last) if last != sha256 => add(name, Verb::Restart, "its file has changed since its start"),
            _ if !unit.enabled => add(name, Verb::Enable, "it would not start with the machine"),
            _ => {}
        }
    }
    for (name, unit) in units.iter().filter(|(name, _)| !files.contains_key(*name)) {
        if unit.is_up() || unit.enabled {
            add(name, Verb::Stop, "its file is gone");
        }
    }
    changes
}

fn check(workers: &[Worker]) -> Result<()> {
    let (mut ports, mut writers) = (BTreeMap::new(), BTreeMap::new());
    for worker in workers {
        for publish in &worker.definition.sandbox.network.publish {
            let front = publish.outside;
            if let Some(other) = ports.insert(front, &worker.name) {
                let words = format!("the workers `{other}` and `{}` publish the same port", worker.name);
                return Err(
                    Error::new(Kind::Profile, format!("{words}: {front}")).hint("give one of them another port")
                );
            }
        }
        // A volume has one writer at a time: the second worker would never start.
        let sandbox = &worker.definition.sandbox;
        let written = sandbox.volumes.iter().filter(|volume| volume.access == VolumeAccess::Writable);
        for volume in written.map(|volume| &volume.name).chain(&sandbox.home) {
            if let Some(other) = writers.insert(volume, &worker.name) {
                let words = format!("the workers `{other}` and `{}` write to the volume `{volume}`", worker.name);
                return Err(Error::new(Kind::Profile, words).hint("give one of them another volume, or `:ro`"));
            }
        }
    }
    Ok(())
}

/// What `apply` would do.
pub fn changes(folder: &Folder, store: &Store) -> Result<Vec<Change>> {
    let workers = folder.read_all()?;
    check(&workers)?;
    let names: Vec<String> = workers.iter().map(|worker| worker.name.clone()).collect();
    let mut units = units(&names)?;
    // The units read the default folder. A worker that another folder does not name goes on.
    units.retain(|name, _| folder.is_default() || names.contains(name));
    let sha256 = |worker: &Worker| worker.definition.profile.as_ref().map(|file| file.sha256.clone());
    let files = workers.iter().filter_map(|worker| Some((worker.name.clone(), sha256(worker)?))).collect();
    let mut started = BTreeMap::new();
    for row in tasks(store)? {
        if let Some(name) = worker_of(&row)
            && let Ok(record) = store.record(&row.id)
            && let Some(profile) = record.profile
        {
            started.insert(name.to_owned(), profile.sha256); // the newest is the last
        }
    }
    Ok(plan(&files, &units, &started))
}

/// Makes one change. Waits until the worker is ready, or has ended.
pub fn apply(change: &Change) -> Result<()> {
    let unit = unit_name(&change.worker);
    let calls: &[&[&str]] = match change.change {
        Verb::Start => &[&["enable", "--now"]],
        Verb::Enable => &[&["enable"]],
        Verb::Restart => &[&["enable"], &["restart"]],
        Verb::Stop => &[&["disable", "--now"]],
    };
    calls.iter().try_for_each(|words| systemctl(&[words, &[unit.as_str()][..]].concat()).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_make_the_units_match_the_files() {
        let unit = |active: &str, enabled| Unit { active: active.into(), enabled, ..Unit::default() };
        let check = |file: Option<&str>, unit: Option<Unit>, started: Option<&str>, expected: Option<(Verb, &str)>| {
            let one = |value: Option<&str>| value.map(|value| ("a".to_owned(), value.to_owned())).into_iter().collect();
            let units = unit.clone().map(|unit| ("a".to_owned(), unit)).into_iter().collect();
            let found = plan(&one(file), &units, &one(started));
            let found: Vec<_> = found.iter().map(|change| (change.change, change.reason)).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{file:?} {unit:?} {started:?}");
        };
        check(Some("1"), None, None, Some((Verb::Start, "it is new")));
        check(Some("1"), Some(unit("inactive", false)), None, Some((Verb::Start, "it is new")));
        check(Some("1"), Some(unit("inactive", true)), Some("1"), Some((Verb::Start, "it does not run")));
        check(Some("1"), Some(unit("failed", true)), Some("1"), Some((Verb::Start, "it has failed")));
        check(Some("1"), Some(unit("active", true)), Some("1"), None);
        check(
            Some("1"),
            Some(unit("active", false)),
            Some("1"),
            Some((Verb::Enable, "it would not start with the machine")),
        );
        check(
            Some("2"),
            Some(unit("active", true)),
            Some("1"),
            Some((Verb::Restart, "its file has changed since its start")),
        );
        check(
            Some("2"),
            Some(unit("activating", true)),
            Some("1"),
            Some((Verb::Restart, "its file has changed since its start")),
        );
        check(None, Some(unit("active", true)), Some("1"), Some((Verb::Stop, "its file is gone")));
        check(None, Some(unit("inactive", true)), None, Some((Verb::Stop, "its file is gone")));
        check(None, Some(unit("failed", false)), Some("1"), None);
    }
}
