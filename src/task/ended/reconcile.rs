//! Removes the remains of dead supervisors. The next command does it: brig has no daemon.
//!
//! The kernel has ended the sandbox's processes, mounts, namespaces and loop device. The cgroup, the lock's name and a
//! record without a receipt remain.

use super::keep;
use crate::error::{Error, Kind, Result};
use crate::files::{self, Attempt, Lock};
use crate::image;
use crate::sandbox::{self, Cleanup, Guarantee, Outcome, Report, Usage};
use crate::task::git;
use crate::task::records::event;
use crate::task::records::receipt::{AttemptRecord, Receipt};
use crate::task::records::record::Record;
use crate::task::secrets::TaskSecrets;
use crate::task::store::{Alive, EVENTS, LOG, REMOVED, Status, Store, is_left, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOST_VOLUMES: usize = 8;
const MOST_AT_START: usize = 16;
/// Looks at a task that another command may reap, in one moment.
const REAPING: u32 = 10;
/// Between two looks for leaks, and the number of looks.
const MOMENT: Duration = Duration::from_millis(100);
const MOMENTS: u32 = 20;

/// A remaining object of a gone task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Leak {
    /// Its kind.
    pub kind: String,
    /// Its path.
    pub path: PathBuf,
}

/// Removes the remains of dead supervisors, and writes missing receipts. Without remains it costs one read of a
/// directory and four system calls a live task. What cannot be removed stays for [`leaks`]: a broken record must not
/// stop other tasks.
pub fn reap(store: &Store) -> Result<Vec<String>> {
    Ok(reap_among(store, live_names(store)))
}

/// Like [`reap`] for at most [`MOST_AT_START`] names. A start adds one, so repeated starts remove more than they can
/// leave. Each begins elsewhere: `start` is the process ID, which grows.
pub(crate) fn reap_at_start(store: &Store, start: u32) -> Vec<String> {
    let mut names = live_names(store);
    if names.len() > MOST_AT_START {
        let first = start as usize % names.len();
        names.rotate_left(first);
        names.truncate(MOST_AT_START);
    }
    reap_among(store, names)
}

/// The flag marks a directory.
fn live_names(store: &Store) -> Vec<(String, bool)> {
    let Ok(entries) = std::fs::read_dir(store.live()) else { return Vec::new() };
    let named = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, entry.file_type().is_ok_and(|kind| kind.is_dir())))
    });
    named.collect()
}

/// Reaps names that no process holds; returns the tasks.
fn reap_among(store: &Store, names: Vec<(String, bool)>) -> Vec<String> {
    let mut reaped = Vec::new();
    for (name, is_directory) in names {
        if is_directory {
            let _ = sandbox::remove_begun_disk(&store.live().join(&name));
        } else if reap_one(store, &name).unwrap_or(false) && !name.starts_with('.') {
            reaped.push(name);
        }
    }
    reaped
}

impl Store {
    /// The receipt of an ended task. Writes one for a lost task.
    pub fn final_receipt(&self, id: &str) -> Result<Receipt> {
        // A command that reaps it holds its lock too, for a moment.
        for _ in 0..REAPING {
            reconcile_one(self, id)?;
            if let Some(receipt) = self.receipt(id)? {
                return Ok(receipt);
            }
            if !self.task(id).exists() {
                return Err(Error::new(Kind::NotFound, format!("the task `{id}` ended before it was recorded"))
                    .hint("see `brig task ls`"));
            }
            std::thread::sleep(MOMENT / REAPING);
        }
        Err(Error::new(Kind::State, format!("the task `{id}` is still running"))
            .hint("wait for its end: `brig task wait ID`; its output so far: `brig task logs ID`"))
    }
}

/// For more work on an ended task. If its cleanup left something, the name stays for the next command.
pub(super) fn begin_again(store: &Store, id: &str) -> Result<Alive> {
    let is_left = store.live().join(id).exists() && !reap_one(store, id).unwrap_or(false);
    let alive = store.begin(id)?;
    Ok(if is_left { alive.stays() } else { alive })
}

