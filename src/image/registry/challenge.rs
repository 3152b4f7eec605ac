//! The WWW-Authenticate header of a 401 response. Pure.

use super::address::{Address, Scheme};
use crate::error::{Error, Kind, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
    Basic,
}

/// Prefers a token to a password in every request.
pub(super) fn best(headers: &[&str]) -> Option<Challenge> {
    let all: Vec<Challenge> = headers.iter().flat_map(|header| parse(header)).collect();
    let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

/// `Scheme key="value", key=value, Scheme …`.
fn parse(header: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for item in split(header) {
        let (scheme, rest) = match item.split_once(char::is_whitespace) {
            Some((word, rest)) if !word.contains('=') => (Some(word), rest.trim()),
            None if !item.contains('=') => (Some(item.as_str()), ""),
            _ => (None, item.as_str()),
        };
        if let Some(scheme) = scheme {
            found.push((scheme.to_ascii_lowercase(), Vec::new()));
        }
        if let (Some((_, fields)), Some((key, value))) = (found.last_mut(), rest.split_once('=')) {
            fields.push((key.trim().to_ascii_lowercase(), unquoted(value.trim())));
        }
    }
    let challenge = |(scheme, fields): (String, Vec<(String, String)>)| {
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match scheme.as_str() {
            "bearer" => {
                Some(Challenge::Bearer { realm: field("realm")?, service: field("service"), scope: field("scope") })
            }
            "basic" => Some(Challenge::Basic),
            _ => None,
        }
    };
    found.into_iter().filter_map(challenge).collect()
}

fn split(header: &str) -> Vec<String> {
    let (mut items, mut item, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for letter in header.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                items.push(std::mem::take(&mut item).trim().to_owned());
                continue;
            }
            _ => {}
        }
        item.push(letter);
    }
    items.push(item.trim().to_owned());
    items.retain(|item| !item.is_empty());
    items
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return value.to_owned() };
    let mut escaped = false;
    inner
        .chars()
        .filter(|letter| {
            let keep = *letter != '\\' || escaped;
            escaped = *letter == '\\' && !escaped;
            keep
        })
        .collect()
}

/// The token server gets credentials: only the registry's host, an https server of its domain, or one that the caller
/// allows (T-60).
pub(super) fn check_realm(realm: &str, registry: &Address, allowed: &[String]) -> Result<Address> {
    let refused = |why: &str| {
        Err(Error::new(
            Kind::Registry,
            format!("the registry sends us to `{}` for a token, {why}", realm.escape_debug()),
        )
        .hint("if you trust that host, allow it with --allow-realm HOST"))
    };
    let Ok(address) = Address::parse(realm) else { return refused("which is not an address") };
    if address.scheme == Scheme::Http && registry.scheme == Scheme::Https {
        return refused("which is not https");
    }
    if crate::sys::weaken::is_off("image-realm") {
        return Ok(address);
    }
    let same = address.host == registry.host;
    let related = address.scheme == Scheme::Https
        && domain(&address.host).is_some()
        && domain(&address.host) == domain(&registry.host);
    if same || related || allowed.iter().any(|host| host.eq_ignore_ascii_case(&address.host)) {
        return Ok(address);
    }
    refused("which is another host")
}

/// The last two labels: `docker.io` of `auth.docker.io`. A numeric address has none.
fn domain(host: &str) -> Option<&str> {
    let name = host.split(':').next()?;
    if host.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let mut dots = name.rmatch_indices('.').map(|(at, _)| at);
    let (_, second) = (dots.next()?, dots.next());
    Some(second.map_or(name, |at| &name[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_preferred_and_quotes_are_understood() {
        let bearer = r#"Bearer realm="https://auth.example.com/token",service="a, b",scope="repository:x:pull,push""#;
        let wanted = Challenge::Bearer {
            realm: "https://auth.example.com/token".into(),
            service: Some("a, b".into()),
            scope: Some("repository:x:pull,push".into()),
        };
        assert_eq!(best(&["Basic realm=\"x\"", bearer]), Some(wanted.clone()));
        assert_eq!(best(&[&format!("Basic realm=\"x\", {bearer}")]), Some(wanted));
        assert_eq!(best(&["Basic"]), Some(Challenge::Basic));
        assert_eq!(best(&["Negotiate abc=", ""]), None);
    }

    /// T-60.
    #[test]
    fn a_realm_elsewhere_is_refused() {
        let registry = Address::parse("https://registry-1.docker.io").unwrap();
        let check = |realm: &str| check_realm(realm, &registry, &["login.other.org".into()]).is_ok();
        assert!(check("https://auth.docker.io/token"));
        assert!(check("https://registry-1.docker.io/token"));
        assert!(check("https://login.other.org/token"));
        for realm in [
            "http://auth.docker.io/token",
            "https://evil.org/token",
            "https://169.254.169.254/latest",
            "https://127.0.0.1/x",
            "https://docker.io.evil.org/",
            "file:///etc/passwd",
            "https://user@evil.org/",
            "//auth.docker.io",
        ] {
            assert!(!check(realm), "{realm}");
        }
        let local = Address::parse("http://127.0.0.1:5000").unwrap();
        assert!(check_realm("http://127.0.0.1:5000/token", &local, &[]).is_ok());
        assert!(check_realm("http://127.0.0.1:6000/token", &local, &[]).is_err());
    }
}
