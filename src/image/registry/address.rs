//! The parts of a URL that identify a server. Pure.

use crate::error::{Error, Kind, Result};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    /// With the port, unless it is the scheme's default.
    pub(super) host: String,
    /// Begins with a slash and includes the query.
    pub(super) path: String,
}

impl Address {
    /// Refuses a user before the host, which misleads readers.
    pub(super) fn parse(text: &str) -> Result<Address> {
        let wrong = || Error::new(Kind::Registry, format!("`{}` is not an http address", text.escape_debug()));
        let (scheme, rest) = if let Some(rest) = text.strip_prefix("https://") {
            (Scheme::Https, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (Scheme::Http, rest)
        } else {
            return Err(wrong());
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let odd = |letter: char| letter.is_control() || letter.is_whitespace() || matches!(letter, '@' | '\\');
        if host.is_empty() || host.contains(odd) || path.contains(|letter: char| letter.is_control() || letter == ' ') {
            return Err(wrong());
        }
        let own = if scheme == Scheme::Https { ":443" } else { ":80" };
        let host = host.strip_suffix(own).unwrap_or(host).to_ascii_lowercase();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Address { scheme, host, path })
    }

    pub(super) fn join(&self, location: &str) -> Result<Address> {
        if location.starts_with("//") {
            let scheme = if self.scheme == Scheme::Https { "https:" } else { "http:" };
            return Address::parse(&format!("{scheme}{location}"));
        }
        if location.starts_with('/') {
            return Ok(Address { path: location.to_owned(), ..self.clone() });
        }
        Address::parse(location)
    }

    pub(super) fn at(&self, path: &str) -> Address {
        Address { path: path.to_owned(), ..self.clone() }
    }

    pub(super) fn same_origin(&self, other: &Address) -> bool {
        self.scheme == other.scheme && self.host == other.host
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
        write!(out, "{scheme}://{}{}", self.host, self.path)
    }
}
