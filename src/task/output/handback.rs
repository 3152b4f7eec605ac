//! Collects a workspace's changes when every process is gone, and counts them for the receipt.

use super::changes::path::json_length;
use super::changes::{self, Change, Changes, Form};
use super::worktree;
use crate::error::{Context, Kind, Result};
use crate::files;
use crate::sandbox;
use crate::task::redact::Redactor;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// The changes of a workspace in the receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// The directory of the record and the copies; `None` without changes.
    pub path: Option<PathBuf>,
    /// `None` for an empty workspace.
    pub base: Option<PathBuf>,
    /// New files, links and folders outside of `.git`.
    pub added: usize,
    /// Modified ones.
    pub modified: usize,
    /// Deleted ones.
    pub deleted: usize,
    /// All changes in `.git`.
    pub in_git: usize,
    /// Skipped paths: devices, sockets, files over the limits.
    pub skipped: u64,
    /// The first skipped paths, with the reason.
    #[serde(default)]
    pub not_taken: Vec<NotTaken>,
    /// Paths that git ignores in the base; a folder counts as one.
    #[serde(default)]
    pub ignored: u64,
    /// The first ignored paths.
    #[serde(default)]
    pub first_ignored: Vec<String>,
    /// Whether the whole workspace was read.
    pub complete: bool,
    /// New or changed files that a tool could run later on a host without an explicit start.
    pub runnable: Vec<RunnableFile>,
    /// The first changed files with a secret's value, which copies and patches contain too.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// The first changed files that were not searched for secrets: the time was over.
    #[serde(default)]
    pub unsearched: Vec<String>,
    /// Whether the user may have written or removed a changed file while the agent ran.
    #[serde(skip)]
    pub(crate) lacks_bases: bool,
}

impl ChangeSet {
    pub(crate) fn is_nothing(&self) -> bool {
        self.path.is_none() && self.skipped == 0 && self.ignored == 0 && self.complete
    }
}

/// A path of the workspace that was not collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// A file to review before it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnableFile {
    /// In the workspace, with unusual bytes escaped.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// In a receipt; the record has the rest.
pub(crate) const LISTED: usize = 200;
/// Bytes of an agent's paths in one list.
pub(crate) const LISTED_BYTES: u64 = 1 << 20;

fn listed<Item>(items: impl Iterator<Item = Item>, path: impl Fn(&Item) -> &str) -> Vec<Item> {
    let mut left = LISTED_BYTES;
    let fits = |item: &Item| left.checked_sub(json_length(path(item))).map(|rest| left = rest).is_some();
    items.take(LISTED).take_while(fits).collect()
}

/// On the scratch file system of a sandbox without processes. `None` if it ended before its workspace was made.
pub(crate) fn upper(scratch: BorrowedFd<'_>, base: Option<&Path>) -> Result<Option<(OwnedFd, Form)>> {
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

/// The layer that hid files, on the scratch file system of an ended sandbox.
pub(crate) fn mask(scratch: BorrowedFd<'_>) -> Option<OwnedFd> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(scratch, Path::new(sandbox::CHANGES).join("mask"), DIRECTORY, Mode::empty(), beneath).ok()
}

pub(crate) fn collect(
    upper: Option<&(OwnedFd, Form)>,
    base: Option<&Path>,
    (into, result, hidden): (&Path, &str, Option<changes::HiddenNames<'_>>),
    started: SystemTime,
    limits: &changes::Limits,
) -> Result<ChangeSet> {
    let Some((upper, form)) = upper else { return Ok(ChangeSet { complete: true, ..ChangeSet::default() }) };
    let lower = base.map(open_tree).transpose()?;
    let (above, worktree) = lower.as_ref().zip(base).map_or((None, None), repository_of);
    let base = base.map(Path::to_owned);
    if !files::has_entries(upper).failing(Kind::Workspace, || "list the workspace's changes")? {
        return Ok(ChangeSet { base, complete: true, ..ChangeSet::default() });
    }
    let workspace = changes::Workspace {
        upper: upper.as_fd(),
        lower: lower.as_ref().map(AsFd::as_fd),
        above: above.as_ref(),
        worktree: worktree.as_ref(),
        hidden,
        form: *form,
        started: Some(started),
    };
    let mut changes = changes::collect(workspace, into, limits)?;
    let path = (!changes.entries.is_empty()).then(|| into.to_owned());
    leave_result_out(&mut changes, result);
    Ok(summary(&changes, path, base))
}

/// Removes the result and the folders made for it: the receipt contains it, and it is not part of the work.
pub(crate) fn leave_result_out(changes: &mut Changes, result: &str) {
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
            return; // the folder has other files too
        }
        changes.entries.remove(at);
        let Some(end) = gone.iter().rposition(|&byte| byte == b'/') else { return };
        gone = &gone[..end];
    }
}

/// The paths of a kind outside of `.git`.
pub(crate) fn count(changes: &Changes, kind: Change) -> usize {
    changes.entries.iter().filter(|each| !each.path.is_in_git() && each.change() == kind).count()
}

