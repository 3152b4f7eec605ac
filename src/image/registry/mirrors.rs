//! The servers for a reference: mirrors of the caller, then of containers-registries.conf(5), or without a table there
//! of containerd's hosts.toml.

use super::RegistryOptions;
use super::address::{Address, Scheme};
use super::conf::Conf;
use super::hosts::{self, Hosts};
use super::trust::Trust;
use crate::error::{Error, Kind, Result};
use crate::image::Reference;

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) repository: String,
    /// As in credential files.
    pub(super) host: String,
    pub(super) trust: Trust,
    /// Whether it serves tags, too, and not only digests.
    pub(super) resolves: bool,
    /// The registry for which a mirror of several answers (`ns`, containerd's docs/hosts.md).
    pub(super) of: Option<String>,
    /// On this machine, without a setting for or against TLS.
    is_local: bool,
}

/// The registry itself is the last.
pub(super) fn endpoints(reference: &Reference, options: &RegistryOptions) -> Result<Vec<Endpoint>> {
    let conf = Conf::read()?;
    let hosts = hosts::find(reference.host(), options.hosts_dir.as_deref())?;
    let mut all = choose(reference, options, &conf, hosts)?;
    for endpoint in &mut all {
        // A server of hosts.toml has its own certificates.
        if endpoint.of.is_none()
            && let Some(trust) = Trust::find(&endpoint.host, options.cert_dir.as_deref())?
        {
            endpoint.trust = trust;
            // A registry on this machine uses TLS if it has certificates.
            if endpoint.is_local && !options.plain_http {
                endpoint.address.scheme = Scheme::Https;
            }
        }
    }
    Ok(all)
}

fn choose(
    reference: &Reference,
    options: &RegistryOptions,
    conf: &Conf,
    hosts: Option<Hosts>,
) -> Result<Vec<Endpoint>> {
    let name = reference.name();
    let covers = |prefix: &str| name == prefix || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let mut all = Vec::new();
    for (host, mirror) in &options.mirrors {
        if covers(host) {
            all.push(endpoint(mirror, &name[host.len()..], options.plain_http)?);
        }
    }
    let Some((entry, rest)) = conf.find(reference) else {
        let hosts = hosts.unwrap_or_default();
        let named = |server: hosts::Server| Endpoint {
            host: server.api.host.clone(),
            address: server.api,
            repository: reference.repository().to_owned(),
            trust: server.trust,
            resolves: server.resolves,
            of: Some(reference.host().to_owned()),
            is_local: false,
        };
        all.extend(hosts.mirrors.into_iter().map(named));
        all.push(match hosts.itself {
            // Credentials are stored under the public name.
            Some(server) => Endpoint { host: reference.host().to_owned(), ..named(server) },
            None => endpoint(&name, "", options.plain_http)?,
        });
        return Ok(all);
    };
    if entry.blocked {
        return Err(Error::new(Kind::Registry, format!("`{}` is blocked by registries.conf", entry.name())));
    }
    for mirror in entry.mirrors(reference) {
        all.push(endpoint(&mirror.location, &rest, options.plain_http || mirror.insecure)?);
    }
    let (location, rest) = if entry.location.is_empty() { (&name, "") } else { (&entry.location, rest.as_str()) };
    all.push(endpoint(location, rest, options.plain_http || entry.insecure)?);
    Ok(all)
}

