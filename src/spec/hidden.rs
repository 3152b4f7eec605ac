//! The files of a folder that a sandbox does not show, as patterns in the syntax of `.gitignore`.

use crate::error::{Error, Kind, Result, Step};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::path::Path;

/// Two lists of patterns. A path is hidden if one of the lists hides it: a `!` of one list has no effect on the other.
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

    /// Compiles the patterns. An invalid one is an error: skipped, it would show what it was meant to hide.
    pub(crate) fn compile(&self) -> Result<HiddenMatcher> {
        let flags = list(&self.flags).doing(|| "read the patterns of `--hide`")?;
        let lines = list(&self.lines).doing(|| "read the patterns of `.brigignore`")?;
        Ok(HiddenMatcher([flags, lines]))
    }
}

fn list(patterns: &[String]) -> Result<Gitignore> {
    let mut builder = GitignoreBuilder::new("");
    for (number, pattern) in patterns.iter().enumerate() {
        builder.add_line(None, pattern).map_err(|cause| wrong(pattern, number, &cause))?;
    }
    builder.build().map_err(|cause| wrong("", 0, &cause))
}

fn wrong(pattern: &str, number: usize, cause: &ignore::Error) -> Error {
    Error::new(Kind::Usage, format!("pattern {} (`{}`): {cause}", number + 1, pattern.escape_debug()))
        .hint("write it as in .gitignore: `.env`, `*.pem`, `/secrets/`")
}

/// Compiled patterns.
#[derive(Debug)]
pub(crate) struct HiddenMatcher([Gitignore; 2]);

impl HiddenMatcher {
    /// Whether a path, relative to the folder, is hidden by itself. A caller does not ask about paths below a hidden one.
    pub(crate) fn hides(&self, path: &Path, is_directory: bool) -> bool {
        self.0.iter().any(|list| list.matched(path, is_directory).is_ignore())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_hidden_by_either_list_and_shown_by_none_of_the_other() {
        let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let hidden = HiddenFiles {
            flags: text(&["*.pem", "/only-top", "!kept.pem"]),
            lines: text(&["# comment", "", "secrets/", "!secret.pem", "a/**/b"]),
        };
        let matcher = hidden.compile().unwrap();
        for (path, is_directory, expected) in [
            ("x.pem", false, true),
            ("deep/er/x.pem", false, true),
            ("secret.pem", false, true),
            ("kept.pem", false, false),
            ("only-top", false, true),
            ("deep/only-top", false, false),
            ("secrets", true, true),
            ("secrets", false, false),
            ("deep/secrets", true, true),
            ("a/x/y/b", false, true),
            ("other", false, false),
        ] {
            assert_eq!(matcher.hides(Path::new(path), is_directory), expected, "{path} {is_directory}");
        }
        let error = HiddenFiles { lines: text(&["ok", "[z-a]"]), ..HiddenFiles::default() }.compile().unwrap_err();
        assert!(error.to_string().contains("`.brigignore`: pattern 2 (`[z-a]`)"), "{error}");
    }
}
