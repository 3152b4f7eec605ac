//! Where a reference is really fetched from: mirrors and insecure registries of containers-registries.conf(5), and of the caller.

use super::address::{Address, Scheme};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::image::Reference;
use serde::Deserialize;
use std::path::PathBuf;

const LARGEST_FILE: u64 = 1 << 20;

/// One place that has a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) repository: String,
    /// The host as credentials know it.
    pub(super) host: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    registry: Vec<Registry>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Registry {
    prefix: Option<String>,
    location: Option<String>,
    insecure: bool,
    blocked: bool,
    mirror: Vec<Mirror>,
    mirror_by_digest_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mirror {
    location: String,
    insecure: bool,
}

/// All places to try, in order: the caller's mirrors, the file's, the registry itself.
pub(super) fn endpoints(
    reference: &Reference,
    mirrors: &[(String, String)],
    plain_http: bool,
) -> Result<Vec<Endpoint>> {
    let file = match read()? {
        Some((path, text)) => toml::from_str::<File>(&text)
            .map_err(|cause| Error::new(Kind::Registry, cause.message().to_owned()))
            .doing(|| format!("read `{}`", path.display()))?,
        None => File::default(),
    };
    choose(reference, mirrors, plain_http, &file)
}

fn choose(reference: &Reference, mirrors: &[(String, String)], plain_http: bool, file: &File) -> Result<Vec<Endpoint>> {
    let name = reference.name();
    let covers = |prefix: &str| name == prefix || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let prefix = |registry: &Registry| registry.prefix.clone().or(registry.location.clone()).unwrap_or_default();
    let entry =
        file.registry.iter().filter(|registry| covers(&prefix(registry))).max_by_key(|registry| prefix(registry).len());
    let mut all = Vec::new();
    for (host, mirror) in mirrors {
        if covers(host) {
            all.push(endpoint(mirror, &name[host.len()..], plain_http)?);
        }
    }
    let Some(entry) = entry else {
        all.push(endpoint(&name, "", plain_http)?);
        return Ok(all);
    };
    if entry.blocked {
        return Err(Error::new(Kind::Registry, format!("`{}` is blocked by registries.conf", prefix(entry))));
    }
    let rest = &name[prefix(entry).len()..];
    if !entry.mirror_by_digest_only || reference.digest().is_some() {
        for mirror in &entry.mirror {
            all.push(endpoint(&mirror.location, rest, plain_http || mirror.insecure)?);
        }
    }
    let location = entry.location.clone().unwrap_or_else(|| prefix(entry));
    all.push(endpoint(&location, rest, plain_http || entry.insecure)?);
    Ok(all)
}

/// `HOST[/PATH]` and the rest of the repository. A registry on this machine is spoken to without TLS.
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
    let local = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    let scheme = scheme.unwrap_or(if insecure || local { Scheme::Http } else { Scheme::Https });
    let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
    let word = if scheme == Scheme::Http { "http" } else { "https" };
    Ok(Endpoint {
        address: Address::parse(&format!("{word}://{server}/"))?,
        repository: repository.to_owned(),
        host: host.to_owned(),
    })
}

fn read() -> Result<Option<(PathBuf, String)>> {
    let chosen = std::env::var_os("CONTAINERS_REGISTRIES_CONF").filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/containers/registries.conf"));
    let paths = match chosen {
        Some(path) => vec![path],
        None => own.into_iter().chain([PathBuf::from("/etc/containers/registries.conf")]).collect(),
    };
    for path in paths {
        match files::read_bounded(&path, LARGEST_FILE) {
            Ok(bytes) => return Ok(Some((path, String::from_utf8_lossy(&bytes).into_owned()))),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(reference: &str, mirrors: &[(&str, &str)], file: &str) -> String {
        let file: File = toml::from_str(file).unwrap();
        let mirrors: Vec<_> = mirrors.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        match choose(&reference.parse().unwrap(), &mirrors, false, &file) {
            Ok(all) => {
                all.iter().map(|each| format!("{}{}", each.address, each.repository)).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn mirrors_come_first_and_the_longest_prefix_decides() {
        assert_eq!(places("debian", &[], ""), "https://registry-1.docker.io/library/debian");
        assert_eq!(places("localhost:5000/a", &[], ""), "http://localhost:5000/a");
        assert_eq!(
            places("debian", &[("docker.io", "http://mirror:80/hub")], ""),
            "http://mirror/hub/library/debian https://registry-1.docker.io/library/debian"
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
        assert_eq!(places("a.org/other/x", &[], file), "http://a.org/other/x");
        assert_eq!(places("a.org/team/x", &[], file), "https://m.org/x/x https://b.org/copy/x");
        assert_eq!(places("a.org/teams/x", &[], file), "http://a.org/teams/x");
        assert!(places("bad.org/x", &[], file).contains("is blocked"));
    }
}
