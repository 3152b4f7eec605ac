//! Shows, lists and applies the changes of an ended task, all or a selection. `changes` compares and writes paths.

use crate::error::{Context, Error, Kind, Result, Step};
use crate::host::is_off;
use crate::task::definition::WorkspaceSource;
use crate::task::definition::hosted::pin_now;
use crate::task::output::changes::{self, Binary, Change, Changes, DiffOptions, Selection};
use crate::task::output::handback::{ChangeSet, LISTED, leave_result_out, open_tree};
use crate::task::store::Store;
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A patch's summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PatchNotes {
    /// Files and links.
    pub files: usize,
    /// Files with only a note: binary, or too large to compare.
    pub noted: Vec<String>,
    /// Files left out: their base has changed.
    pub base_changed: Vec<String>,
    /// Files compared with the kept copy of their changed base.
    pub edited_since: Vec<String>,
    /// Files compared with the user's edit of their base during the run, which the agent may not have seen.
    pub edited_meanwhile: Vec<String>,
    /// Left-out files in `.git`.
    pub in_git: usize,
    /// Files not selected.
    pub not_selected: usize,
}

/// Options of a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchOptions {
    /// Include `.git`, for reading only: `git apply` refuses it.
    pub include_git: bool,
    /// Whole binary files in git's format.
    pub binary: bool,
    /// The selected changes.
    pub selection: Selection,
}

/// One changed path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedPath {
    /// `added`, `modified` or `deleted`.
    pub change: &'static str,
    /// The path in the workspace, unusual bytes escaped.
    pub path: String,
    /// Why a tool could run it later on a host.
    pub runnable: Option<&'static str>,
}

/// Writes an ended task's changes as a patch.
pub fn patch(store: &Store, id: &str, options: &PatchOptions, out: &mut dyn Write) -> Result<PatchNotes> {
    let (mut changes, found) = load(store, id)?;
    let not_selected = options.selection.apply(&mut changes)?;
    let Some((directory, handback)) = found else { return Ok(PatchNotes::default()) };
    let lower = base(store, id, &handback)?;
    let binary = if options.binary { Binary::Literal } else { Binary::Note };
    let options = DiffOptions { include_git: options.include_git, binary };
    let mut out = std::io::BufWriter::new(out);
    let diffed = changes::diff(&changes, &directory, lower.as_ref().map(AsFd::as_fd), options, &mut out)?;
    out.flush().failing(Kind::Store, || "write the patch")?;
    Ok(PatchNotes {
        files: diffed.files,
        noted: diffed.noted.iter().map(ToString::to_string).collect(),
        base_changed: diffed.base_changed.iter().map(ToString::to_string).collect(),
        edited_since: diffed.edited_since.iter().map(ToString::to_string).collect(),
        edited_meanwhile: diffed.edited_meanwhile.iter().map(ToString::to_string).collect(),
        in_git: diffed.in_git,
        not_selected,
    })
}

/// `None` without a base, or if another folder has its path.
fn base(store: &Store, id: &str, handback: &ChangeSet) -> Result<Option<OwnedFd>> {
    let Some(path) = handback.base.as_deref() else { return Ok(None) };
    let record = store.record(id)?;
    let is_the_users = record.workspace.folder().is_some_and(|folder| folder == path);
    let opened = open_base(store, path);
    let folder = record.folder.filter(|_| is_the_users && !is_off("changes-folder"));
    match (opened, folder) {
        (Ok(opened), Some(folder)) if !folder.is_of(&opened) => Ok(None),
        (Err(_), Some(_)) => Ok(None),
        (opened, _) => opened.map(Some),
    }
}

/// Opens a checkout of the store or the user's folder.
pub(super) fn open_base(store: &Store, base: &Path) -> Result<OwnedFd> {
    if base.starts_with(store.root()) {
        return open_tree(base);
    }
    open_tree(&pin_now("folder", base)?.path(base))
}

/// Lists an ended task's changed paths.
pub fn changed_paths(store: &Store, id: &str, include_git: bool, selection: &Selection) -> Result<Vec<ChangedPath>> {
    let (mut changes, _) = load(store, id)?;
    // Judge before selecting: whether a file could run depends on its neighbours.
    let runnable = changes::runnable(&changes);
    let runnable: HashMap<_, _> = runnable.iter().map(|each| (&each.path, each.why)).collect();
    selection.apply(&mut changes)?;
    let row = |entry: &changes::Entry| ChangedPath {
        change: match entry.change() {
            Change::Added => "added",
            Change::Modified => "modified",
            Change::Deleted => "deleted",
        },
        path: entry.path.to_string(),
        runnable: runnable.get(&entry.path).copied(),
    };
    Ok(changes.entries.iter().filter(|entry| include_git || !entry.path.is_in_git()).map(row).collect())
}

/// Selected files with a secret's value, and those that were not searched, as in the receipt.
pub fn secrets_in(store: &Store, id: &str, selection: &Selection) -> Result<[Vec<String>; 2]> {
    let (mut changes, found) = load(store, id)?;
    let Some((_, handback)) = found else { return Ok(Default::default()) };
    let lists = [handback.secrets, handback.unsearched];
    // A cut list lacks files of any place.
    if lists.iter().any(|list| list.len() >= LISTED) {
        return Ok(lists);
    }
    let all: Vec<_> = changes.entries.iter().map(|entry| entry.path.to_string()).collect();
    selection.apply(&mut changes)?;
    let selected: Vec<_> = changes.entries.iter().map(|entry| entry.path.to_string()).collect();
    // A redacted name is not in the record.
    let counts = |path: &String| selected.contains(path) || !all.contains(path);
    Ok(lists.map(|list| list.into_iter().filter(counts).collect()))
}