fn summary(changes: &Changes, path: Option<PathBuf>, base: Option<PathBuf>) -> ChangeSet {
    ChangeSet {
        path,
        base,
        added: count(changes, Change::Added),
        modified: count(changes, Change::Modified),
        deleted: count(changes, Change::Deleted),
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
        unsearched: Vec::new(),
        lacks_bases: changes.entries.iter().any(changes::lacks_base),
    }
}

fn not_taken(skipped: &changes::Skipped) -> NotTaken {
    let cause = skipped.cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
    NotTaken { path: changes::escape(&skipped.path.0), why: format!("{}{cause}", skipped.reason.words()) }
}

/// git never runs its history. Every commit writes many of these paths: the list would be unreadable.
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

pub(crate) fn open_tree(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, DIRECTORY, Mode::empty()).failing(Kind::Workspace, || format!("open `{}`", path.display()))
}

/// The repository above a folder below its top; and the worktree that the folder is, or that is above it.
pub(crate) fn repository_of((folder, path): (&OwnedFd, &Path)) -> (Option<changes::Above>, Option<changes::Worktree>) {
    let Ok(real) = std::fs::canonicalize(path) else { return (None, None) };
    let above = worktree::above(folder.as_fd(), &real);
    let levels = above.as_ref().map_or(0, |above| above.folders.len());
    let worktree = real.ancestors().nth(levels).and_then(worktree_of);
    (above, worktree)
}

/// `folder` is a real path.
pub(crate) fn worktree_of(folder: &Path) -> Option<changes::Worktree> {
    let (own, repository) = worktree::directories(folder)?;
    Some(changes::Worktree { own: open_tree(&own).ok()?, repository: open_tree(&repository).ok()? })
}

/// A reader for a search until this moment. Then its reads fail with [`ErrorKind::TimedOut`].
pub(crate) struct Until<In>(pub(crate) In, pub(crate) Instant);

impl<In: Read> Read for Until<In> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if Instant::now() < self.1 { self.0.read(buffer) } else { Err(ErrorKind::TimedOut.into()) }
    }
}

/// Changed files with a value of this redactor, and those that were not searched until `end`, with redacted names.
pub(crate) fn with_secrets(
    changes: &Changes,
    directory: &Path,
    redactor: &Redactor,
    end: Instant,
) -> Result<[Vec<String>; 2]> {
    let copies = changes::store::Store::open(directory)?;
    let (mut found, mut unsearched, mut known) = (Vec::new(), Vec::new(), HashMap::new());
    for entry in changes.entries.iter().filter(|entry| matches!(entry.now, Some(changes::Node::File { .. }))) {
        if found.len() == LISTED || unsearched.len() == LISTED {
            break;
        }
        let name = || redactor.text(&entry.path.to_string());
        if Instant::now() >= end {
            unsearched.push(name());
            continue;
        }
        let failed = |cause| files::failed(cause, format!("look through `{}`", entry.path));
        let file = copies.file(&entry.path).map_err(|errno| failed(errno.into()))?;
        let status = file.metadata().map_err(failed)?;
        // The names of a hard link are one file: read it once.
        let has_value = match known.entry((status.dev(), status.ino())) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => match redactor.has_value(Until(file, end)) {
                Err(cause) if cause.kind() == ErrorKind::TimedOut => {
                    unsearched.push(name());
                    continue;
                }
                other => *new.insert(other.map_err(failed)?),
            },
        };
        if has_value {
            found.push(name());
        }
    }
    Ok([found, unsearched].map(|all| listed(all.into_iter(), |path| path)))
}

pub(crate) fn forget(changes: &Path) -> Result<()> {
    let removed = files::remove_directory(changes);
    removed.map(drop).map_err(|cause| files::failed(cause, "remove what was collected".to_owned()))
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
    fn files_are_searched_until_the_time_is_over_and_then_listed() {
        use std::time::Duration;
        let directory = tempfile::tempdir().unwrap();
        let (upper, into) = (directory.path().join("upper"), directory.path().join("into"));
        std::fs::create_dir(&upper).unwrap();
        std::fs::write(upper.join("dump"), "the value of-a-secret").unwrap();
        std::fs::write(upper.join("other"), "nothing").unwrap();
        let upper = (open_tree(&upper).unwrap(), Form::Plain);
        let limits = changes::Limits::default();
        collect(Some(&upper), None, (&into, "result.json", None), SystemTime::now(), &limits).unwrap();
        let redactor = Redactor::new();
        assert!(redactor.add("TOKEN", b"of-a-secret"));
        let now = Instant::now();
        let record = Changes::load(&into.join("changes.json")).unwrap();
        let search = |end| with_secrets(&record, &into, &redactor, end).unwrap();
        assert_eq!(search(now + Duration::from_secs(60)), [vec!["dump".to_owned()], vec![]]);
        assert_eq!(search(now), [vec![], vec!["dump".to_owned(), "other".to_owned()]]);
        assert!(redactor.has_value(Until(std::io::repeat(b'x'), now + Duration::from_millis(50))).is_err());
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