/// Also without the lock that [`reap`] finds. Waits for another process that reaps the task: two would write two
/// receipts, the later one without the saved work.
pub(crate) fn reconcile_one(store: &Store, id: &str) -> Result<()> {
    if store.status(id)? != Status::Lost {
        return Ok(());
    }
    files::create_directories(&store.live(), 0o700)?;
    let path = store.live().join(id);
    let _lock = Lock::wait(&path)?;
    if remove_remains(store, id)? {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// `false` if it runs or cannot be reaped; its name stays for another attempt.
pub(crate) fn reap_one(store: &Store, name: &str) -> Result<bool> {
    let path = store.live().join(name);
    let Attempt::Taken(_lock) = Lock::attempt(&path)? else { return Ok(false) };
    // A dot marks a task before its start, without other objects.
    if !name.starts_with('.') && !remove_remains(store, name)? {
        return Ok(false);
    }
    // Another command may have reaped the name.
    let _ = std::fs::remove_file(path);
    Ok(true)
}

/// Whether all remains are gone.
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
        // Killed before its record: nothing to report.
        Err(error) if error.kind() == Kind::NotFound && !has_work(&directory) => {
            return files::remove_directory(&directory)
                .map(|_| is_gone)
                .map_err(|cause| files::failed(cause, format!("remove the unfinished task `{id}`")));
        }
        // A newer version's record, or one unreadable now: a later command may read it.
        Err(error) => return Err(error),
    };
    let report = Report { cleanup, ..last_seen(&directory, &begun) };
    let receipt = Receipt::new(&begun, report, AttemptRecord::saved(&directory), &TaskSecrets::none());
    json::write(&directory.join("receipt.json"), &receipt)?;
    AttemptRecord::remove_saved(&directory);
    Ok(is_gone)
}

