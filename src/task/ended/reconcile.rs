//! What a supervisor that died left behind, found and removed by the next command (crash-only: there is no daemon to do it).
//!
//! The kernel has ended the sandbox's processes, mounts and namespaces already, and frees the loop device with them. Left are the cgroup,
//! the lock's name, and a record without a receipt.

use super::keep;
use crate::error::{Error, Kind, Result};
use crate::files::{self, Attempt, Lock};
use crate::sandbox::{self, Cleanup, Guarantee, Outcome, Report, Usage};
use crate::task::git;
use crate::task::records::event;
use crate::task::records::receipt::{AttemptRecord, Receipt};
use crate::task::records::record::Record;
use crate::task::secrets::TaskSecrets;
use crate::task::store::{EVENTS, LOG, REMOVED, Status, Store, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the kernel takes a moment for is looked at again after so long, and so often.
const MOMENT: Duration = Duration::from_millis(100);
const MOMENTS: u32 = 20;

/// Something of a task that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Leak {
    /// What kind of thing.
    pub kind: String,
    /// Where.
    pub path: PathBuf,
}

/// Removes what dead supervisors of this store left, and writes the receipts that they could not. Costs one look into an empty directory when
/// there is nothing. What cannot be reaped stays, for [`leaks`] to tell of: one broken record is no reason that no other task can begin.
pub fn reap(store: &Store) -> Result<Vec<String>> {
    let mut reaped = Vec::new();
    let Ok(entries) = std::fs::read_dir(store.live()) else { return Ok(reaped) };
    for entry in entries.filter_map(|entry| entry.ok()) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = sandbox::remove_begun_disk(&entry.path());
        } else if reap_one(store, &name).unwrap_or(false) && !name.starts_with('.') {
            reaped.push(name);
        }
    }
    Ok(reaped)
}

impl Store {
    /// The receipt of a task that has ended. A task that has neither a receipt nor a running supervisor gets one here.
    pub fn final_receipt(&self, id: &str) -> Result<Receipt> {
        reconcile_one(self, id)?;
        self.receipt(id)?.ok_or_else(|| {
            if self.task(id).exists() {
                Error::new(Kind::State, format!("the task `{id}` is still running"))
                    .hint("wait for its end: `brig task wait ID`; its output so far: `brig task logs ID`")
            } else {
                Error::new(Kind::NotFound, format!("the task `{id}` ended before it was recorded"))
                    .hint("see `brig task ls`")
            }
        })
    }
}

/// Reconciles a task that is lost and has no lock that [`reap`] could find: its supervisor could not write the receipt.
pub(crate) fn reconcile_one(store: &Store, id: &str) -> Result<()> {
    if store.status(id)? == Status::Lost {
        store.begin(id)?.leave();
        reap_one(store, id)?;
    }
    Ok(())
}

/// Says whether it was there and is gone. If not, its name stays, so that another command tries again.
pub(crate) fn reap_one(store: &Store, name: &str) -> Result<bool> {
    let path = store.live().join(name);
    let Attempt::Taken(_lock) = Lock::attempt(&path)? else { return Ok(false) };
    // A name with a dot is a task that had not begun: it has nothing but this.
    if !name.starts_with('.') && !remove_remains(store, name)? {
        return Ok(false);
    }
    // Gone already means that another command reaps the same at this moment.
    let _ = std::fs::remove_file(path);
    Ok(true)
}

/// Says whether all is gone.
fn remove_remains(store: &Store, id: &str) -> Result<bool> {
    let mut cleanup = Cleanup::default();
    let mut note = |what: String, done: Result<bool>| match done {
        Ok(true) => cleanup.removed.push(what),
        Ok(false) => {}
        Err(error) => cleanup.left.push(format!("{what}: {error}")),
    };
    for (name, done) in sandbox::remove_groups(id) {
        note(format!("cgroup {name}"), done);
    }
    for (name, done) in sandbox::remove_devices(&store.id_ranges()) {
        note(name, done);
    }
    let checkout = store.unfinished_base(id);
    let removed = files::remove_directory(&checkout)
        .map_err(|cause| files::failed(cause, "remove the unfinished checkout".to_owned()));
    note("unfinished checkout".to_owned(), removed);
    let directory = store.task(id);
    let is_gone = cleanup.left.is_empty();
    if !directory.exists() || has_receipt(store, id)? {
        return Ok(is_gone);
    }
    let begun = match store.record(id) {
        Ok(begun) => begun,
        // Killed before the record was there: there is nothing to tell of this task.
        Err(error) if error.kind() == Kind::NotFound && !has_work(&directory) => {
            return files::remove_directory(&directory)
                .map(|_| is_gone)
                .map_err(|cause| files::failed(cause, format!("remove the unfinished task `{id}`")));
        }
        // One of a newer version, or one that cannot be read now: whose it is can.
        Err(error) => return Err(error),
    };
    let report = Report { cleanup, ..last_seen(&directory, &begun) };
    json::write(
        &directory.join("receipt.json"),
        &Receipt::new(&begun, report, AttemptRecord::default(), &TaskSecrets::none()),
    )?;
    Ok(is_gone)
}

