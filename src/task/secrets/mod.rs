//! Secrets of a task: where their values come from, how the command gets them, and how they change or go while it runs.
//!
//! In: names and sources, from the command line or a profile. Out: files below `/run/secrets` or variables of the command, and what the
//! redactor looks for. A value is read once before anything is made, and lives in memory only.
//! Never: a value in an argument, a record, an event, a receipt, a log or a file of the host.

mod held;
mod source;

pub(super) use held::Held;
pub use held::{SecretUse, revoke};
pub use source::Source;

use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// How the command gets a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exposure {
    /// A file of mode 0400 in a memory file system at `/run/secrets`; it can be taken back.
    File,
    /// A variable of its environment, for good.
    #[serde(rename = "env")]
    Environment,
}

/// One secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// The file's or the variable's name.
    pub name: String,
    /// Where the value comes from.
    pub source: Source,
    /// How the command gets it.
    pub exposure: Exposure,
}

/// A name that is a file's and a variable's and nothing else.
const LONGEST_NAME: usize = 64;

impl Secret {
    /// A secret, if its name can be one.
    pub fn new(name: &str, source: Source, exposure: Exposure) -> Result<Secret> {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let good = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.starts_with(['.', '-'])
            && name.bytes().all(letters)
            && (exposure == Exposure::File || !name.contains(['.', '-']));
        if good {
            return Ok(Secret { name: name.to_owned(), source, exposure });
        }
        Err(Error::new(Kind::Secret, format!("`{}` is no name for a secret", name.escape_debug()))
            .hint("use letters, digits and `_`, and for a file also `.` and `-`; at most 64"))
    }

    /// From the command line: `NAME=env:VARIABLE`, `NAME=file:PATH`, `NAME=cmd:COMMAND`.
    pub fn parse(text: &str) -> Result<Secret> {
        let (name, source) = text.split_once('=').ok_or_else(|| {
            // What stands there may be the value itself: it is not repeated.
            Error::new(Kind::Secret, "a secret needs a name and a source")
                .hint("give it like --secret TOKEN=env:MY_TOKEN, TOKEN=file:PATH or TOKEN=cmd:'pass show token'")
        })?;
        Secret::new(name, Source::parse(source)?, Exposure::File)
    }

    /// The caller's own variable of that name, passed on as a variable.
    pub fn of_caller(name: &OsString) -> Result<Secret> {
        let text = name.to_str().ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is no name of a variable", name.to_string_lossy().escape_debug()))
                .hint("give it like `-e NAME=VALUE`")
        })?;
        Ok(Secret { name: text.to_owned(), source: Source::Environment(name.clone()), exposure: Exposure::Environment })
    }
}

/// How a profile asks for one: `[secrets.NAME]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    source: String,
    #[serde(default)]
    expose: Option<String>,
}

impl Wish {
    pub(super) fn into_secret(self, name: &str) -> Result<Secret> {
        let exposure = match self.expose.as_deref() {
            None | Some("file") => Exposure::File,
            Some("env") => Exposure::Environment,
            Some("broker") => {
                return Err(Error::new(
                    Kind::Secret,
                    format!("`secrets.{name}`: this version cannot expose a secret by `broker`"),
                )
                .hint("use expose = \"file\": the command can read it then, below /run/secrets"));
            }
            Some(other) => {
                return Err(Error::new(Kind::Secret, format!("`secrets.{name}`: there is no exposure `{other}`"))
                    .hint("use \"file\" or \"env\""));
            }
        };
        Secret::new(name, Source::parse(&self.source)?, exposure)
    }
}

/// Two secrets of one name and exposure would be one file.
pub(super) fn check(secrets: &[Secret]) -> Result<()> {
    for (index, secret) in secrets.iter().enumerate() {
        if secrets[..index].iter().any(|other| other.name == secret.name && other.exposure == secret.exposure) {
            return Err(Error::new(Kind::Secret, format!("there are two secrets `{}`", secret.name))
                .hint("give each a name of its own"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_a_name_and_a_source() {
        let secret = Secret::parse("TOKEN=file:/x=y").unwrap();
        assert_eq!((secret.name.as_str(), secret.source), ("TOKEN", Source::File("/x=y".into())));
        for (text, words) in [
            ("hunter2-hunter2", "a name and a source"),
            ("TOKEN=hunter2-hunter2", "no source"),
            ("TOKEN=http:x", "no source"),
            ("=env:X", "no name"),
            ("../x=env:X", "no name"),
            (".x=env:X", "no name"),
        ] {
            let error = Secret::parse(text).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(
                !error.to_string().contains("hunter2"),
                "a value that was given by mistake is not repeated: {error}"
            );
            assert!(error.advice().is_some());
        }
    }

    #[test]
    fn the_broker_is_refused_by_name_until_there_is_one() {
        let wish = |expose: &str| Wish { source: "env:X".into(), expose: Some(expose.into()) }.into_secret("T");
        assert!(wish("broker").unwrap_err().to_string().contains("`broker`"));
        assert!(wish("other").unwrap_err().to_string().contains("no exposure `other`"));
        assert_eq!(wish("env").unwrap().exposure, Exposure::Environment);
    }

    #[test]
    fn two_of_one_name_are_refused() {
        let one = Secret::parse("A=env:X").unwrap();
        assert!(check(&[one.clone(), one.clone()]).is_err());
        let other = Secret { exposure: Exposure::Environment, ..one.clone() };
        assert!(check(&[one, other]).is_ok());
    }
}
