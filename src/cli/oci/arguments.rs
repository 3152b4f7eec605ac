//! Parses options as callers of runc write them: `--flag value`, `--flag=value`, single dashes before long names
//! (go-runc), `=true` and `=false` after switches, options before and after the container's name.
//!
//! No known crate accepts all of these. A table of the verb's options is enough, and costs nothing on the start path.

use brig::error::{Error, Kind, Result};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// One option of a verb.
#[derive(Clone, Copy)]
pub(super) struct Flag {
    /// The long name.
    pub name: &'static str,
    /// The short name, if any.
    pub short: Option<char>,
    /// Whether a value follows.
    pub takes: Takes,
    /// The help text.
    pub help: &'static str,
}

/// The value of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// A switch without a value.
    Nothing,
    /// A value.
    Value,
}

/// A switch.
pub(super) const fn switch(name: &'static str, short: Option<char>, help: &'static str) -> Flag {
    Flag { name, short, takes: Takes::Nothing, help }
}

/// An option with a value.
pub(super) const fn value(name: &'static str, short: Option<char>, help: &'static str) -> Flag {
    Flag { name, short, takes: Takes::Value, help }
}

/// The parsed command line.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    given: Vec<(&'static str, OsString)>,
    /// The words that are not options.
    pub positional: Vec<OsString>,
    /// The words after the first positional one, where parsing stops there.
    pub rest: Vec<OsString>,
}

/// The end of the options.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Only at `--`.
    Never,
    /// After this many positional words.
    After(usize),
}

/// Parses the words.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>, flags: &[Flag], end: End) -> Result<Arguments> {
    let mut found = Arguments::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let stop = matches!(end, End::After(count) if found.positional.len() >= count);
        if stop {
            found.rest.push(word);
            found.rest.extend(words);
            return Ok(found);
        }
        let text = word.as_bytes();
        if text == b"--" {
            let most = if let End::After(count) = end { count - found.positional.len() } else { usize::MAX };
            found.positional.extend(words.by_ref().take(most));
            found.rest.extend(words);
            return Ok(found);
        }
        if text.len() < 2 || text[0] != b'-' {
            found.positional.push(word);
            continue;
        }
        let name = text.strip_prefix(b"--").unwrap_or(&text[1..]);
        let (name, given) = match name.iter().position(|byte| *byte == b'=') {
            Some(at) => (&name[..at], Some(OsString::from_vec(name[at + 1..].to_vec()))),
            None => (name, None),
        };
        let flag = find(flags, &String::from_utf8_lossy(name)).ok_or_else(|| unknown(&word))?;
        let value = match (flag.takes, given) {
            (Takes::Nothing, None) => "true".into(),
            (Takes::Nothing, Some(value)) if ["true", "false", "1", "0"].iter().any(|each| value == *each) => value,
            (Takes::Nothing, Some(_)) => return Err(usage(format!("invalid boolean value for flag -{}", flag.name))),
            (Takes::Value, Some(value)) => value,
            (Takes::Value, None) => {
                words.next().ok_or_else(|| usage(format!("flag needs an argument: -{}", flag.name)))?
            }
        };
        found.given.push((flag.name, value));
    }
    Ok(found)
}

fn find<'a>(flags: &'a [Flag], name: &str) -> Option<&'a Flag> {
    flags.iter().find(|flag| flag.name == name || flag.short.is_some_and(|short| name.chars().eq([short])))
}

fn unknown(word: &OsString) -> Error {
    let name = word.to_string_lossy();
    usage(format!("flag provided but not defined: -{}", name.trim_start_matches('-').escape_debug()))
}

/// A mistake on the command line.
pub(super) fn usage(words: impl Into<String>) -> Error {
    Error::new(Kind::Usage, words)
}

impl Arguments {
    /// The last value of an option.
    pub(super) fn get(&self, name: &str) -> Option<&OsString> {
        self.given.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The last value as text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        self.get(name).map(|value| text(value, name)).transpose()
    }

    /// Every value of an option, in order.
    pub(super) fn all(&self, name: &str) -> Result<Vec<String>> {
        let given = self.given.iter().filter(|(known, _)| *known == name);
        given.map(|(_, value)| text(value, name)).collect()
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value == "true" || value == "1")
    }

    /// A path, made absolute.
    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        let given = self.get(name).filter(|value| !value.is_empty());
        given
            .map(|value| {
                std::path::absolute(value).map_err(|cause| Error::os(Kind::Usage, cause).doing(format!("use --{name}")))
            })
            .transpose()
    }

    /// A number.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let given = self.text(name)?.filter(|value| !value.is_empty());
        given
            .map(|value| value.parse().map_err(|_| usage(format!("invalid value \"{value}\" for flag -{name}"))))
            .transpose()
    }

    /// The only positional word: the container's name.
    pub(super) fn id(&self) -> Result<&OsString> {
        match self.positional.as_slice() {
            [id] => Ok(id),
            others => Err(usage(format!("requires exactly 1 argument, {} given", others.len()))),
        }
    }
}

/// A word as text.
pub(super) fn text(value: &OsString, name: &str) -> Result<String> {
    value.to_str().map(str::to_owned).ok_or_else(|| usage(format!("the value of --{name} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [Flag; 3] =
        [switch("force", Some('f'), ""), value("bundle", Some('b'), ""), value("env", Some('e'), "")];

    fn read(words: &[&str], end: End) -> Result<Arguments> {
        parse(words.iter().map(OsString::from), &FLAGS, end)
    }

    #[test]
    fn options_are_taken_in_every_spelling_before_and_after_the_name() {
        for words in [
            ["--bundle", "B", "id", "-f"].as_slice(),
            &["id", "--bundle=B", "--force"],
            &["-b", "B", "-force=true", "id"],
            &["-bundle=B", "-f=1", "--", "id"],
        ] {
            let found = read(words, End::Never).unwrap();
            assert_eq!((found.id().unwrap().to_str(), found.is_on("force")), (Some("id"), true), "{words:?}");
            assert_eq!(found.get("bundle").unwrap(), "B");
        }
        assert!(!read(&["--force=false", "id"], End::Never).unwrap().is_on("force"));
    }

    #[test]
    fn what_follows_the_name_is_the_commands_where_parsing_stops_there() {
        let found = read(&["-e", "A=1", "-e", "B=2", "id", "ls", "-l", "--", "-e"], End::After(1)).unwrap();
        assert_eq!(found.rest, ["ls", "-l", "--", "-e"]);
        assert_eq!(found.all("env").unwrap(), ["A=1", "B=2"]);
        let found = read(&["--", "id", "ls", "-l"], End::After(1)).unwrap();
        assert_eq!((found.positional, found.rest), (vec!["id".into()], vec!["ls".into(), "-l".into()]));
    }

    #[test]
    fn mistakes_are_errors() {
        for wrong in [["--moon"].as_slice(), &["--bundle"], &["--force=maybe"], &["-x"]] {
            assert!(read(wrong, End::Never).is_err(), "{wrong:?}");
        }
    }
}
