//! What comes out of a task besides its output: the changes of its workspace. Collected when every process is gone, counted in the receipt,
//! shown as a patch, applied to the user's tree only when asked.
//!
//! In: the scratch file system of an ended sandbox. Out: `<task>/changes/` and a [`Handback`] for the receipt; later [`patch`] and [`apply`].
//! Not here: how a hostile tree is read (`changes`).

use super::changes::path::json_length;
use super::changes::{self, Binary, Change, Changes, DiffOptions, Form};
use super::definition::WorkspaceSource;
use super::redact::Redactor;
use super::store::Store;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files;
use crate::sandbox;
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The changes of a workspace, as the receipt has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handback {
    /// Where the record and the copies are; `None` if nothing changed.
    pub path: Option<PathBuf>,
    /// The tree that the workspace was shown from; `None` for an empty workspace.
    pub base: Option<PathBuf>,
    /// Files, links and folders that are new, without those in `.git`.
    pub added: usize,
    /// Those that are not as they were.
    pub modified: usize,
    /// Those that are gone.
    pub deleted: usize,
    /// All that changed in `.git`.
    pub in_git: usize,
    /// What was not taken: devices, sockets, files over the limits.
    pub skipped: u64,
    /// The first of them, with the reason.
    #[serde(default)]
    pub not_taken: Vec<NotTaken>,
    /// How many paths were left out because git ignores them in the base; a folder counts as one.
    #[serde(default)]
    pub ignored: u64,
    /// The first of them.
    #[serde(default)]
    pub first_ignored: Vec<String>,
    /// Whether the whole workspace was looked at.
    pub complete: bool,
    /// New or changed files that could run later on a host without anybody starting them by name.
    pub runnable: Vec<RunnableFile>,
    /// Changed files in which a secret's value stands: copies and patches have it too. The first of them.
    #[serde(default)]
    pub secrets: Vec<String>,
}

impl Handback {
    /// Whether the command has written nothing at all in the workspace.
    pub(super) fn is_nothing(&self) -> bool {
        self.path.is_none() && self.skipped == 0 && self.ignored == 0 && self.complete
    }
}

/// Something in the workspace that did not come out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Why.
    pub why: String,
}

/// A file to look at before it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnableFile {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Why.
    pub why: String,
}

/// The list in a receipt is for reading; the record has the rest.
const LISTED: usize = 200;
/// Bytes of the paths in one, which the agent has chosen.
pub(super) const LISTED_BYTES: u64 = 1 << 20;

/// The first of them, as many as a list has.
fn listed<Item>(items: impl Iterator<Item = Item>, path: impl Fn(&Item) -> &str) -> Vec<Item> {
    let mut left = LISTED_BYTES;
    let fits = |item: &Item| left.checked_sub(json_length(path(item))).map(|rest| left = rest).is_some();
    items.take(LISTED).take_while(fits).collect()
}

/// What a workspace has that its base has not, on the scratch file system of a sandbox whose processes are gone; `None` if that ended before its
/// workspace was made.
pub(super) fn upper(scratch: BorrowedFd<'_>, base: Option<&Path>) -> Result<Option<(OwnedFd, Form)>> {
    let name = if base.is_some() { PathBuf::from(sandbox::CHANGES).join("upper") } else { sandbox::FILES.into() };
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let upper = match openat2(scratch, &name, DIRECTORY, Mode::empty(), beneath) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.failing(Kind::Workspace, || "open the workspace's changes")?,
    };
    let form = match base {
        None => Form::Plain,
        Some(_) if sandbox::guarantee() == sandbox::Guarantee::Full => Form::Trusted,
        Some(_) => Form::User,
    };
    Ok(Some((upper, form)))
}

/// Takes the changes out of it.
pub(super) fn collect(
    upper: Option<&(OwnedFd, Form)>,
    base: Option<&Path>,
    (into, result): (&Path, &str),
    started: SystemTime,
    limits: &changes::Limits,
) -> Result<Handback> {
    let Some((upper, form)) = upper else { return Ok(Handback { complete: true, ..Handback::default() }) };
    let lower = base.map(open_tree).transpose()?;
    let base = base.map(Path::to_owned);
    if is_empty(upper).failing(Kind::Workspace, || "list the workspace's changes")? {
        return Ok(Handback { base, complete: true, ..Handback::default() });
    }
    let workspace = changes::Workspace {
        upper: upper.as_fd(),
        lower: lower.as_ref().map(AsFd::as_fd),
        form: *form,
        started: Some(started),
    };
    let mut changes = changes::collect(workspace, into, limits)?;
    let path = (!changes.entries.is_empty()).then(|| into.to_owned());
    leave_result_out(&mut changes, result);
    Ok(summary(&changes, path, base))
}

