//! From a record and its copies to the user's tree: everything is checked before anything is written.
//!
//! In: a record that may have been edited, copies, the target as a descriptor. Out: the target changed, or left as it was.
//! Order: check all ([`super::check`]), stage all new content beside the tree's own files, then deletions, directories, files, links
//! ([`super::commit`]). Never here: a link followed, a byte outside the target, a `.git` directory unless asked for by name.

use super::check::{self, Plan};
use super::commit;
use super::merge;
use super::path::TreePath;
use super::record::{Changes, Entry};
use super::store::Store;
use crate::error::{Error, Kind, Result, Step};
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// How many conflicts an error lists one by one.
const LISTED: usize = 20;

/// What may be done to the target beyond the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Also what is in `.git`: its hooks and configuration run commands of the agent's as the user.
    pub(crate) include_git: bool,
    /// Overwrite what the user changed meanwhile, and take an incomplete record.
    pub(crate) force: bool,
    /// Merge the agent's edit of a text with the user's where they are of different lines.
    pub(crate) merge: bool,
    /// Check only: nothing is written, and conflicts are in the answer instead of an error.
    pub(crate) dry_run: bool,
}

/// What was done, or with `dry_run` would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Applied {
    /// The paths that were written or deleted.
    pub(crate) changed: Vec<TreePath>,
    /// How many were as the agent left them already.
    pub(crate) already: usize,
    /// What was left out although it is in the record.
    pub(crate) left_out: Vec<LeftOut>,
    /// What has both the user's and the agent's edits.
    pub(crate) merged: Vec<TreePath>,
    /// What was overwritten with `force`, or with `dry_run` stands in the way.
    pub(crate) conflicts: Vec<Conflict>,
}

/// A change that was not made, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) path: TreePath,
    pub(crate) why: Why,
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is in a `.git` directory.
    Git,
    /// It is a link that leads out of the tree, or may.
    LinkOut,
    /// Its name is the one that applying uses itself.
    OurName,
    /// A directory that still holds something else.
    NotEmpty,
}

/// A path that is not as the agent found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) path: TreePath,
    pub(crate) difference: Difference,
}

/// How a path in the target differs from the recorded base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// It is there, and was not.
    Exists,
    /// It is gone.
    Missing,
    /// Content, mode, target or type are others.
    Changed,
    /// Both changed the same lines of it, or it cannot be merged.
    Overlaps,
    /// It was written while the agent ran.
    EditedMeanwhile,
    /// A directory stands where something else should be written. Never overwritten.
    IsDirectory,
    /// A directory that should go, and holds something that is not in the record. Never removed.
    NotEmpty,
    /// What should hold it is a link, no directory, or not there. Never gone around.
    NoParent,
    /// It is on another mount. Never crossed.
    MountPoint,
}

impl Difference {
    /// In words, after the path.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Difference::Exists => "is there already",
            Difference::Missing => "is gone",
            Difference::Changed => "was changed",
            Difference::Overlaps => "was changed in the same lines, or is no text",
            Difference::EditedMeanwhile => "was edited while the agent ran",
            Difference::IsDirectory => "is a directory now",
            Difference::NotEmpty => "holds something else",
            Difference::NoParent => "has no directory that holds it, or a link in its place",
            Difference::MountPoint => "is on another mount",
        }
    }

    /// Whether `force` overwrites it: a file of the user's yes, a whole directory or something outside the tree never.
    pub(super) fn yields_to_force(self) -> bool {
        use Difference::{
            Changed, EditedMeanwhile, Exists, IsDirectory, Missing, MountPoint, NoParent, NotEmpty, Overlaps,
        };
        match self {
            Exists | Missing | Changed | Overlaps | EditedMeanwhile => true,
            IsDirectory | NotEmpty | NoParent | MountPoint => false,
        }
    }
}

