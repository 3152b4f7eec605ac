//! The value of `--mount`: a path of the host, its place inside, and the effect of writes.

use crate::error::{Error, Kind, Result, words};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

words! {
    /// The effect of the command's writes.
    #[derive(Default)]
    pub enum MountMode {
        /// They are refused.
        #[default]
        ReadOnly = "ro",
        /// They go to the sandbox's disk, and end with it.
        CopyOnWrite = "cow",
        /// They change the host's files.
        Writable = "rw",
    }
}

impl MountMode {
    fn meaning(self) -> &'static str {
        match self {
            MountMode::ReadOnly => "read-only",
            MountMode::CopyOnWrite => "copy-on-write",
            MountMode::Writable => "WRITES TO THE HOST",
        }
    }
}

/// A file or folder of the host in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// An absolute path of the host.
    pub source: PathBuf,
    /// An absolute path inside.
    pub target: PathBuf,
    /// The effect of writes.
    pub mode: MountMode,
}

impl Mount {
    /// The description for a person.
    pub fn words(&self) -> String {
        format!("{} at {}, {}", self.source.display(), self.target.display(), self.mode.meaning())
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.source.display(), self.target.display(), self.mode.word())
    }
}

impl FromStr for Mount {
    type Err = Error;

    /// Parses `SOURCE:TARGET[:ro|cow|rw]`. The source may contain colons, but not `:/`.
    fn from_str(text: &str) -> Result<Mount> {
        let named = MountMode::ALL.iter().copied().find_map(|mode| {
            let rest = text.strip_suffix(mode.word())?.strip_suffix(':')?;
            Some((rest, mode))
        });
        let (paths, mode) = named.unwrap_or((text, MountMode::default()));
        let wrong = |why: String| {
            Err(Error::new(Kind::Usage, why)
                .hint("write it like `/opt/data:/data`, `./fixtures:/fixtures:cow` or `/srv/out:/out:rw`"))
        };
        let Some(at) = paths.rfind(":/") else {
            return wrong("it needs a source, a colon, and an absolute target".to_owned());
        };
        let (source, target) = (&paths[..at], &paths[at + 1..]);
        if source.is_empty() {
            return wrong("it has no source".to_owned());
        }
        if let Some((_, word)) = target.rsplit_once(':').filter(|_| named.is_none()) {
            return wrong(format!("`{}` is not a mode: the modes are ro, cow and rw", word.escape_debug()));
        }
        Ok(Mount { source: source.into(), target: target.into(), mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed_with_read_only_as_the_default() {
        for (text, source, target, mode) in [
            ("/a:/b", "/a", "/b", MountMode::ReadOnly),
            ("/a:/b:ro", "/a", "/b", MountMode::ReadOnly),
            ("a/x:/b/c:cow", "a/x", "/b/c", MountMode::CopyOnWrite),
            ("/a:b:/c:rw", "/a:b", "/c", MountMode::Writable),
        ] {
            assert_eq!(text.parse::<Mount>().unwrap(), Mount { source: source.into(), target: target.into(), mode });
        }
        for (text, words) in [
            ("", "a source"),
            ("/a", "a source"),
            ("/a:b", "a source"),
            (":/b", "no source"),
            ("/a:/b:wr", "`wr` is not a mode"),
            ("/a:/b:RW", "`RW` is not a mode"),
            ("/a:/b:", "`` is not a mode"),
        ] {
            let error = text.parse::<Mount>().unwrap_err();
            assert!(error.to_string().contains(words) && error.kind() == Kind::Usage, "{text}: {error}");
        }
    }
}
