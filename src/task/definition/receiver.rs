//! Receivers of a task's events.

use crate::error::{Context, Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where events go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receiver {
    /// Appended to a file.
    File(PathBuf),
    /// Written to a stream socket.
    Socket(PathBuf),
    /// Posted as `application/x-ndjson`.
    Http(String),
}

impl Receiver {
    /// `unix:PATH`, `http://…`, `https://…`, else a path.
    pub fn parse(word: &str) -> Result<Receiver> {
        let absolute = |path: &str| std::path::absolute(path).failing(Kind::Usage, || format!("use `{path}`"));
        if let Some(path) = word.strip_prefix("unix:") {
            return absolute(path).map(Receiver::Socket);
        }
        match word.split_once("://") {
            Some(("http" | "https", rest)) if !rest.is_empty() && !rest.contains(char::is_whitespace) => {
                Ok(Receiver::Http(word.to_owned()))
            }
            Some((scheme, _)) => Err(Error::new(Kind::Usage, format!("events cannot go to `{scheme}`"))
                .hint("give a path, unix:PATH, http://… or https://…")),
            None => absolute(word.strip_prefix("file:").unwrap_or(word)).map(Receiver::File),
        }
    }

    /// For records and errors: without what may be secret.
    pub(crate) fn name(&self) -> String {
        match self {
            Receiver::File(path) => path.display().to_string(),
            Receiver::Socket(path) => format!("unix:{}", path.display()),
            Receiver::Http(url) => {
                let plain = url.split(['?', '#']).next().unwrap_or_default();
                match (plain.split_once("://"), plain.rsplit_once('@')) {
                    (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
                    _ => plain.to_owned(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_a_path_a_socket_or_a_url_and_its_name_has_no_secret() {
        assert_eq!(Receiver::parse("/a/b").unwrap(), Receiver::File("/a/b".into()));
        assert_eq!(Receiver::parse("unix:/a").unwrap(), Receiver::Socket("/a".into()));
        assert!(Receiver::parse("ftp://x").is_err() && Receiver::parse("http://").is_err());
        let secret = Receiver::parse("https://user:pass@host/path?token=x").unwrap();
        assert_eq!(secret.name(), "https://host/path");
        assert_eq!(Receiver::parse("http://host/a").unwrap().name(), "http://host/a");
    }
}
