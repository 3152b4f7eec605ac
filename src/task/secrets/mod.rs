//! Secrets of a task: sources, exposure to the command, change and revocation while it runs.
//!
//! A value is read once, before anything is made, and is in memory only. Never: a value in an argument, a record, an
//! event, a receipt, a log or a file of the host.

mod held;
mod login;
mod oauth;
mod source;
mod vault;

pub(super) use held::TaskSecrets;
pub use held::{SecretUse, revoke};
pub use login::LoginFile;
pub(super) use login::expired_for;
pub use source::Source;
pub(super) use vault::open as open_broker;

use crate::error::{Error, Kind, Result};
use crate::files::Pinned;
use crate::sandbox::{Credential, PLACEHOLDER, Wording};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the command gets a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exposure {
    /// A file of mode 0400 in a memory file system at `/run/secrets`; revocable.
    File,
    /// A variable of its environment; not revocable.
    #[serde(rename = "env")]
    Environment,
    /// Not at all: the gateway adds it to requests for its hosts. A variable of its name has a placeholder.
    Broker,
}

/// One secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// The file's or variable's name.
    pub name: String,
    /// The value's source.
    pub source: Source,
    /// How the command gets it.
    pub exposure: Exposure,
    /// For the broker: its hosts.
    pub credentials: Vec<Credential>,
    /// For the broker: its variable's value.
    pub placeholder: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Brokered {
    name: String,
    credentials: Vec<Credential>,
    placeholder: Option<String>,
}

const LONGEST_NAME: usize = 64;

impl Secret {
    /// Fails for an invalid name.
    pub fn new(name: &str, source: Source, exposure: Exposure) -> Result<Secret> {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let good = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.starts_with(['.', '-'])
            && name.bytes().all(letters)
            && (exposure == Exposure::File || !name.contains(['.', '-']));
        if good {
            let (credentials, placeholder) = (Vec::new(), None);
            return Ok(Secret { name: name.to_owned(), source, exposure, credentials, placeholder });
        }
        Err(Error::new(Kind::Secret, format!("`{}` is not a secret name", name.escape_debug()))
            .hint("use letters, digits and `_`, and for a file also `.` and `-`; at most 64"))
    }

    /// Parses `NAME=env:VARIABLE`, `NAME=file:PATH` or `NAME=cmd:COMMAND`.
    pub fn parse(text: &str) -> Result<Secret> {
        let (name, source) = text.split_once('=').ok_or_else(|| {
            // The text may be the value itself: never repeat it.
            Error::new(Kind::Secret, "a secret needs a name and a source")
                .hint("give it like --secret TOKEN=env:MY_TOKEN, TOKEN=file:PATH or TOKEN=cmd:'pass show token'")
        })?;
        let source = Source::parse(source)?;
        if matches!(source, Source::OAuth(_)) {
            return Err(Error::new(Kind::Secret, "a token that is renewed is the broker's")
                .hint("give it in a profile, with expose = \"broker\" and a host"));
        }
        Secret::new(name, source, Exposure::File)
    }

    /// The caller's variable of that name, as a variable.
    pub fn of_caller(name: &OsString) -> Result<Secret> {
        let text = name.to_str().ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is not a variable name", name.to_string_lossy().escape_debug()))
                .hint("give it like `-e NAME=VALUE`")
        })?;
        let (source, exposure) = (Source::Environment(name.clone()), Exposure::Environment);
        Ok(Secret { name: text.to_owned(), source, exposure, credentials: Vec::new(), placeholder: None })
    }

    pub(super) fn brokered(&self) -> Option<Brokered> {
        let (name, credentials) = (self.name.clone(), self.credentials.clone());
        let placeholder = self.placeholder.clone();
        (self.exposure == Exposure::Broker).then_some(Brokered { name, credentials, placeholder })
    }

    /// Keeps the broker's settings: a caller that continues a task gives only the source again.
    pub(super) fn kept_as(self, kept: &[Brokered]) -> Secret {
        match kept.iter().find(|each| each.name == self.name) {
            None => self,
            Some(Brokered { credentials, placeholder, .. }) => Secret {
                exposure: Exposure::Broker,
                credentials: credentials.clone(),
                placeholder: placeholder.clone(),
                ..self
            },
        }
    }

    pub(super) fn placeholder(&self) -> &str {
        self.placeholder.as_deref().unwrap_or(PLACEHOLDER)
    }
}

/// Opens a path of the host; the word names it in errors.
pub(crate) type Pin<'a> = &'a dyn Fn(&str, &Path) -> Result<Pinned>;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Hosts {
    One(String),
    Several(Vec<String>),
}

/// `[secrets.NAME]` of a profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    source: String,
    #[serde(default)]
    expose: Option<String>,
    #[serde(default)]
    host: Option<Hosts>,
    #[serde(default)]
    header: Option<String>,
    #[serde(default)]
    basic: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    ca: Option<PathBuf>,
    #[serde(default)]
    placeholder: Option<String>,
}