/// What the command says of itself is in the receipt; where it has put that, with the folders that it made for it, is no part of its work.
fn leave_result_out(changes: &mut Changes, result: &str) {
    let is_new = |entry: &changes::Entry| entry.change() == Change::Added;
    let mut gone = result.as_bytes();
    loop {
        let Some(at) = changes.entries.iter().position(|entry| entry.path.as_bytes() == gone && is_new(entry)) else {
            return;
        };
        let is_below = |entry: &changes::Entry| {
            entry.path.as_bytes().strip_prefix(gone).is_some_and(|rest| rest.starts_with(b"/"))
        };
        if changes.entries.iter().any(is_below) {
            return; // a folder of other things too
        }
        changes.entries.remove(at);
        let Some(end) = gone.iter().rposition(|&byte| byte == b'/') else { return };
        gone = &gone[..end];
    }
}

fn summary(changes: &Changes, path: Option<PathBuf>, base: Option<PathBuf>) -> Handback {
    let count =
        |change| changes.entries.iter().filter(|each| !each.path.is_in_git() && each.change() == change).count();
    Handback {
        path,
        base,
        added: count(Change::Added),
        modified: count(Change::Modified),
        deleted: count(Change::Deleted),
        in_git: changes.entries.iter().filter(|each| each.path.is_in_git()).count(),
        skipped: changes.skipped.len() as u64 + changes.skipped_more,
        not_taken: listed(changes.skipped.iter().map(not_taken), |each| &each.path),
        ignored: changes.ignored,
        first_ignored: listed(changes.first_ignored.iter().map(ToString::to_string), |path| path),
        complete: changes.complete,
        runnable: listed(
            changes::runnable(changes)
                .into_iter()
                .filter(|each| !is_history(each.path.names()))
                .map(|each| RunnableFile { path: each.path.to_string(), why: each.why.to_owned() }),
            |each| &each.path,
        ),
        secrets: Vec::new(),
    }
}

fn not_taken(skipped: &changes::Skipped) -> NotTaken {
    let cause = skipped.cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
    NotTaken { path: changes::escape(&skipped.path.0), why: format!("{}{cause}", skipped.reason.words()) }
}

/// Whether it is what every commit writes into `.git`, of which git runs nothing. The list for a person would drown in it.
fn is_history<'a>(names: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut inside = names.skip_while(|name| *name != b".git").skip(1);
    match (inside.next(), inside.next()) {
        (Some(b"objects" | b"refs" | b"logs"), Some(_)) => true,
        (Some(name), None) => {
            matches!(name, b"HEAD" | b"ORIG_HEAD" | b"FETCH_HEAD" | b"COMMIT_EDITMSG" | b"index" | b"packed-refs")
        }
        _ => false,
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_tree(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, DIRECTORY, Mode::empty()).failing(Kind::Workspace, || format!("open `{}`", path.display()))
}

/// Opens the tree that a workspace was shown from: a checkout of the store, or a folder of the user's.
fn open_base(store: &Store, base: &Path) -> Result<OwnedFd> {
    if base.starts_with(store.root()) {
        return open_tree(base);
    }
    open_tree(&super::hosted::pin_now("folder", base)?.path(base))
}

fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The changed files in which a value stands that this redactor looks for; of their names, what may be seen.
pub(super) fn with_secrets(directory: &Path, redactor: &Redactor) -> Result<Vec<String>> {
    let changes = Changes::load(&directory.join("changes.json"))?;
    let copies = changes::store::Store::open(directory)?;
    let (mut found, mut known) = (Vec::new(), HashMap::new());
    for entry in changes.entries.iter().filter(|entry| matches!(entry.now, Some(changes::Node::File { .. }))) {
        if found.len() == LISTED {
            break;
        }
        let failed = |cause| files::failed(cause, format!("look through `{}`", entry.path));
        let file = copies.file(&entry.path).map_err(|errno| failed(errno.into()))?;
        let status = file.metadata().map_err(failed)?;
        // The names of a hard link are one file, which is read once.
        let has_value = match known.entry((status.dev(), status.ino())) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(redactor.has_value(file).map_err(failed)?),
        };
        if has_value {
            found.push(redactor.text(&entry.path.to_string()));
        }
    }
    Ok(listed(found.into_iter(), |path| path))
}

