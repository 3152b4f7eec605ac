//! Exports an ended task's commits as a file for `git fetch FILE`.

use super::apply::open_base;
use super::reconcile::begin_again;
use crate::error::{Error, Kind, Result, Step};
use crate::files::Pinned;
use crate::host::is_off;
use crate::sandbox::Limits;
use crate::task::git::{self, Budget, GitJob, GitOptions, Head, Work};
use crate::task::output::changes::Changes;
use crate::task::output::handback::ChangeSet;
use crate::task::records::receipt::Receipt;
use crate::task::redact::Redactor;
use crate::task::store::Store;
use serde::Serialize;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// An exported bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The file, in the task's directory.
    pub path: PathBuf,
    /// Its last commit.
    pub commit: String,
    /// Its branch in the bundle.
    pub branch: String,
}

/// Of an ended task, held against concurrent removal, export or push.
pub(super) const EXPORT_LOCK: &str = "export.lock";

/// The last commit of the attempt, and its branch. A user may have moved the folder's HEAD since: what the receipt has
/// is not looked up again.
pub(super) fn work_of(receipt: &Receipt, handback: &ChangeSet, base: &Path) -> Result<Head> {
    let copied = copied(handback)?;
    let copied = copied.as_ref().map(|(changes, path)| (changes, *path));
    let head = git::head(copied, base);
    let Some(commit) = receipt.commit_out.clone() else { return head };
    match head {
        Ok(head) if head.commit == commit => Ok(head),
        _ => Ok(Head { branch: copied.and_then(|copied| git::branch_at(copied, &commit)), commit }),
    }
}

pub(crate) fn head_of(handback: &ChangeSet, base: &Path) -> Result<Head> {
    let copied = copied(handback)?;
    git::head(copied.as_ref().map(|(changes, path)| (changes, *path)), base)
}

/// The first and last commit; `None` without a commit. `start` is the folder's HEAD when the sandbox began: a user may
/// move it meanwhile.
pub(crate) fn commits_of(handback: &ChangeSet, folder: &Path, start: Head) -> Option<(String, String)> {
    let (changes, path) = copied(handback).ok()??;
    let after = git::head_since(&start, (&changes, path), folder).ok()?.commit;
    (start.commit != after).then_some((start.commit, after))
}

/// The changes with the directory of their copies.
fn copied(handback: &ChangeSet) -> Result<Option<(Changes, &Path)>> {
    let Some(path) = handback.path.as_deref() else { return Ok(None) };
    Ok(Some((Changes::load(&path.join("changes.json"))?, path)))
}

/// `None` if the base has all commits.
pub(crate) fn bundle_of(
    errand: &GitJob<'_>,
    handback: &ChangeSet,
    base: (&Path, &str),
    commit: &str,
    branch: &str,
) -> Result<Option<PathBuf>> {
    let Some(changes) = &handback.path else { return Ok(None) };
    git::bundle(errand, &Work { base: base.0, base_commit: base.1, changes, commit, branch })
}

/// Opens and pins the base; refuses another folder at the task folder's path.
pub(super) fn hold_base(store: &Store, id: &str, base: &Path) -> Result<Pinned> {
    let opened = open_base(store, base)?;
    let folder = store.record(id)?.folder.filter(|_| !base.starts_with(store.root()));
    if folder.is_some_and(|folder| !folder.is_of(&opened)) && !is_off("changes-folder") {
        let words = format!("`{}` is another folder than the one that the task worked on", base.display());
        return Err(Error::new(Kind::State, words).hint("move the task's own folder back to this path"));
    }
    let mut pinned = Pinned::default();
    pinned.add(base, opened);
    Ok(pinned)
}

/// Bundles an ended task's commits on the agent's branch. Needs a process with one thread.
pub fn export_bundle(store: &Store, id: &str) -> Result<Exported> {
    crate::process::require_one_thread()?;
    let step = || format!("export the commits of `{id}`");
    let none = |why: &str, hint: &str| Err(Error::new(Kind::State, why.to_owned()).doing(step()).hint(hint));
    let receipt = store.final_receipt(id).doing(step)?;
    let (Some(commit_in), Some(changes)) = (&receipt.commit_in, &receipt.changes) else {
        return none("it made no commit, or did not work on a repository", "see what it changed: `brig task diff ID`");
    };
    let Some(base) = changes.base.clone().filter(|path| path.exists()) else {
        return none(
            "the checkout or the folder that it began with is gone",
            "see what it changed: `brig task diff ID`",
        );
    };
    let pinned = &hold_base(store, id, &base).doing(step)?;
    let head = work_of(&receipt, changes, &pinned.path(&base)).doing(step)?;
    let branch = head.branch.filter(|name| git::is_branch(name)).unwrap_or_else(|| format!("brig/{id}"));
    let options = GitOptions::default();
    let redactor = Redactor::new();
    let degraded: Vec<_> = receipt.degraded.iter().map(|each| each.name.clone()).collect();
    let (may_degrade, account) = (degraded.as_slice(), RefCell::default()); // it reaches no network
    let (options, redactor) = (&options, &redactor);
    let budget = &Budget::new(&Limits::default());
    let errand = GitJob {
        store,
        id,
        may_degrade,
        pinned,
        options,
        resolver: None,
        account: &account,
        redactor,
        progress: &|_| {},
        budget,
        control: &RefCell::default(), // the task has ended
    };
    // Against concurrent removal or export.
    let _lock = crate::files::Lock::wait(&store.task(id).join(EXPORT_LOCK))?;
    let _alive = begin_again(store, id)?;
    match bundle_of(&errand, changes, (&base, commit_in), &head.commit, &branch).doing(step)? {
        Some(path) => Ok(Exported { path, commit: head.commit, branch }),
        None => none("it made no commit", "what is not committed is in `brig task export ID --patch`"),
    }
}
