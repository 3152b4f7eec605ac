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
    let related = address.scheme == Scheme::Https && are_related(&address.host, &registry.host);
    if same || related || allowed.iter().any(|host| host.eq_ignore_ascii_case(&address.host)) {
        return Ok(address);
    }
    refused("which is another host")
}

/// Second labels below which countries register names.
const REGISTRIES: [&str; 10] = ["ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"];
/// Domains whose names belong to different customers.
const SHARED: [&str; 26] = [
    "amazonaws.com",
    "appspot.com",
    "azurecr.io",
    "azurecr.cn",
    "azurewebsites.net",
    "cloudapp.net",
    "cloudfront.net",
    "ddns.net",
    "duckdns.org",
    "fly.dev",
    "github.dev",
    "github.io",
    "gitlab.io",
    "googleusercontent.com",
    "herokuapp.com",
    "netlify.app",
    "ngrok.app",
    "ngrok.io",
    "nip.io",
    "onrender.com",
    "pages.dev",
    "run.app",
    "sslip.io",
    "vercel.app",
    "windows.net",
    "workers.dev",
];

/// Whether both names belong to one domain, such as `docker.io`. A numeric address has none.
fn are_related(one: &str, other: &str) -> bool {
    let name = |host: &str| {
        let name = host.split(':').next()?.to_ascii_lowercase();
        (!host.starts_with('[') && name.parse::<std::net::IpAddr>().is_err()).then_some(name)
    };
    let (Some(one), Some(other)) = (name(one), name(other)) else { return false };
    let common = one.rsplit('.').zip(other.rsplit('.')).take_while(|(one, other)| one == other).count();
    let mut labels = one.rsplit('.');
    let (top, second) = (labels.next().unwrap_or_default(), labels.next().unwrap_or_default());
    let least = if top.len() == 2 && REGISTRIES.contains(&second) { 3 } else { 2 };
    one == other || common >= least && !SHARED.contains(&format!("{second}.{top}").as_str())
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
        for (registry, realm, expected) in [
            ("registry.gitlab.com", "gitlab.com", true),
            ("registry.example.co.uk", "auth.example.co.uk", true),
            ("registry.example.co.uk", "evil.co.uk", false),
            ("victim.azurecr.io", "victim.azurecr.io", true),
            ("victim.azurecr.io", "evil.azurecr.io", false),
            ("1.dkr.ecr.eu-west-1.amazonaws.com", "ec2-1-2-3-4.compute.amazonaws.com", false),
            ("registry.example.com", "evil.com", false),
        ] {
            let registry = Address::parse(&format!("https://{registry}")).unwrap();
            let found = check_realm(&format!("https://{realm}/token"), &registry, &[]);
            assert_eq!(found.is_ok(), expected, "{realm}");
        }
        let local = Address::parse("http://127.0.0.1:5000").unwrap();
        assert!(check_realm("http://127.0.0.1:5000/token", &local, &[]).is_ok());
        assert!(check_realm("http://127.0.0.1:6000/token", &local, &[]).is_err());
    }
}
