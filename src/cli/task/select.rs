//! The paths of a task's changes that `diff`, `export` and `apply` take.

use brig::task::Selection;
use clap::Args;
use std::ffi::OsString;

/// Which changes.
#[derive(Args, Default)]
pub(super) struct Paths {
    /// Leave out what matches this pattern of gitignore(5); may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Only these files and folders of the workspace, or patterns of gitignore(5); one that matches no change is an error
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Paths {
    pub(super) fn selection(&self) -> Selection {
        Selection { paths: self.paths.clone(), exclude: self.exclude.clone() }
    }

    /// Whether all changes are meant.
    pub(super) fn is_all(&self) -> bool {
        self.paths.is_empty() && self.exclude.is_empty()
    }
}

/// What is not selected, in words.
pub(super) fn not_selected(count: usize, verb: &str) -> Option<String> {
    let changes = if count == 1 { "change is" } else { "changes are" };
    (count > 0).then(|| format!("{count} other {changes} not {verb}"))
}
