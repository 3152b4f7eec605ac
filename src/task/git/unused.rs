//! Removes unused checkouts and mirrors. A task that needs one makes it again.

use crate::error::{Error, Result};
use crate::files::{self, Attempt, Lock};
use crate::task::store::Store;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Begins a checkout's name before its removal. A crash leaves only that name.
const GONE: &str = ".gone-";

/// Removes checkouts and mirrors unused for `older_than`, but not the checkouts in `needed`, which tasks resume from or
/// compare with. Without `needed` all checkouts stay. Returns removed paths (with `dry_run`: candidates) and their
/// bytes. Removes nothing while a task runs: when a running task uses which checkout is not recorded.
pub(crate) fn remove_unused(
    store: &Store,
    needed: Option<&BTreeSet<OsString>>,
    older_than: Duration,
    dry_run: bool,
    errors: &mut Vec<Error>,
) -> Result<Vec<(PathBuf, u64)>> {
    let mut gone = Vec::new();
    for directory in needed.map(|_| store.bases()).into_iter().chain([store.mirrors()]) {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.filter_map(|entry| entry.ok()) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let (path, tomb) = (entry.path(), directory.join(format!("{GONE}{name}")));
            let failed = |cause| files::failed(cause, format!("remove `{}`", path.display()));
            if name.starts_with(GONE) && !dry_run {
                files::remove_directory(&path).map(|_| ()).unwrap_or_else(|cause| errors.push(failed(cause)));
            }
            if name.starts_with('.') || needed.is_some_and(|needed| needed.contains(&entry.file_name())) {
                continue;
            }
            let lock = directory.join(format!(".{name}.lock"));
            // A task that looks for it now waits for this lock, and makes it again.
            let Attempt::Taken(_held) = Lock::attempt(&lock)? else { continue };
            if !is_unused_since(&lock, older_than) || is_task_running(store)? {
                continue;
            }
            let bytes = files::bytes_on_disk(&path);
            if !dry_run && let Err(cause) = std::fs::rename(&path, &tomb).and_then(|()| files::remove_directory(&tomb))
            {
                errors.push(failed(cause));
                continue;
            }
            gone.push((path, bytes));
        }
    }
    Ok(gone)
}

/// Every task takes its lock before it looks for a checkout.
fn is_task_running(store: &Store) -> Result<bool> {
    let Ok(entries) = std::fs::read_dir(store.live()) else { return Ok(false) };
    for entry in entries.filter_map(|entry| entry.ok()) {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) && matches!(Lock::attempt(&entry.path())?, Attempt::Held)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A clock that was set back makes nothing old.
fn is_unused_since(lock: &Path, older_than: Duration) -> bool {
    let used = std::fs::metadata(lock).and_then(|status| status.modified());
    used.is_ok_and(|used| SystemTime::now().duration_since(used).is_ok_and(|age| age > older_than))
}