/// Options of applying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Report only.
    pub dry_run: bool,
    /// Overwrite concurrent edits.
    pub force: bool,
    /// Merge edits of different lines.
    pub merge: bool,
    /// The selected changes.
    pub selection: Selection,
}

/// The result or, with `dry_run`, the plan. Unusual bytes are escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AppliedPaths {
    /// The tree.
    pub tree: PathBuf,
    /// Written or deleted.
    pub changed: Vec<String>,
    /// Paths that needed no change.
    pub already: usize,
    /// Left-out changes, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
    /// Written with both edits joined.
    pub merged: Vec<String>,
    /// Conflicts, or overwritten files with `force`, each with the difference.
    pub conflicts: Vec<(String, &'static str)>,
    /// Changes not selected.
    pub not_selected: usize,
}

/// Applies all changes or none to `into`, else to the workspace's folder or repository.
pub fn apply(store: &Store, id: &str, into: Option<&Path>, options: &ApplyOptions) -> Result<AppliedPaths> {
    let tree = match into {
        Some(path) => path.to_owned(),
        None => origin(store, id)?,
    };
    let pinned = pin_now("folder", &tree)?;
    let target = open_tree(&pinned.path(&tree)).hint(|| "name a folder that exists: --into DIR")?;
    let record = store.record(id)?;
    let git_modes = into.is_some() || matches!(record.workspace, WorkspaceSource::Repository { .. });
    // A named folder needs no identity.
    let folder = record.folder.filter(|_| into.is_none());
    if folder.is_some_and(|folder| !folder.is_of(&target)) && !is_off("changes-folder") {
        return Err(Error::new(
            Kind::State,
            format!("`{}` is another folder than the one that the task worked on", tree.display()),
        )
        .doing(format!("apply the changes of `{id}`"))
        .hint("name it if it is the right one: --into DIR"));
    }
    let (mut changes, found) = load(store, id)?;
    let not_selected = options.selection.apply(&mut changes)?;
    let Some((directory, handback)) = found else { return Ok(AppliedPaths { tree, ..AppliedPaths::default() }) };
    let base = if options.merge { base(store, id, &handback)? } else { None };
    let ApplyOptions { dry_run, force, merge, .. } = *options;
    let options = changes::Options { include_git: false, force, merge, dry_run, git_modes };
    let applied = changes::apply(&changes, &directory, (base.as_ref().map(AsFd::as_fd), target.as_fd()), options)?;
    Ok(AppliedPaths {
        tree,
        changed: applied.changed.iter().map(ToString::to_string).collect(),
        already: applied.already,
        left_out: applied.left_out.iter().map(|each| (each.path.to_string(), left_out(each.why))).collect(),
        merged: applied.merged.iter().map(ToString::to_string).collect(),
        conflicts: applied.conflicts.iter().map(|each| (each.path.to_string(), each.difference.words())).collect(),
        not_selected,
    })
}

fn left_out(why: changes::LeftOutReason) -> &'static str {
    match why {
        changes::LeftOutReason::Git => "it is in `.git`",
        changes::LeftOutReason::LinkOut => "the link may lead out of the tree",
        changes::LeftOutReason::OurName => "its name is the one that applying uses itself",
        changes::LeftOutReason::NotEmpty => "the folder still holds something else",
    }
}

fn origin(store: &Store, id: &str) -> Result<PathBuf> {
    let nowhere = |why: &str| {
        Error::new(Kind::State, why.to_owned())
            .doing(format!("apply the changes of `{id}`"))
            .hint("name a folder: --into DIR")
    };
    match store.record(id)?.workspace {
        WorkspaceSource::Directory(path) => Ok(path),
        WorkspaceSource::Repository { url, .. } => {
            let crate::task::git::Remote::Local(path) = crate::task::git::Remote::parse(&url)? else {
                return Err(nowhere("the repository is on another machine"));
            };
            let path = crate::task::git::local_path(&path)?;
            if path.join(".git").exists() { Ok(path) } else { Err(nowhere("the repository has no working tree")) }
        }
        WorkspaceSource::Empty => Err(nowhere("the workspace came from nowhere")),
    }
}

/// The change set is `None` if nothing changed.
fn load(store: &Store, id: &str) -> Result<(Changes, Option<(PathBuf, ChangeSet)>)> {
    let state = |why: &str, hint: &str| Error::new(Kind::State, why.to_owned()).hint(hint);
    let receipt = store.final_receipt(id)?;
    let handback = receipt.changes.ok_or_else(|| {
        state(&format!("the task `{id}` ended without handing anything back"), "see why: `brig task show ID`")
    })?;
    let Some(directory) = handback.path.clone() else { return Ok((Changes::default(), None)) };
    let mut changes = Changes::load(&directory.join("changes.json"))?;
    leave_result_out(&mut changes, &store.record(id)?.result.path);
    Ok((changes, Some((directory, handback))))
}
