//! Artifacts: the files that a task was to make, taken out of its workspace when every process is gone.
//!
//! In: the patterns of a definition, and the layer of what the workspace has that its base has not. Out: plain copies with digests, and for each
//! thing that fits a pattern and is not taken the reason. Text passes the redactor; what is no text and has a secret's value in it stays.
//! Never: a link followed, a FIFO, device or socket opened, more bytes than were allowed, a file of the destination overwritten.

mod collect;
mod pattern;

pub(in crate::task) use collect::{Source, collect};

use crate::error::{Context, Error, Kind, Result};
use crate::files::Pinned;
use pattern::Patterns;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Which files come out, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactOptions {
    /// Paths from the workspace's root, with `*` and `**`.
    pub patterns: Vec<String>,
    /// An empty folder, or one that is not there yet; `None` for the task's record.
    pub directory: Option<PathBuf>,
    /// Bytes of all together; a hole counts as what it stands for.
    pub bytes: u64,
}

impl Default for ArtifactOptions {
    fn default() -> ArtifactOptions {
        ArtifactOptions { patterns: Vec::new(), directory: None, bytes: 256 << 20 }
    }
}

impl ArtifactOptions {
    /// Says what is wrong before anything is made.
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

    /// Where the copies go, for a task with this directory.
    fn place(&self, task: &Path) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| task.join("artifacts"))
    }
}

/// The most bytes of a receipt that the artifacts of a task take, whatever it makes.
#[cfg(test)]
pub(crate) const MOST_WRITTEN: u64 =
    collect::MOST_PATH_BYTES + collect::MOST_REFUSED_BYTES + 256 * (collect::MOST_FILES + collect::MOST_REFUSED) as u64;

const WHERE: &str = "name a folder that is empty or not there yet";

/// What came out, as the receipt has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifacts {
    /// The folder of the copies; `None` if there are none.
    pub path: Option<PathBuf>,
    /// The copies, in the order of their paths.
    pub files: Vec<Artifact>,
    /// What fits a pattern and was not taken.
    pub refused: Vec<RefusedArtifact>,
    /// How many more were not taken.
    pub refused_more: u64,
    /// Patterns that nothing fits.
    pub unmatched: Vec<String>,
}

/// One file that came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Bytes of the copy.
    pub size: u64,
    /// The copy's SHA-256, in hexadecimal.
    pub sha256: String,
    /// How often something was hidden in it.
    pub redactions: u64,
}

/// One thing that stayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedArtifact {
    /// Its path in the workspace, with unusual bytes escaped.
    pub path: String,
    /// Why, as a word of a closed list.
    pub why: RefusedBecause,
}

/// Why something that fits a pattern is no artifact.
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
    /// With it, all together would be over the limit on bytes.
    TooLarge,
    /// With it, there would be too many files.
    TooMany,
    /// It is too deep in the tree.
    TooDeep,
    /// The time for reading the workspace was over: what is below it and after it stays.
    OutOfTime,
    /// It cannot be read.
    Unreadable,
    /// A secret's value is in its path, or in it, and it is no text.
    Secret,
}

impl RefusedBecause {
    /// The reason in words.
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
            RefusedBecause::Secret => "a secret is in its name, or in it, and it is no text",
        }
    }
}
