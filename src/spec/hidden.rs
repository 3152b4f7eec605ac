//! Files of a folder that a sandbox does not show, as patterns of `.gitignore`.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenFiles {
    /// From `--hide`.
    pub flags: Vec<String>,
    /// From the folder's `.brigignore`.
    pub lines: Vec<String>,
}

impl HiddenFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.flags.is_empty() && self.lines.is_empty()
    }
}
