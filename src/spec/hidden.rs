//! The files of a folder that a sandbox does not show, as patterns in the syntax of `.gitignore`.

/// Two lists of patterns. `files::HiddenMatcher` matches them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenFiles {
    /// The values of `--hide`.
    pub flags: Vec<String>,
    /// The lines of the folder's `.brigignore`.
    pub lines: Vec<String>,
}

impl HiddenFiles {
    /// Whether both lists are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.flags.is_empty() && self.lines.is_empty()
    }
}
