//! Artifacts: a task's files, copied out of its workspace when every process is gone.
//!
//! Text passes the redactor; a binary file with a secret's value is refused.
//! Never: more bytes than the limit, a destination file overwritten.

mod collect;
mod pattern;

pub(in crate::task) use collect::{Source, collect};

use crate::error::{Context, Error, Kind, Result};
use crate::files::Pinned;
use pattern::Patterns;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Below a task's directory, unless its caller names another one.
pub(crate) const DIRECTORY: &str = "artifacts";

/// The patterns of the artifacts, and the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactOptions {
    /// Paths from the workspace's root, with `*` and `**`.
    pub patterns: Vec<String>,
    /// A new or empty folder; `None` for the task's record.
    pub directory: Option<PathBuf>,
    /// The most bytes of all together; holes count.
    pub bytes: u64,
}

impl Default for ArtifactOptions {
    fn default() -> ArtifactOptions {
        ArtifactOptions { patterns: Vec::new(), directory: None, bytes: 256 << 20 }
    }
}

impl ArtifactOptions {
    /// Runs before brig makes anything.
    pub(crate) fn check(&self, pinned: &Pinned) -> Result<()> {
        let patterns = self.parsed()?;
        let Some(directory) = &self.directory else { return Ok(()) };
        let step = || format!("use `{}` for artifacts", directory.display());
        if patterns.is_empty() {
            return Err(Error::new(Kind::Usage, "no artifact is named")
                .doing(step())
                .hint("name one: --artifact PATH"));
        }
        match std::fs::read_dir(pinned.path(directory)) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(cause).failing(Kind::Usage, step).map_err(|error| error.hint(WHERE)),
            Ok(mut entries) => match entries.next() {
                None => Ok(()),
                Some(_) => Err(Error::new(Kind::Exists, "it is not empty, and nothing there is overwritten")
                    .doing(step())
                    .hint(WHERE)),
            },
        }
    }

    fn parsed(&self) -> Result<Patterns> {
        Patterns::parse(&self.patterns)
    }

    fn place(&self, task: &Path) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| task.join(DIRECTORY))
    }
}

#[cfg(test)]
pub(crate) const MOST_WRITTEN: u64 =
    collect::MOST_PATH_BYTES + collect::MOST_REFUSED_BYTES + 256 * (collect::MOST_FILES + collect::MOST_REFUSED) as u64;

const WHERE: &str = "name a folder that is empty or not there yet";

/// The artifacts in the receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifacts {
    /// `None` without copies.
    pub path: Option<PathBuf>,
    /// Ordered by path.
    pub files: Vec<Artifact>,
    /// Matching files that were not taken.
    pub refused: Vec<RefusedArtifact>,
    /// More refused files, which are not listed.
    pub refused_more: u64,
    /// Patterns without a match.
    pub unmatched: Vec<String>,
}

/// One copied file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Bytes of the copy.
    pub size: u64,
    /// The copy's SHA-256, in hexadecimal.
    pub sha256: String,
    /// Number of redacted places.
    pub redactions: u64,
}

/// One refused file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedArtifact {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// A word of a closed list.
    pub why: RefusedBecause,
}

/// The reason for refusing a matching file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedBecause {
    /// A symbolic link, which is never followed.
    Link,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// It is in `.git`, or is one.
    Git,
    /// The limit on bytes would be exceeded.
    TooLarge,
    /// The limit on files would be exceeded.
    TooMany,
    /// It is too deep in the tree.
    TooDeep,
    /// The time limit was reached: files below and after it were not read.
    OutOfTime,
    /// It cannot be read.
    Unreadable,
    /// Its path contains a secret's value, or its content does and is not text.
    Secret,
}

impl RefusedBecause {
    /// The reason as a message.
    pub fn words(self) -> &'static str {
        match self {
            RefusedBecause::Link => "a symbolic link is never followed",
            RefusedBecause::Fifo => "it is a FIFO",
            RefusedBecause::Socket => "it is a socket",
            RefusedBecause::Device => "it is a device",
            RefusedBecause::Git => "what is in .git never comes out as it is",
            RefusedBecause::TooLarge => "all together would be over the limit on bytes",
            RefusedBecause::TooMany => "there are too many files",
            RefusedBecause::TooDeep => "it is too deep in the tree",
            RefusedBecause::OutOfTime => "the time for reading the workspace was over",
            RefusedBecause::Unreadable => "it cannot be read",
            RefusedBecause::Secret => "its name contains a secret, or its content does and is not text",
        }
    }
}
