use super::path::TreePath;
use super::record::{Entry, Node};
use crate::host::is_off;

/// The target's directory for prepared files. It is also the lock against a second apply.
pub(super) const STAGING: &str = ".brig-apply";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Apply `.git` too: its hooks and configuration run the agent's commands as the user.
    pub(crate) include_git: bool,
    /// Overwrite the user's edits, and accept an incomplete record.
    pub(crate) force: bool,
    /// Merge edits of different lines.
    pub(crate) merge: bool,
    /// Write nothing, and return conflicts instead of an error.
    pub(crate) dry_run: bool,
    /// Of a file's permissions compare the owner's executable bit only, as git does: a checkout has those of a umask.
    pub(crate) git_modes: bool,
}

/// With `dry_run`, what would be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Applied {
    pub(crate) changed: Vec<TreePath>,
    /// Paths that were as the agent left them already.
    pub(crate) already: usize,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) merged: Vec<TreePath>,
    /// Overwritten by `force`; with `dry_run` all.
    pub(crate) conflicts: Vec<Conflict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) path: TreePath,
    pub(crate) why: LeftOutReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftOutReason {
    Git,
    /// A link that may lead out of the tree.
    LinkOut,
    /// The staging directory's name.
    OurName,
    /// A directory with other files.
    NotEmpty,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) path: TreePath,
    pub(crate) difference: Difference,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// The base did not have it.
    Exists,
    Missing,
    /// Content, mode, target or type differ.
    Changed,
    /// Both edits are in the same lines, or the file cannot be merged.
    Overlaps,
    EditedMeanwhile,
    /// Never overwritten.
    IsDirectory,
    /// A directory to remove has unrecorded files. Never removed.
    NotEmpty,
    /// Its parent is a link, another file, or missing. Never worked around.
    NoParent,
    /// Never crossed.
    MountPoint,
}

impl Difference {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Difference::Exists => "is there already",
            Difference::Missing => "is gone",
            Difference::Changed => "was changed",
            Difference::Overlaps => "was changed in the same lines, or is not text",
            Difference::EditedMeanwhile => "was edited while the agent ran",
            Difference::IsDirectory => "is a directory now",
            Difference::NotEmpty => "holds something else",
            Difference::NoParent => "has no directory that holds it, or a link in its place",
            Difference::MountPoint => "is on another mount",
        }
    }

    /// A user's file yields, but never a directory or a path outside the tree.
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

/// For any target, also with `force`.
pub(super) fn left_out(entry: &Entry, options: Options) -> Option<LeftOutReason> {
    let first = entry.path.names().next().unwrap_or_default();
    if first.eq_ignore_ascii_case(STAGING.as_bytes()) {
        return Some(LeftOutReason::OurName);
    }
    let git_guard = !options.include_git && !is_off("changes-git");
    if git_guard && entry.path.is_in_git() {
        return Some(LeftOutReason::Git);
    }
    // `force` applies to the file in the way, not to the links beside it.
    let link_guard = !is_off("changes-links");
    match &entry.now {
        Some(Node::Symlink { target }) if link_guard && leads_out(&entry.path, &target.0) => {
            Some(LeftOutReason::LinkOut)
        }
        _ => None,
    }
}

/// Whether a link's text may lead out of the tree. `..` after a name counts as out: the name may be a link, and `..`
/// would be relative to its target.
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