impl Wish {
    /// A relative path starts at `folder`; `pin` opens a path of the host if the machine's rules allow it.
    pub(super) fn into_secret(self, name: &str, folder: &Path, pin: Pin) -> Result<Secret> {
        let wrong = |cause: String, hint: &str| {
            Err(Error::new(Kind::Secret, format!("`secrets.{name}`: {cause}")).hint(hint.to_owned()))
        };
        let exposure = match self.expose.as_deref() {
            None if self.host.is_some() => Exposure::Broker,
            None | Some("file") => Exposure::File,
            Some("env") => Exposure::Environment,
            Some("broker") => Exposure::Broker,
            Some(other) => {
                return wrong(format!("unknown exposure `{other}`"), "use \"broker\", \"file\" or \"env\"");
            }
        };
        let source = Source::parse_in(&self.source, Some(folder))?;
        if matches!(source, Source::OAuth(_)) && exposure != Exposure::Broker {
            return wrong("a token that is renewed is the broker's".into(), "add expose = \"broker\" and a host");
        }
        let mut secret = Secret::new(name, source, exposure)?;
        let hosts = match self.host {
            Some(Hosts::One(host)) => vec![host],
            Some(Hosts::Several(hosts)) => hosts,
            None => Vec::new(),
        };
        if exposure != Exposure::Broker {
            let words = [self.header, self.basic, self.placeholder];
            let any = words.iter().any(Option::is_some) || self.ca.is_some();
            if any || !hosts.is_empty() || !self.methods.is_empty() || !self.paths.is_empty() {
                return wrong("hosts, headers and rules are the broker's".into(), "add expose = \"broker\"");
            }
            return Ok(secret);
        }
        if hosts.is_empty() {
            return wrong("the broker must know for which host".into(), "add host = \"api.example.com\"");
        }
        let ca = self.ca.map(|path| folder.join(path));
        let held = match &ca {
            Some(path) => pin("file of certificates", path)?,
            None => Pinned::default(),
        };
        let ca = ca.map(|path| held.path(&path));
        for host in &hosts {
            let words = Wording {
                host,
                header: self.header.as_deref(),
                basic: self.basic.as_deref(),
                methods: &self.methods,
                paths: &self.paths,
                ca: ca.as_deref(),
            };
            secret.credentials.push(Credential::new(name, &words)?);
        }
        secret.placeholder = self.placeholder;
        Ok(secret)
    }
}

/// Refuses two secrets of one name and exposure: they would be one file.
pub(super) fn check(secrets: &[Secret]) -> Result<()> {
    for (index, secret) in secrets.iter().enumerate() {
        let is_variable = |secret: &Secret| secret.exposure != Exposure::File;
        let same = |other: &Secret| other.name == secret.name && is_variable(other) == is_variable(secret);
        if secrets[..index].iter().any(same) {
            return Err(Error::new(Kind::Secret, format!("there are two secrets `{}`", secret.name))
                .hint("give each another name"));
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
            ("TOKEN=hunter2-hunter2", "not a source of a secret"),
            ("TOKEN=http:x", "not a source of a secret"),
            ("TOKEN=oauth:x", "is the broker's"),
            ("=env:X", "not a secret name"),
            ("../x=env:X", "not a secret name"),
            (".x=env:X", "not a secret name"),
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

    fn wish(words: &str) -> Result<Secret> {
        toml::from_str::<Wish>(&format!("source = \"env:X\"\n{words}")).unwrap().into_secret(
            "T",
            Path::new("/"),
            &|_, _| Ok(Pinned::default()),
        )
    }

    #[test]
    fn a_profile_says_how_a_secret_is_exposed_and_for_which_hosts() {
        assert_eq!(wish("").unwrap().exposure, Exposure::File);
        assert_eq!(wish("expose = \"env\"").unwrap().exposure, Exposure::Environment);
        let brokered = wish("host = [\"a.test\", \"b.test:8443\"]\nbasic = \"git\"").unwrap();
        let hosts: Vec<_> =
            brokered.credentials.iter().map(|each| format!("{}:{}", each.host(), each.port())).collect();
        assert_eq!((brokered.exposure, hosts.join(" ").as_str()), (Exposure::Broker, "a.test:443 b.test:8443"));
        for (words, expected) in [
            ("expose = \"broker\"", "for which host"),
            ("expose = \"other\"", "unknown exposure `other`"),
            ("expose = \"file\"\nhost = \"a.test\"", "are the broker's"),
            ("methods = [\"GET\"]", "are the broker's"),
            ("host = \"*.test\"", "one name with one port"),
        ] {
            let error = wish(words).unwrap_err().to_string();
            assert!(error.contains(expected), "{words}: {error}");
        }
    }

    #[test]
    fn two_of_one_name_are_refused() {
        let one = Secret::parse("A=env:X").unwrap();
        assert!(check(&[one.clone(), one.clone()]).is_err());
        let other = Secret { exposure: Exposure::Environment, ..one.clone() };
        assert!(check(&[one, other]).is_ok());
    }
}
