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

    /// Never leaves TLS.
    pub(super) fn join(&self, location: &str) -> Result<Address> {
        if location.starts_with("//") {
            let scheme = if self.scheme == Scheme::Https { "https:" } else { "http:" };
            return Address::parse(&format!("{scheme}{location}"));
        }
        if location.starts_with('/') {
            return Ok(Address { path: location.to_owned(), ..self.clone() });
        }
        let next = Address::parse(location)?;
        if self.scheme == Scheme::Http || next.scheme == Scheme::Https {
            return Ok(next);
        }
        // A registry behind a TLS proxy may not know that it is reached by https.
        if next.host == self.host {
            return Ok(Address { scheme: Scheme::Https, ..next });
        }
        Err(Error::new(Kind::Registry, format!("it leads from https to `{next}`"))
            .hint("the registry must name https addresses; see its operator"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_https_never_leads_to_http() {
        let rows = [
            ("https://a.org/v2", "/x?y", Some("https://a.org/x?y")),
            ("https://a.org/v2", "//b.org/x", Some("https://b.org/x")),
            ("https://a.org/v2", "http://a.org/x", Some("https://a.org/x")),
            ("https://a.org/v2", "http://A.org:80/x", Some("https://a.org/x")),
            ("https://a.org:5000/v2", "http://a.org:5000/x", Some("https://a.org:5000/x")),
            ("https://a.org/v2", "http://b.org/x", None),
            ("https://a.org/v2", "http://a.org:5000/x", None),
            ("http://a.org/v2", "http://b.org/x", Some("http://b.org/x")),
            ("http://a.org/v2", "https://b.org/x", Some("https://b.org/x")),
        ];
        for (base, location, expected) in rows {
            let joined = Address::parse(base).unwrap().join(location);
            assert_eq!(joined.ok().map(|address| address.to_string()).as_deref(), expected, "{base} {location}");
        }
    }
}
