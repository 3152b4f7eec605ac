//! containerd's mirrors, `HOST/hosts.toml` (containerd's docs/hosts.md).
//!
//! Refuses `skip_verify`. Ignores `header`, with which a file of the machine would add headers to requests.

use super::address::Address;
use super::trust::Trust;
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const LARGEST_FILE: u64 = 1 << 20;
const USUAL: &str = "/etc/containerd/certs.d";

#[derive(Clone, Debug)]
pub(super) struct Server {
    /// `https://HOST/v2`, or below a path.
    pub(super) api: Address,
    pub(super) trust: Trust,
    /// Whether it serves tags, too, and not only digests.
    pub(super) resolves: bool,
}

/// `itself` is the registry, if the file names its address.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    pub(super) mirrors: Vec<Server>,
    pub(super) itself: Option<Server>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    server: Option<String>,
    host: BTreeMap<String, Settings>,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    capabilities: Option<Vec<String>>,
    ca: Option<OneOrMore>,
    client: Option<Client>,
    skip_verify: bool,
    override_path: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(PathBuf),
    More(Vec<PathBuf>),
}

/// A file with certificate and key, several of them, or pairs of files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Client {
    One(PathBuf),
    More(Vec<PathBuf>),
    Pairs(Vec<[PathBuf; 2]>),
}

pub(super) fn find(host: &str, chosen: Option<&Path>) -> Result<Option<Hosts>> {
    let directory = chosen.unwrap_or(Path::new(USUAL));
    // A colon is invalid in file names of some systems: containerd also accepts `HOST_PORT_`.
    let other = host.rsplit_once(':').map(|(name, port)| format!("{name}_{port}_"));
    for name in other.iter().map(String::as_str).chain([host, "_default"]) {
        let path = directory.join(name).join("hosts.toml");
        match files::read_bounded(&path, LARGEST_FILE) {
            Ok(bytes) => {
                return read(&String::from_utf8_lossy(&bytes), path.parent().unwrap_or(directory))
                    .doing(|| format!("read `{}`", path.display()))
                    .map(Some);
            }
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn read(text: &str, directory: &Path) -> Result<Hosts> {
    let file: File = toml::from_str(text).map_err(|cause| Error::new(Kind::Registry, cause.message().to_owned()))?;
    let mut mirrors: Vec<_> = file.host.iter().collect();
    // The order of the file: the parsed tables are sorted by name.
    mirrors.sort_by_key(|(name, _)| text.find(&format!("\"{name}\"")).or_else(|| text.find(&format!("'{name}'"))));
    let can = |settings: &Settings, what: &str| {
        settings.capabilities.as_ref().is_none_or(|all| all.iter().any(|each| each == what))
    };
    let mut hosts = Hosts::default();
    for (name, settings) in mirrors {
        if can(settings, "pull") {
            let mut server = server(name, settings, directory).doing(|| format!("use `{}`", name.escape_debug()))?;
            server.resolves = can(settings, "resolve");
            hosts.mirrors.push(server);
        }
    }
    let itself = file.server.as_deref().map(|name| server(name, &file.settings, directory));
    hosts.itself = itself.transpose()?;
    Ok(hosts)
}

fn server(name: &str, settings: &Settings, directory: &Path) -> Result<Server> {
    if settings.skip_verify {
        return Err(Error::new(Kind::Certificate, "`skip_verify` would disable the check of certificates")
            .hint("take it out, and name the authority that signed the server's certificate: ca = \"FILE\""));
    }
    let url = if name.contains("://") { name.to_owned() } else { format!("https://{name}") };
    let address = Address::parse(&url)?;
    let path = address.path.trim_end_matches('/');
    let api = address.at(&if settings.override_path { path.to_owned() } else { format!("{path}/v2") });
    let mut trust = Trust::default();
    // Paths are relative to the file.
    let at = |path: &PathBuf| directory.join(path);
    match &settings.ca {
        Some(OneOrMore::One(path)) => trust.add_authorities(&at(path))?,
        Some(OneOrMore::More(paths)) => paths.iter().try_for_each(|path| trust.add_authorities(&at(path)))?,
        None => {}
    }
    match &settings.client {
        Some(Client::One(path)) => trust.set_own(&at(path), &at(path))?,
        Some(Client::More(paths)) => {
            if let Some(path) = paths.first() {
                trust.set_own(&at(path), &at(path))?;
            }
        }
        Some(Client::Pairs(pairs)) => {
            if let Some([certificate, key]) = pairs.first() {
                trust.set_own(&at(certificate), &at(key))?;
            }
        }
        None => {}
    }
    Ok(Server { api, trust, resolves: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrors_of(text: &str) -> String {
        match read(text, Path::new("/etc/x")) {
            Ok(hosts) => {
                let show =
                    |server: &Server| format!("{}{}", server.api, if server.resolves { "" } else { " (digests)" });
                hosts.mirrors.iter().chain(&hosts.itself).map(show).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn mirrors_stand_in_the_order_of_the_file() {
        let check = |text, expected: &str| assert_eq!(mirrors_of(text), expected, "{text}");
        check("", "");
        check("server = \"https://registry-1.docker.io\"", "https://registry-1.docker.io/v2");
        check(
            r#"
            server = "https://z.org"
            [host."https://m.org/hub"]
            capabilities = ["pull", "resolve"]
            [host."http://a.org:5000/x/v2"]
            capabilities = ["pull"]
            override_path = true
            [host."https://push.org"]
            capabilities = ["push"]"#,
            "https://m.org/hub/v2 http://a.org:5000/x/v2 (digests) https://z.org/v2",
        );
        let refused = mirrors_of("[host.\"https://m.org\"]\nskip_verify = true");
        assert!(refused.contains("`skip_verify` would disable the check of certificates"), "{refused}");
        assert!(mirrors_of("[host.\"https://m.org\"]\nca = \"/dev/null\"").contains("it contains no certificate"));
        assert!(mirrors_of("[host.\"ftp://m.org\"]").contains("is not an http address"));
    }
}