/// What can be told of a task whose supervisor has not told it: from what it wrote while it lived.
fn last_seen(directory: &Path, begun: &Record) -> Report {
    let error = Error::new(Kind::Lost, "its supervisor ended without a word").hint(format!(
        "see what it wrote until then: brig task logs {}; whether the machine had run out of memory: dmesg",
        begun.id
    ));
    let file = |name: &str| std::fs::metadata(directory.join(name)).ok();
    let last = [EVENTS, LOG].iter().filter_map(|name| file(name)?.modified().ok()).max();
    let began = humantime::parse_rfc3339(&begun.created).ok();
    // A clock that was set back makes nothing long.
    let lived = last.zip(began).and_then(|(last, began)| last.duration_since(began).ok()).unwrap_or_default();
    let has_run = event::tell_of_a_run(directory);
    Report {
        outcome: Outcome::Lost,
        ended: None,
        error: Some(error),
        limits_hit: Vec::new(),
        egress: None,
        refused_namespaces: Vec::new(),
        usage: Usage {
            wall_seconds: if has_run { lived.as_secs_f64() } else { 0.0 },
            output_bytes: file(LOG).map_or(0, |status| status.len()),
            ..Usage::default()
        },
        guarantee: begun.guarantee.filter(|_| has_run).unwrap_or(Guarantee::None),
        degraded: Vec::new(),
        cleanup: Cleanup::default(),
    }
}

/// Whether a task has told its end. A receipt that a crash of the machine has torn counts for nothing: it is kept under another name, and the end
/// is told anew.
fn has_receipt(store: &Store, id: &str) -> Result<bool> {
    match store.receipt(id) {
        Err(error) if error.kind() == Kind::Record => {
            let receipt = store.task(id).join("receipt.json");
            std::fs::rename(&receipt, receipt.with_extension("bad"))
                .map(|()| false)
                .map_err(|cause| files::failed(cause, format!("put the torn receipt of `{id}` aside")))
        }
        other => other.map(|receipt| receipt.is_some()),
    }
}

/// Whether there is something in a task's directory that nobody can make again.
fn has_work(directory: &Path) -> bool {
    [keep::IMAGE, git::COMMITS].iter().any(|name| directory.join(name).exists())
}

/// Everything that is left of tasks that are over: what `brig doctor --leaks` prints. Changes nothing.
pub fn leaks(store: &Store) -> Result<Vec<Leak>> {
    let mut found = Vec::new();
    let mut running = Vec::new();
    if let Ok(entries) = std::fs::read_dir(store.live()) {
        for entry in entries.filter_map(|entry| entry.ok()) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                // One that nobody can look at is told as well.
                if sandbox::is_begun_disk_abandoned(&path).unwrap_or(true) && path.exists() {
                    found.push(Leak { kind: "directories of a disk".into(), path });
                }
                continue;
            }
            match Lock::attempt(&entry.path()) {
                Ok(Attempt::Taken(_)) if !entry.path().exists() => {} // it ended just now
                Ok(Attempt::Held) => running.extend(entry.file_name().into_string()),
                Ok(Attempt::Missing) => {}
                Ok(Attempt::Taken(_)) | Err(_) => {
                    found.push(Leak { kind: "task whose supervisor died".into(), path: entry.path() });
                }
            }
        }
    }
    let (half_gone, known): (Vec<_>, Vec<_>) = store.names()?.into_iter().partition(|name| name.starts_with(REMOVED));
    found
        .extend(half_gone.iter().map(|name| Leak { kind: "task half removed".into(), path: store.tasks().join(name) }));
    for (id, path) in sandbox::groups() {
        if !crate::task::store::is_id(id.split('-').next().unwrap_or(&id)) {
            continue; // somebody else's name that begins as ours do
        }
        // A courier's group is named after its task.
        let task = id.split('-').next().unwrap_or(&id).to_owned();
        let ours = known.contains(&task) && !running.contains(&task);
        if ours || (!known.contains(&task) && is_abandoned(&path)) {
            found.push(Leak { kind: "cgroup".into(), path });
        }
    }
    let left = sandbox::left_containers();
    found.extend(left.into_iter().map(|(kind, path)| Leak { kind: kind.into(), path }));
    found.extend(devices(store));
    found.extend(loop_devices(store, running.len()));
    Ok(found)
}

/// Network devices of sandboxes that are gone. The kernel removes one a moment after the last process of its sandbox.
fn devices(store: &Store) -> Vec<Leak> {
    let mut found = sandbox::left_devices(&store.id_ranges());
    for _ in 0..MOMENTS {
        if found.is_empty() {
            break;
        }
        std::thread::sleep(MOMENT);
        found = sandbox::left_devices(&store.id_ranges());
    }
    found.into_iter().map(|name| Leak { kind: "network device".into(), path: name.into() }).collect()
}