fn last_seen(directory: &Path, begun: &Record) -> Report {
    let error = Error::new(Kind::Lost, "its supervisor ended without a word").hint(format!(
        "see what it wrote until then: brig task logs {}; whether the machine had run out of memory: dmesg",
        begun.id
    ));
    let file = |name: &str| std::fs::metadata(directory.join(name)).ok();
    let last = [EVENTS, LOG].iter().filter_map(|name| file(name)?.modified().ok()).max();
    let began = humantime::parse_rfc3339(&begun.created).ok();
    // A clock that was set back makes no duration.
    let lived = last.zip(began).and_then(|(last, began)| last.duration_since(began).ok()).unwrap_or_default();
    let has_run = event::tell_of_a_run(directory);
    Report {
        outcome: Outcome::Lost,
        ended: None,
        error: Some(error),
        limits_hit: Vec::new(),
        egress: None,
        refused_namespaces: Vec::new(),
        unfinished: Vec::new(),
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

/// A receipt torn by a crash of the machine is renamed, and counts as missing.
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

/// Whether a directory has work that cannot be made again, beside its changes.
pub(super) fn has_work(directory: &Path) -> bool {
    [keep::IMAGE, sandbox::CHECKPOINTS, git::COMMITS].iter().any(|name| directory.join(name).exists())
}

/// All remains of ended tasks, for `brig doctor --leaks`. Changes nothing.
///
/// Beside it tasks begin and end, and the kernel removes a device a moment after its last user. So only what stays is a
/// leak.
pub fn leaks(store: &Store) -> Result<Vec<Leak>> {
    let mut found = remains(store)?;
    for _ in 0..MOMENTS {
        if found.is_empty() {
            break;
        }
        std::thread::sleep(MOMENT);
        let still = remains(store)?;
        found.retain(|leak| still.contains(leak));
    }
    Ok(found)
}

fn remains(store: &Store) -> Result<Vec<Leak>> {
    let mut found = Vec::new();
    let mut running = Vec::new();
    if let Ok(entries) = std::fs::read_dir(store.live()) {
        for entry in entries.filter_map(|entry| entry.ok()) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                // Report a disk that cannot be examined too.
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
    let ended = known.iter().filter(|id| !running.contains(id));
    found.extend(
        ended.flat_map(|id| half_written(&store.task(id))).map(|path| Leak { kind: "half-written file".into(), path }),
    );
    let volumes = store.volume_leftovers()?.into_iter();
    found.extend(volumes.map(|path| Leak { kind: "unfinished volume".into(), path }));
    let images = image::Store::existing(store.root()).ok().flatten().map_or(Vec::new(), |images| images.leftovers());
    let images = images.into_iter().filter(|path| is_left(path));
    found.extend(images.map(|path| Leak { kind: "unfinished image".into(), path }));
    for group in sandbox::groups() {
        // A courier's group is named after its task.
        let task = group.id.split('-').next().unwrap_or(&group.id).to_owned();
        if !crate::task::store::is_id(&task) {
            continue; // another program's name with the same prefix
        }
        let ours = known.contains(&task) && !running.contains(&task);
        if ours || (!known.contains(&task) && is_abandoned(&group)) {
            found.push(Leak { kind: "cgroup".into(), path: group.path });
        }
    }
    let left = sandbox::left_containers();
    found.extend(left.into_iter().map(|(kind, path)| Leak { kind: kind.into(), path }));
    let devices = sandbox::left_devices(&store.id_ranges());
    found.extend(devices.into_iter().map(|name| Leak { kind: "network device".into(), path: name.into() }));
    let (lasting, passing) = (store.templates(), sandbox::backing_name(&store.templates()));
    // A container of the OCI runtime has its disk in the root's default store.
    found.extend(loop_devices(&[&lasting.to_string_lossy(), &passing], || running.len() + sandbox::capped_roots()));
    found.extend(loop_devices(&[&store.volumes_directory().to_string_lossy()], || running.len() * MOST_VOLUMES));
    Ok(found)
}

/// Files of killed writers (`files::replace`).
fn half_written(task: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(task).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_unfinished = |path: &PathBuf| {
        path.extension().is_some_and(|end| end.as_encoded_bytes().starts_with(b"tmp-")) && is_left(path)
    };
    entries.filter(is_unfinished).collect()
}

/// Other stores' groups are beside this store's, and a new group is empty until its first process.
fn is_abandoned(group: &sandbox::Leftover) -> bool {
    const JUST_MADE: Duration = Duration::from_secs(10);
    let made = std::fs::metadata(&group.path).and_then(|status| status.modified());
    let age = made.ok().and_then(|made| made.elapsed().ok());
    group.processes == 0 && age.is_some_and(|age| age > JUST_MADE)
}

/// Loop devices on images with these path prefixes, if more than `most`, which may take a while to count.
fn loop_devices(prefixes: &[&str], most: impl FnOnce() -> usize) -> impl Iterator<Item = Leak> {
    let found = attached(prefixes);
    let most = if found.is_empty() { 0 } else { most() };
    found.into_iter().skip(most).map(|path| Leak { kind: "loop device".into(), path })
}

fn attached(prefixes: &[&str]) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let ours = prefixes.iter().any(|prefix| backing.starts_with(prefix));
            ours.then(|| PathBuf::from("/dev").join(entry.file_name()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::records::record::tests::FIRST;

    fn dead(store: &Store, id: &str, record: Option<&str>) -> PathBuf {
        store.begin(id).unwrap().leave();
        let directory = store.make(id).unwrap();
        if let Some(record) = record {
            std::fs::write(directory.join("record.json"), record.replace("t0", id)).unwrap();
        }
        directory
    }

    #[test]
    fn unreadable_record_stays_as_a_leak_and_stops_no_task() {
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
        for id in ["kept", "torn", "unknown"] {
            assert_eq!(store.status(id).unwrap(), Status::Lost);
            store.remove(id).unwrap();
        }
        assert_eq!(std::fs::read_dir(store.live()).unwrap().count(), 0);
    }

    #[test]
    fn a_start_beside_many_tasks_examines_a_few_and_repeated_starts_all() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        let alive: Vec<_> = (0..2 * MOST_AT_START).map(|each| store.begin(&format!("alive{each}")).unwrap()).collect();
        for each in 0..2 * MOST_AT_START {
            dead(&store, &format!("dead{each}"), Some(FIRST));
        }
        let mut reaped = 0;
        for start in 0..u32::try_from(4 * MOST_AT_START).unwrap() {
            let now = reap_at_start(&store, start).len();
            assert!(now <= MOST_AT_START, "{now}");
            reaped += now;
        }
        assert_eq!(reaped, 2 * MOST_AT_START);
        assert_eq!(live_names(&store).len(), alive.len());
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
    fn a_group_with_a_process_or_a_new_one_is_not_abandoned() {
        let place = tempfile::tempdir().unwrap();
        let group = |processes| sandbox::Leftover { id: String::new(), path: place.path().to_path_buf(), processes };
        assert!(!is_abandoned(&group(0)));
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        std::fs::File::open(place.path()).unwrap().set_modified(old).unwrap();
        assert!(!is_abandoned(&group(1)));
        assert!(is_abandoned(&group(0)));
    }

    #[test]
    fn unfinished_volumes_images_and_files_are_leaks_after_a_minute() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        drop(image::Store::open(store.root()).unwrap());
        let all = ["volumes/.new-v-1", "volumes/.removed-v-1", "temporary/.brig-1-0-0", "tasks/t1/workspace.tmp-1"]
            .map(|name| place.path().join(name));
        all.iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
        let found =
            || leaks(&store).unwrap().into_iter().map(|leak| leak.path).filter(|path| all.contains(path)).count();
        assert_eq!(found(), 0);
        let old = std::time::SystemTime::now() - Duration::from_secs(120);
        all.iter().for_each(|path| std::fs::File::open(path).unwrap().set_modified(old).unwrap());
        assert_eq!(found(), all.len());
    }

    #[test]
    fn two_commands_that_reap_one_task_write_one_receipt_with_its_work() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        for round in 0..300 {
            let id = format!("t{round}");
            let directory = dead(&store, &id, Some(FIRST));
            let work = AttemptRecord { artifacts: Some(Default::default()), ..AttemptRecord::default() };
            work.save(&directory).unwrap();
            let reap = || store.final_receipt(&id).unwrap();
            let receipts =
                std::thread::scope(|scope| [scope.spawn(reap), scope.spawn(reap)].map(|it| it.join().unwrap()));
            assert!(receipts.iter().all(|receipt| receipt.artifacts.is_some()), "{round}");
            assert!(store.final_receipt(&id).unwrap().artifacts.is_some(), "{round}");
        }
        assert_eq!(std::fs::read_dir(store.live()).unwrap().count(), 0);
    }

    #[test]
    fn more_work_on_an_ended_task_keeps_the_name_of_what_could_not_be_removed() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        // An unreadable record keeps the remains of a task from their removal.
        dead(&store, "left", Some(""));
        drop(begin_again(&store, "left").unwrap());
        assert!(store.live().join("left").exists());
        dead(&store, "gone", Some(FIRST));
        drop(begin_again(&store, "gone").unwrap());
        assert!(!store.live().join("gone").exists());
    }

    #[test]
    fn an_empty_receipt_of_a_power_cut_counts_for_nothing_without_a_lock() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().to_path_buf());
        let directory = dead(&store, "t1", Some(FIRST));
        std::fs::remove_file(store.live().join("t1")).unwrap();
        std::fs::write(directory.join("receipt.json"), "").unwrap();
        assert_eq!(store.final_receipt("t1").unwrap().outcome, Outcome::Lost);
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
