//! What applying changes may do, what it did, and what it left out.

use super::path::TreePath;
use super::record::{Entry, Node};

/// The directory in the target in which everything is prepared. Its presence is also the lock: two cannot apply at once.
pub(super) const STAGING: &str = ".brig-apply";

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
    pub(crate) why: LeftOutReason,
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftOutReason {
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

/// Whether an entry is left out whatever the target looks like, and whatever is forced.
pub(super) fn left_out(entry: &Entry, options: Options) -> Option<LeftOutReason> {
    let first = entry.path.names().next().unwrap_or_default();
    if first.eq_ignore_ascii_case(STAGING.as_bytes()) {
        return Some(LeftOutReason::OurName);
    }
    let git_guard = !options.include_git && !super::tree::is_off("changes-git");
    if git_guard && entry.path.is_in_git() {
        return Some(LeftOutReason::Git);
    }
    // Whoever overwrites what stands in the way of one file has not asked for the links beside it.
    let link_guard = !super::tree::is_off("changes-links");
    match &entry.now {
        Some(Node::Symlink { target }) if link_guard && leads_out(&entry.path, &target.0) => {
            Some(LeftOutReason::LinkOut)
        }
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