/// Whether a group that no task of this store has is nobody's: the tasks of other stores have theirs beside it, and one that was just made is
/// empty until its first process is there.
fn is_abandoned(group: &std::path::Path) -> bool {
    const JUST_MADE: Duration = Duration::from_secs(10);
    let processes = std::fs::read_to_string(group.join("cgroup.procs"));
    let made = std::fs::metadata(group).and_then(|status| status.modified());
    let age = made.ok().and_then(|made| made.elapsed().ok());
    processes.is_ok_and(|text| text.is_empty()) && age.is_some_and(|age| age > JUST_MADE)
}

/// Loop devices with an image of this store, if there are more than tasks that run. The kernel detaches one a moment after its last mount is gone,
/// so what is seen at once is looked at again.
fn loop_devices(store: &Store, running: usize) -> Vec<Leak> {
    let mut found = attached(store);
    for _ in 0..MOMENTS {
        if found.len() <= running {
            return Vec::new();
        }
        std::thread::sleep(MOMENT);
        found = attached(store);
    }
    found.into_iter().skip(running).map(|path| Leak { kind: "loop device".into(), path }).collect()
}

fn attached(store: &Store) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let (lasting, passing) = (store.templates(), sandbox::backing_name(&store.templates()));
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let ours = backing.starts_with(&*lasting.to_string_lossy()) || backing.starts_with(&passing);
            ours.then(|| PathBuf::from("/dev").join(entry.file_name()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::records::record::tests::FIRST;

    /// A store with a task of this record, whose supervisor has died.
    fn dead(store: &Store, id: &str, record: Option<&str>) -> PathBuf {
        store.begin(id).unwrap().leave();
        let directory = store.make(id).unwrap();
        if let Some(record) = record {
            std::fs::write(directory.join("record.json"), record.replace("t0", id)).unwrap();
        }
        directory
    }

    #[test]
    fn what_cannot_be_read_stays_is_told_and_stops_nobody() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        let newer = FIRST.replacen("\"schema\":1", "\"schema\":4", 1);
        let kept = dead(&store, "kept", Some(&newer));
        std::fs::write(kept.join(keep::IMAGE), "work").unwrap();
        let torn = dead(&store, "torn", Some(""));
        let unknown = dead(&store, "unknown", None);
        std::fs::create_dir(unknown.join(git::COMMITS)).unwrap();
        let unfinished = dead(&store, "unfinished", None);
        dead(&store, "whole", Some(FIRST));
        let mut reaped = reap(&store).unwrap();
        reaped.sort();
        assert_eq!(reaped, ["unfinished", "whole"]);
        assert_eq!(store.receipt("whole").unwrap().unwrap().outcome, Outcome::Lost);
        assert!(kept.join(keep::IMAGE).exists() && torn.exists() && unknown.exists() && !unfinished.exists());
        let told: Vec<_> = leaks(&store).unwrap().into_iter().map(|leak| leak.path).collect();
        assert!(["kept", "torn", "unknown"].iter().all(|id| told.contains(&store.live().join(id))), "{told:?}");
        // Whoever wants to be rid of one can.
        for id in ["kept", "torn", "unknown"] {
            assert_eq!(store.status(id).unwrap(), Status::Lost);
            store.remove(id).unwrap();
        }
        assert_eq!(std::fs::read_dir(store.live()).unwrap().count(), 0);
    }

    #[test]
    fn a_record_without_lock_and_receipt_is_reconciled() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        for id in ["t1", "t2"] {
            dead(&store, id, Some(FIRST));
            std::fs::remove_file(store.live().join(id)).unwrap();
            assert_eq!(store.status(id).unwrap(), Status::Lost);
        }
        assert_eq!(store.final_receipt("t1").unwrap().outcome, Outcome::Lost);
        let (rows, unread) = store.list().unwrap();
        let told: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.status, row.outcome.as_deref())).collect();
        assert_eq!(told, [("t1", Status::Ended, Some("lost")), ("t2", Status::Ended, Some("lost"))]);
        assert!(unread.is_empty());
        assert_eq!(std::fs::read_dir(store.live()).unwrap().count(), 0);
        let _alive = store.begin("t3").unwrap();
        store.make("t3").unwrap();
        assert!(store.final_receipt("t3").unwrap_err().to_string().contains("still running"));
    }

    #[test]
    fn a_torn_receipt_counts_for_nothing() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        for (id, text) in [("t1", ""), ("t2", "{\"schema\":1,")] {
            let directory = dead(&store, id, Some(FIRST));
            std::fs::write(directory.join("receipt.json"), text).unwrap();
            assert_eq!(reap(&store).unwrap(), [id]);
            assert_eq!(store.receipt(id).unwrap().unwrap().outcome, Outcome::Lost);
            assert_eq!(std::fs::read_to_string(directory.join("receipt.bad")).unwrap(), text);
        }
    }
}
