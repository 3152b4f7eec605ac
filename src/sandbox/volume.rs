//! The values of `--volume`, `--cache` and `--home`: a volume of the store, its place inside, and the effect of writes.

use crate::error::{Error, Kind, Result, words};
use crate::host::is_off;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

const LONGEST: usize = 64;

/// Where a command fills a volume.
const FILLED_AT: &str = "/volume";

words! {
    /// The effect of the command's writes.
    #[derive(Default)]
    pub enum VolumeAccess {
        /// They change the volume. One task at a time has it so.
        #[default]
        Writable = "rw",
        /// They are refused.
        ReadOnly = "ro",
        /// They go to the sandbox's disk, and end with it.
        Cache = "cache",
        /// They change a copy, which replaces the volume when the command has succeeded.
        Fill = "fill",
    }
}

impl VolumeAccess {
    fn meaning(self) -> &'static str {
        match self {
            VolumeAccess::Writable => "writes stay",
            VolumeAccess::ReadOnly => "read-only",
            VolumeAccess::Cache => "writes end with the task",
            VolumeAccess::Fill => "a new copy",
        }
    }

    /// Whether files of the volume or of its copy change.
    pub(crate) fn writes(self) -> bool {
        match self {
            VolumeAccess::Writable | VolumeAccess::Fill => true,
            VolumeAccess::ReadOnly => false,
            VolumeAccess::Cache => is_off("cache-layer"),
        }
    }
}

/// A volume in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// An absolute path inside.
    pub target: PathBuf,
    /// The effect of writes.
    pub access: VolumeAccess,
}

impl Volume {
    /// Parses `NAME:TARGET`, with `:ro` behind it where `has_modes`.
    pub(crate) fn parse(text: &str, has_modes: bool) -> Result<Volume> {
        let wrong = |why: String| {
            let example = if has_modes { "data:/data` or `data:/data:ro" } else { "npm:/home/agent/.npm" };
            Err(Error::new(Kind::Usage, why).hint(format!("write it like `{example}`")))
        };
        let Some((name, rest)) = text.split_once(':') else {
            return wrong("it needs a name, a colon, and an absolute target".to_owned());
        };
        let (target, access) = match rest.rsplit_once(':') {
            Some((target, "ro")) if has_modes => (target, VolumeAccess::ReadOnly),
            Some((target, "rw")) if has_modes => (target, VolumeAccess::Writable),
            Some((_, word)) => {
                let modes = if has_modes { "the modes are ro and rw" } else { "a cache has none" };
                return wrong(format!("`{}` is not a mode: {modes}", word.escape_debug()));
            }
            None => (rest, if has_modes { VolumeAccess::Writable } else { VolumeAccess::Cache }),
        };
        if !target.starts_with('/') {
            return wrong(format!("the target `{}` is not an absolute path", target.escape_debug()));
        }
        check_volume_name(name)?;
        Ok(Volume { name: name.to_owned(), target: target.into(), access })
    }

    /// For a command that fills it: `NAME`, or `NAME:TARGET`.
    pub(crate) fn filled(text: &str) -> Result<Volume> {
        let text = if text.contains(':') { text.to_owned() } else { format!("{text}:{FILLED_AT}") };
        Ok(Volume { access: VolumeAccess::Fill, ..Volume::parse(&text, false)? })
    }

    /// The description for a person.
    pub fn words(&self) -> String {
        format!("{} at {}, {}", self.name, self.target.display(), self.access.meaning())
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.name, self.target.display(), self.access.word())
    }
}

/// Refuses a name that could be a path.
pub fn check_volume_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && name.len() <= LONGEST && name.bytes().all(is_plain) {
        return Ok(());
    }
    let hint = format!(
        "use at most {LONGEST} letters, digits, `.`, `_` and `-`, with a letter or a digit first; a folder of this machine is shown by --mount"
    );
    Err(Error::new(Kind::Usage, format!("`{}` is not a name of a volume", name.escape_debug())).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_parsed_with_writable_as_the_default() {
        let check = |text: &str, has_modes, expected: Option<(&str, &str, VolumeAccess)>| {
            let parsed = Volume::parse(text, has_modes).ok();
            let expected =
                expected.map(|(name, at, access)| Volume { name: name.to_owned(), target: at.into(), access });
            assert_eq!(parsed, expected, "{text}");
        };
        check("data:/data", true, Some(("data", "/data", VolumeAccess::Writable)));
        check("data:/data:rw", true, Some(("data", "/data", VolumeAccess::Writable)));
        check("a.b-1:/d:ro", true, Some(("a.b-1", "/d", VolumeAccess::ReadOnly)));
        check("npm:/home/agent/.npm", false, Some(("npm", "/home/agent/.npm", VolumeAccess::Cache)));
        for wrong in
            ["", "data", ":/data", "data:", "data:x", "../x:/data", "/src:/data", "a b:/d", "data:/d:cow", "-a:/b"]
        {
            check(wrong, true, None);
        }
        check("npm:/d:ro", false, None);
    }
}