/// Makes the recorded changes in `target`, all or none. `into` is the directory that [`super::collect`] wrote.
pub(crate) fn apply(changes: &Changes, into: &Path, target: BorrowedFd<'_>, options: Options) -> Result<Applied> {
    let step = || format!("apply the changes in `{}`", into.display());
    if !changes.complete && !options.force && !options.dry_run {
        return Err(Error::new(Kind::State, "the record is incomplete: a limit was hit when it was made")
            .doing(step())
            .hint("apply with --force to take the part that is there"));
    }
    let mut plan = check::check(changes, target, options).doing(step)?;
    if options.merge {
        merge::resolve(&mut plan, changes, into, target);
    }
    let in_the_way =
        plan.applied.conflicts.iter().filter(|conflict| !(options.force && conflict.difference.yields_to_force()));
    if !options.dry_run {
        refuse(&in_the_way.collect::<Vec<_>>()).doing(step)?;
        let store = Store::open(into)?;
        commit::commit(&plan, &store, target).doing(step)?;
    }
    Ok(plan.applied)
}

/// One error that names what stands in the way.
fn refuse(conflicts: &[&Conflict]) -> Result<()> {
    if conflicts.is_empty() {
        return Ok(());
    }
    let mut words = String::from("the tree is not as the agent found it: ");
    for (index, conflict) in conflicts.iter().take(LISTED).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(words, "{comma}`{}` {}", conflict.path, conflict.difference.words());
    }
    if conflicts.len() > LISTED {
        let _ = write!(words, ", and {} more", conflicts.len() - LISTED);
    }
    let error = Error::new(Kind::State, words);
    let can_force = conflicts.iter().all(|conflict| conflict.difference.yields_to_force());
    let can_merge = conflicts.iter().any(|conflict| conflict.difference == Difference::Changed);
    let meanwhile = conflicts.iter().find(|conflict| conflict.difference == Difference::EditedMeanwhile);
    Err(if let (Some(conflict), true) = (meanwhile, can_force) {
        error.hint(format!(
            "what it was at the start is not known, so it cannot be merged; known is what git tracks, if the agent ran for some seconds before the \
             edit. Leave it out with `--exclude '/{}'`, or apply to a checkout of what the task began with and merge there: --into DIR --force",
            conflict.path
        ))
    } else if can_force && can_merge {
        error.hint("join both edits with --merge, overwrite with --force, or apply to a copy of the folder: --into DIR")
    } else if can_force {
        error.hint("look at the patch, then overwrite with --force, or apply to a copy of the folder: --into DIR")
    } else {
        error.hint("move these away first")
    })
}

/// The entries with what has to be done, as the commit takes them.
pub(super) type Steps<'a> = Plan<'a>;

/// Whether an entry is left out whatever the target looks like, and whatever is forced.
pub(super) fn left_out(entry: &Entry, options: Options) -> Option<Why> {
    let first = entry.path.names().next().unwrap_or_default();
    if first.eq_ignore_ascii_case(commit::STAGING.as_bytes()) {
        return Some(Why::OurName);
    }
    let git_guard = !options.include_git && !super::tree::is_off("changes-git");
    if git_guard && entry.path.is_in_git() {
        return Some(Why::Git);
    }
    // Whoever overwrites what stands in the way of one file has not asked for the links beside it.
    let link_guard = !super::tree::is_off("changes-links");
    match &entry.now {
        Some(super::Node::Symlink { target }) if link_guard && leads_out(&entry.path, &target.0) => Some(Why::LinkOut),
        _ => None,
    }
}

/// Whether a link at `path` may lead out of the tree. Read from its text alone: `..` after a name counts as out, because the name
/// may be a link itself, and then `..` goes up from wherever that leads.
pub(crate) fn leads_out(path: &TreePath, target: &[u8]) -> bool {
    if target.first() == Some(&b'/') {
        return true;
    }
    let mut room = path.names().count() - 1;
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named || room == 0 => return true,
            b".." => room -= 1,
            _ => named = true,
        }
    }
    false
}
