//! The changes of an ended task, whole or the paths that are selected: shown as a patch, listed, applied to the user's tree.
//!
//! In: the record and the copies that `handback` collected. Out: a patch ([`patch`]), a list ([`changed_paths`]), the user's tree changed
//! ([`apply`]). Not here: how paths are compared and written (`changes`).

use crate::error::{Context, Error, Kind, Result, Step};
use crate::task::definition::WorkspaceSource;
use crate::task::definition::hosted::pin_now;
use crate::task::output::changes::{self, Binary, Change, Changes, DiffOptions, Selection};
use crate::task::output::handback::{ChangeSet, LISTED, leave_result_out, open_tree};
use crate::task::store::Store;
use serde::Serialize;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What a patch holds and what it leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PatchNotes {
    /// How many files and links are in it.
    pub files: usize,
    /// Those that have only a note, because they are binary or too large to be compared.
    pub noted: Vec<String>,
    /// Those that are not in it, because their base is not as it was.
    pub base_changed: Vec<String>,
    /// Those whose base has changed since, and that are compared with the copy of what it was.
    pub edited_since: Vec<String>,
    /// Those whose base was edited while the agent ran: they are compared with that edit, which the agent may not have seen.
    pub edited_meanwhile: Vec<String>,
    /// How many are not in it because they are in `.git`.
    pub in_git: usize,
    /// How many are not in it because they are not selected.
    pub not_selected: usize,
}

/// How a patch is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchOptions {
    /// Also what is in `.git`: for reading, no `git apply` takes it.
    pub include_git: bool,
    /// Binary files whole, in git's own form, so that `git apply` makes them.
    pub binary: bool,
    /// Which changes are in it.
    pub selection: Selection,
}

/// One path that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedPath {
    /// `added`, `modified` or `deleted`.
    pub change: &'static str,
    /// The path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Why it could run later on a host, if it could.
    pub runnable: Option<&'static str>,
}

/// Writes the changes of an ended task as a patch.
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

/// The tree that the changes were made from. `None` if there was none, or if its path names another folder by now.
fn base(store: &Store, id: &str, handback: &ChangeSet) -> Result<Option<OwnedFd>> {
    let Some(path) = handback.base.as_deref() else { return Ok(None) };
    let record = store.record(id)?;
    let is_the_users = record.workspace.folder().is_some_and(|folder| folder == path);
    let opened = open_base(store, path);
    let folder = record.folder.filter(|_| is_the_users && !changes::tree::is_off("changes-folder"));
    match (opened, folder) {
        (Ok(opened), Some(folder)) if !folder.is_of(&opened) => Ok(None),
        (Err(_), Some(_)) => Ok(None),
        (opened, _) => opened.map(Some),
    }
}

/// Opens the tree that a workspace was shown from: a checkout of the store, or a folder of the user's.
pub(super) fn open_base(store: &Store, base: &Path) -> Result<OwnedFd> {
    if base.starts_with(store.root()) {
        return open_tree(base);
    }
    open_tree(&pin_now("folder", base)?.path(base))
}

/// The paths that an ended task changed.
pub fn changed_paths(store: &Store, id: &str, include_git: bool, selection: &Selection) -> Result<Vec<ChangedPath>> {
    let (mut changes, _) = load(store, id)?;
    // What could run depends on the files beside it, selected or not.
    let runnable = changes::runnable(&changes);
    selection.apply(&mut changes)?;
    let row = |entry: &changes::Entry| ChangedPath {
        change: match entry.change() {
            Change::Added => "added",
            Change::Modified => "modified",
            Change::Deleted => "deleted",
        },
        path: entry.path.to_string(),
        runnable: runnable.iter().find(|each| each.path == entry.path).map(|each| each.why),
    };
    Ok(changes.entries.iter().filter(|entry| include_git || !entry.path.is_in_git()).map(row).collect())
}

/// The selected files in which a secret's value stands, as the receipt has them.
pub fn secrets_in(store: &Store, id: &str, selection: &Selection) -> Result<Vec<String>> {
    let (mut changes, found) = load(store, id)?;
    let Some((_, handback)) = found else { return Ok(Vec::new()) };
    // Of a list that was cut, the rest may be anywhere.
    if handback.secrets.len() >= LISTED {
        return Ok(handback.secrets);
    }
    let all: Vec<_> = changes.entries.iter().map(|entry| entry.path.to_string()).collect();
    selection.apply(&mut changes)?;
    let selected: Vec<_> = changes.entries.iter().map(|entry| entry.path.to_string()).collect();
    // Where redaction changed a name, the record has another path.
    let counts = |path: &String| selected.contains(path) || !all.contains(path);
    Ok(handback.secrets.into_iter().filter(counts).collect())
}

/// How changes are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Check and tell; write nothing.
    pub dry_run: bool,
    /// Overwrite what was changed meanwhile.
    pub force: bool,
    /// Join the task's edit of a text with the user's where they are of different lines.
    pub merge: bool,
    /// Which changes are applied.
    pub selection: Selection,
}

/// What was applied, or with `dry_run` would be; paths with unusual bytes escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AppliedPaths {
    /// The tree.
    pub tree: PathBuf,
    /// Written or deleted.
    pub changed: Vec<String>,
    /// How many were that way already.
    pub already: usize,
    /// Left out, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
    /// With both the user's and the task's edits.
    pub merged: Vec<String>,
    /// In the way, or overwritten with `force`, each with how it differs.
    pub conflicts: Vec<(String, &'static str)>,
    /// How many changes were not selected.
    pub not_selected: usize,
}

/// Makes an ended task's changes in `into`, or in the folder or repository that the workspace came from. All of them or none.
pub fn apply(store: &Store, id: &str, into: Option<&Path>, options: &ApplyOptions) -> Result<AppliedPaths> {
    let tree = match into {
        Some(path) => path.to_owned(),
        None => origin(store, id)?,
    };
    let pinned = pin_now("folder", &tree)?;
    let target = open_tree(&pinned.path(&tree)).hint(|| "name a folder that exists: --into DIR")?;
    // Where a folder is named, it is that one by its name.
    let folder = if into.is_none() { store.record(id)?.folder } else { None };
    if folder.is_some_and(|folder| !folder.is_of(&target)) && !changes::tree::is_off("changes-folder") {
        return Err(Error::new(
            Kind::State,
            format!("`{}` is another folder than the one that the task worked on", tree.display()),
        )
        .doing(format!("apply the changes of `{id}`"))
        .hint("name it if it is the right one: --into DIR"));
    }
    let (mut changes, found) = load(store, id)?;
    let not_selected = options.selection.apply(&mut changes)?;
    let Some((directory, _)) = found else { return Ok(AppliedPaths { tree, ..AppliedPaths::default() }) };
    let options =
        changes::Options { include_git: false, force: options.force, merge: options.merge, dry_run: options.dry_run };
    let applied = changes::apply(&changes, &directory, target.as_fd(), options)?;
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

/// The user's tree that the workspace was made from.
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

/// The record of an ended task's changes; where it is and what it was made from, if anything changed.
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