/// A registry on this machine is used without TLS, unless a setting demands it.
fn endpoint(location: &str, rest: &str, insecure: bool) -> Result<Endpoint> {
    let (scheme, location) = match (location.strip_prefix("http://"), location.strip_prefix("https://")) {
        (Some(location), _) => (Some(Scheme::Http), location),
        (_, Some(location)) => (Some(Scheme::Https), location),
        _ => (None, location),
    };
    let whole = format!("{location}{rest}");
    let (host, repository) = whole
        .split_once('/')
        .ok_or_else(|| Error::new(Kind::Registry, format!("`{}` names no repository", whole.escape_debug())))?;
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = scheme.is_none() && matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    let scheme = scheme.unwrap_or(if insecure || is_local { Scheme::Http } else { Scheme::Https });
    let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
    let word = if scheme == Scheme::Http { "http" } else { "https" };
    Ok(Endpoint {
        address: Address::parse(&format!("{word}://{server}/v2"))?,
        repository: repository.to_owned(),
        host: host.to_owned(),
        trust: Trust::default(),
        resolves: true,
        of: None,
        is_local,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints_of(reference: &str, mirrors: &[(&str, &str)], file: &str) -> String {
        let mut conf = Conf::default();
        conf.add(file).unwrap();
        let mirrors: Vec<_> = mirrors.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let options = RegistryOptions { mirrors, ..RegistryOptions::default() };
        match choose(&reference.parse().unwrap(), &options, &conf, None) {
            Ok(all) => {
                all.iter().map(|each| format!("{}/{}", each.address, each.repository)).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn mirrors_come_first_and_the_longest_prefix_decides() {
        assert_eq!(endpoints_of("debian", &[], ""), "https://registry-1.docker.io/v2/library/debian");
        assert_eq!(endpoints_of("localhost:5000/a", &[], ""), "http://localhost:5000/v2/a");
        assert_eq!(
            endpoints_of("debian", &[("docker.io", "http://mirror:80/hub")], ""),
            "http://mirror/v2/hub/library/debian https://registry-1.docker.io/v2/library/debian"
        );
        let file = r#"
            unqualified-search-registries = ["docker.io"]
            [[registry]]
            location = "a.org"
            insecure = true
            [[registry]]
            prefix = "a.org/team"
            location = "b.org/copy"
            [[registry.mirror]]
            location = "m.org/x"
            [[registry]]
            location = "bad.org"
            blocked = true"#;
        assert_eq!(endpoints_of("a.org/other/x", &[], file), "http://a.org/v2/other/x");
        assert_eq!(endpoints_of("a.org/team/x", &[], file), "https://m.org/v2/x/x https://b.org/v2/copy/x");
        assert_eq!(endpoints_of("a.org/teams/x", &[], file), "http://a.org/v2/teams/x");
        assert!(endpoints_of("bad.org/x", &[], file).contains("is blocked"));
        assert!(endpoints_of("bad.org:5000/x", &[], file).contains("is blocked"));
        let below = "[[registry]]\nprefix = \"*.bad.org\"\nblocked = true";
        assert!(endpoints_of("reg.bad.org/x", &[("reg.bad.org", "m.org")], below).contains("`*.bad.org` is blocked"));
        let below = "[[registry]]\nprefix = \"*.a.org\"\n[[registry.mirror]]\nlocation = \"m.org/a\"";
        assert_eq!(endpoints_of("x.a.org/y", &[], below), "https://m.org/v2/a/y https://x.a.org/v2/y");
    }

    #[test]
    fn a_mirror_is_for_tags_or_for_digests_as_it_is_told() {
        let pinned = format!("a.org/x@sha256:{}", "ab".repeat(32));
        let check = |own: &str, word: &str, expected: [bool; 2]| {
            let file =
                format!("[[registry]]\nlocation = \"a.org\"\n{own}\n[[registry.mirror]]\nlocation = \"m.org\"\n{word}");
            let asked = ["a.org/x:1", &pinned].map(|reference| endpoints_of(reference, &[], &file).contains("m.org"));
            assert_eq!(asked, expected, "{file}");
        };
        check("", "", [true, true]);
        check("", "pull-from-mirror = \"all\"", [true, true]);
        check("", "pull-from-mirror = \"\"", [true, true]);
        check("", "pull-from-mirror = \"digest-only\"", [false, true]);
        check("", "pull-from-mirror = \"tag-only\"", [true, false]);
        check("mirror-by-digest-only = true", "", [false, true]);
    }
}