/// Removes what was collected.
pub(super) fn forget(changes: &Path) -> Result<()> {
    let removed = files::remove_directory(changes);
    removed.map(drop).map_err(|cause| files::failed(cause, "remove what was collected".to_owned()))
}

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
    /// How many are not in it because they are in `.git`.
    pub in_git: usize,
}

/// How a patch is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchOptions {
    /// Also what is in `.git`: for reading, no `git apply` takes it.
    pub include_git: bool,
    /// Binary files whole, in git's own form, so that `git apply` makes them.
    pub binary: bool,
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
pub fn patch(store: &Store, id: &str, options: PatchOptions, out: &mut dyn Write) -> Result<PatchNotes> {
    let Some((changes, directory, handback)) = load(store, id)? else { return Ok(PatchNotes::default()) };
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
        in_git: diffed.in_git,
    })
}

/// The tree that the changes were made from. `None` if there was none, or if its path names another folder by now.
fn base(store: &Store, id: &str, handback: &Handback) -> Result<Option<OwnedFd>> {
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

/// The paths that an ended task changed.
pub fn changed_paths(store: &Store, id: &str, include_git: bool) -> Result<Vec<ChangedPath>> {
    let Some((changes, ..)) = load(store, id)? else { return Ok(Vec::new()) };
    let runnable = changes::runnable(&changes);
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

/// How changes are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Check and tell; write nothing.
    pub dry_run: bool,
    /// Overwrite what was changed meanwhile.
    pub force: bool,
    /// Join the task's edit of a text with the user's where they are of different lines.
    pub merge: bool,
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
}

/// Makes an ended task's changes in `into`, or in the folder or repository that the workspace came from. All of them or none.
pub fn apply(store: &Store, id: &str, into: Option<&Path>, options: ApplyOptions) -> Result<AppliedPaths> {
    let tree = match into {
        Some(path) => path.to_owned(),
        None => origin(store, id)?,
    };
    let pinned = super::hosted::pin_now("folder", &tree)?;
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
    let Some((changes, directory, _)) = load(store, id)? else {
        return Ok(AppliedPaths { tree, ..AppliedPaths::default() });
    };
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
    })
}

fn left_out(why: changes::Why) -> &'static str {
    match why {
        changes::Why::Git => "it is in `.git`",
        changes::Why::LinkOut => "the link may lead out of the tree",
        changes::Why::OurName => "its name is the one that applying uses itself",
        changes::Why::NotEmpty => "the folder still holds something else",
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
            let super::git::Remote::Local(path) = super::git::Remote::parse(&url)? else {
                return Err(nowhere("the repository is on another machine"));
            };
            let path = super::git::local_path(&path)?;
            if path.join(".git").exists() { Ok(path) } else { Err(nowhere("the repository has no working tree")) }
        }
        WorkspaceSource::Empty => Err(nowhere("the workspace came from nowhere")),
    }
}

/// The record of an ended task's changes; `None` if nothing changed.
fn load(store: &Store, id: &str) -> Result<Option<(Changes, PathBuf, Handback)>> {
    let state = |why: &str, hint: &str| Error::new(Kind::State, why.to_owned()).hint(hint);
    let receipt = store.final_receipt(id)?;
    let handback = receipt.changes.ok_or_else(|| {
        state(&format!("the task `{id}` ended without handing anything back"), "see why: `brig task show ID`")
    })?;
    let Some(directory) = handback.path.clone() else { return Ok(None) };
    let mut changes = Changes::load(&directory.join("changes.json"))?;
    leave_result_out(&mut changes, &store.record(id)?.result.path);
    Ok(Some((changes, directory, handback)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_short_in_lines_and_in_bytes() {
        let check = |length: usize, count: usize, expected: usize| {
            let items = std::iter::repeat_n("\\".repeat(length), count);
            assert_eq!(listed(items, |text| text).len(), expected, "{count} of {length}");
        };
        check(10, 100, 100);
        check(10, 1000, LISTED);
        check(16 << 10, 100, 31); // 32 KiB as JSON, and the quotes
    }

    #[test]
    fn what_a_commit_writes_is_history_and_what_git_runs_is_not() {
        let check = |path: &str, expected| {
            assert_eq!(is_history(path.split('/').map(str::as_bytes)), expected, "{path}");
        };
        for path in [".git/objects/18/4f", ".git/refs/heads/main", "sub/.git/logs/HEAD", ".git/index", ".git/HEAD"] {
            check(path, true);
        }
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            ".git/info/attributes",
            ".git/index/x",
            ".git/modules/m/config",
            ".git",
            "objects/x",
            "HEAD",
            ".GIT/index",
            ".git/objects",
        ] {
            check(path, false);
        }
    }
}
