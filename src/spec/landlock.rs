//! Landlock rules as data.

use std::path::PathBuf;

/// What may be done below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read, list and execute.
    ReadExecute,
    /// Everything on files and directories, but no device ioctl.
    Write,
    /// Read, write and ioctl of what is there; nothing is made or removed.
    Device,
}

/// One rule: what may be done at and below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// As the container sees it.
    pub path: PathBuf,
    /// What may be done there.
    pub access: Access,
}

/// A set of rules; what no rule allows is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Landlock {
    /// The rules.
    pub rules: Vec<Rule>,
    /// Whether a kernel without Landlock (before 5.13, or switched off) is accepted.
    pub optional: bool,
}
