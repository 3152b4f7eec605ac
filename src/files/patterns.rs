//! Patterns of gitignore(5), as users give them.

use crate::error::{Error, Kind, Result};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::path::Path;

/// Some patterns; a later one prevails.
#[derive(Debug)]
pub(crate) struct Patterns(Gitignore);

impl Patterns {
    /// Without a pattern.
    #[cfg(test)]
    pub(crate) fn none() -> Patterns {
        Patterns(Gitignore::empty())
    }

    /// The patterns, or the invalid one with the reason.
    pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Patterns, (&'a str, String)> {
        let mut builder = GitignoreBuilder::new("");
        let mut last = "";
        for line in lines {
            last = line;
            builder.add_line(None, line).map_err(|error| (line, error.to_string()))?;
        }
        builder.build().map(Patterns).map_err(|error| (last, error.to_string()))
    }

    /// The patterns of a flag.
    pub(crate) fn of_flag(flag: &str, lines: &[String]) -> Result<Patterns> {
        Patterns::parse(lines.iter().map(String::as_str)).map_err(|(line, why)| {
            Error::new(Kind::Usage, format!("invalid pattern `{}` for `{flag}`: {why}", line.escape_debug()))
                .hint("write it as in a .gitignore file, such as `*.lock` or `/docs/`")
        })
    }

    /// Whether they match this path itself, relative to the top of the tree.
    pub(crate) fn matches(&self, path: &Path, is_directory: bool) -> bool {
        matches!(self.0.matched(path, is_directory), Match::Ignore(_))
    }
}
