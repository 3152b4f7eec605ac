//! Patterns of gitignore(5), as users give them.

use crate::error::{Error, Kind, Result, Step};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::path::Path;

/// A later pattern prevails.
#[derive(Debug)]
pub(crate) struct Patterns(Gitignore);

impl Patterns {
    #[cfg(test)]
    pub(crate) fn none() -> Patterns {
        Patterns(Gitignore::empty())
    }

    /// The error is the invalid line with the reason.
    pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Patterns, (&'a str, String)> {
        let mut builder = GitignoreBuilder::new("");
        let mut last = "";
        for line in lines {
            last = line;
            builder.add_line(None, line).map_err(|error| (line, error.to_string()))?;
        }
        builder.build().map(Patterns).map_err(|error| (last, error.to_string()))
    }

    pub(crate) fn of_flag(flag: &str, lines: &[String]) -> Result<Patterns> {
        Patterns::parse(lines.iter().map(String::as_str)).map_err(|(line, why)| {
            Error::new(Kind::Usage, format!("invalid pattern `{}` for `{flag}`: {why}", line.escape_debug()))
                .hint("write it as in a .gitignore file, such as `*.lock` or `/docs/`")
        })
    }

    /// Relative to the top of the tree. Ignores patterns for parents of `path`.
    pub(crate) fn matches(&self, path: &Path, is_directory: bool) -> bool {
        matches!(self.0.matched(path, is_directory), Match::Ignore(_))
    }
}

/// A `!` of one list has no effect on the other.
#[derive(Debug)]
pub(crate) struct HiddenMatcher([Patterns; 2]);

impl HiddenMatcher {
    /// The values of `--hide` and the lines of `.brigignore`. A skipped invalid pattern would show what it was meant to
    /// hide.
    pub(crate) fn new(flags: &[String], lines: &[String]) -> Result<HiddenMatcher> {
        let list = |patterns: &[String]| {
            Patterns::parse(patterns.iter().map(String::as_str)).map_err(|(pattern, cause)| {
                let number = patterns.iter().position(|each| each == pattern).unwrap_or_default() + 1;
                Error::new(Kind::Usage, format!("pattern {number} (`{}`): {cause}", pattern.escape_debug()))
                    .hint("write it as in .gitignore: `.env`, `*.pem`, `/secrets/`")
            })
        };
        let flags = list(flags).doing(|| "read the patterns of `--hide`")?;
        let lines = list(lines).doing(|| "read the patterns of `.brigignore`")?;
        Ok(HiddenMatcher([flags, lines]))
    }

    /// Relative to the folder. A caller does not ask about paths below a hidden one.
    pub(crate) fn hides(&self, path: &Path, is_directory: bool) -> bool {
        self.0.iter().any(|list| list.matches(path, is_directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_hidden_by_either_list_and_shown_by_none_of_the_other() {
        let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let flags = text(&["*.pem", "/only-top", "!kept.pem"]);
        let lines = text(&["# comment", "", "secrets/", "!secret.pem", "a/**/b"]);
        let matcher = HiddenMatcher::new(&flags, &lines).unwrap();
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
        let error = HiddenMatcher::new(&[], &text(&["ok", "[z-a]"])).unwrap_err();
        assert!(error.to_string().contains("`.brigignore`: pattern 2 (`[z-a]`)"), "{error}");
    }
}
