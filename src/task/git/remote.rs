//! The location of a repository, parsed from the user's text alone.

use crate::error::{Error, Kind, Result};
use crate::sandbox::Rule;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    Local(PathBuf),
    Far(RemoteHost),
}

/// A repository on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteHost {
    pub url: String,
    pub scheme: Scheme,
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Https,
    /// Only for the machine itself: on a network each hop could read the data.
    Http,
    Ssh,
}

impl Scheme {
    /// As in git's `protocol.<name>.allow`.
    pub fn word(self) -> &'static str {
        match self {
            Scheme::Https => "https",
            Scheme::Http => "http",
            Scheme::Ssh => "ssh",
        }
    }
}

impl Remote {
    pub(crate) fn parse(text: &str) -> Result<Remote> {
        let step = || format!("use the repository `{}`", without_password(text).escape_debug());
        let refuse = |why: &str, hint: &str| Err(Error::new(Kind::Workspace, why.to_owned()).doing(step()).hint(hint));
        if text.chars().any(|letter| letter.is_control() || letter == ' ') && text.contains("://") {
            return refuse("it has a space or a control character", "escape it as %20");
        }
        if let Some((before, _)) = text.split_once("::")
            && !before.contains('/')
        {
            return refuse("helpers of other transports run programs", "give a path, file://, https:// or ssh://");
        }
        let (scheme, rest) = match text.split_once("://") {
            Some(("file", path)) => return Ok(Remote::Local(path.into())),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("ssh", rest)) => (Scheme::Ssh, rest),
            Some((other, _)) => {
                return refuse(
                    &format!("`{}` is not an allowed transport", other.escape_debug()),
                    "give a path, file://, https:// or ssh://",
                );
            }
            None => return Ok(short(text).map_or_else(|| Remote::Local(text.into()), Remote::Far)),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host_and_port) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains(':') || (scheme != Scheme::Ssh && !user.is_empty()) {
            return refuse(
                "a credential in a URL ends up in records and logs",
                "take it out of the URL and give it with --git-credential env:VARIABLE",
            );
        }
        let default = match scheme {
            Scheme::Https => 443,
            Scheme::Http => 80,
            Scheme::Ssh => 22,
        };
        let Some((host, port)) = host_of(host_and_port, default) else {
            return refuse("it has no host, or no port that can be", "give it like https://host/path");
        };
        if path.is_empty() || !is_plain(user) {
            return refuse("it names no repository of that host", "give it like https://host/path");
        }
        if scheme == Scheme::Http && !is_this_machine(&host) {
            return refuse("over plain http any host on the way can read and change the data", "use https://");
        }
        Ok(Remote::Far(RemoteHost { url: text.to_owned(), scheme, host, port }))
    }
}

impl RemoteHost {
    /// `host:port`, as in a URL.
    pub fn place(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The rules of a courier: only this host at this port.
    ///
    /// The gateway refuses a name with an address outside of the public internet (DNS rebinding), but for the user's
    /// `addresses` of this host. An address in the URL is allowed, and so is `localhost`.
    pub fn rules(&self, addresses: &[IpAddr]) -> Result<Vec<Rule>> {
        let one = |address: &IpAddr| match address {
            IpAddr::V4(v4) => format!("{v4}:{}", self.port),
            IpAddr::V6(v6) => format!("[{v6}]:{}", self.port),
        };
        let words: Vec<String> = match self.host.as_str() {
            // /etc/hosts of the sandbox has its address.
            "localhost" => {
                [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16])].iter().map(one).collect()
            }
            _ => {
                // The URL's own address needs no second rule.
                let others = addresses.iter().filter(|each| each.to_string() != self.host);
                std::iter::once(self.place()).chain(others.map(one)).collect()
            }
        };
        words.iter().map(|word| Rule::parse(word)).collect()
    }
}

/// Makes a local path absolute.
pub fn absolute_repository(text: &str) -> String {
    let local = !text.contains("://") && short(text).is_none();
    let absolute = if local { std::path::absolute(text).ok() } else { None };
    absolute.and_then(|path| path.into_os_string().into_string().ok()).unwrap_or_else(|| text.to_owned())
}

/// For messages: without the part before `@`.
fn without_password(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    }
}

/// `user@host:path`, without a slash before the colon.
fn short(text: &str) -> Option<RemoteHost> {
    let (before, path) = text.split_once(':')?;
    let (user, host) = before.rsplit_once('@').unwrap_or(("", before));
    let far = !before.contains('/') && !path.is_empty() && !host.is_empty() && is_plain(user) && is_plain(host);
    far.then(|| RemoteHost { url: text.to_owned(), scheme: Scheme::Ssh, host: host.to_ascii_lowercase(), port: 22 })
}

/// Whether no program takes it for an option, and no shell for code (CVE-2017-1000117).
fn is_plain(word: &str) -> bool {
    !word.starts_with('-') && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

pub(super) fn host_of(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (address, after.strip_prefix(':').map_or(Some(None), |port| Some(Some(port)))?)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(default), |port| port.parse().ok().filter(|&port| port > 0))?;
    let is_host = !host.is_empty() && (text.starts_with('[') || is_plain(host));
    is_host.then(|| (host.to_ascii_lowercase(), port))
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Readable and unique.
pub(super) fn name_of(source: &str) -> String {
    let mut hasher = DefaultHasher::new();
    // As a path, like earlier versions: their checkouts stay usable.
    Path::new(source).hash(&mut hasher);
    let last = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain: String = last.chars().filter(|character| character.is_ascii_alphanumeric()).take(32).collect();
    format!("{plain}-{:016x}", hasher.finish())
}

/// Canonical.
pub(crate) fn local_path(path: &Path) -> Result<PathBuf> {
    let step = || format!("open the repository `{}`", path.display());
    let path = std::fs::canonicalize(path)
        .map_err(|cause| Error::os(Kind::Workspace, cause).doing(step()).hint("name a git repository that exists"))?;
    let bare = path.join("objects").is_dir() && path.join("HEAD").exists();
    if bare || path.join(".git").exists() {
        return Ok(path);
    }
    Err(Error::new(Kind::Workspace, "it is not a git repository")
        .doing(step())
        .hint("name the folder that has `.git` in it; a plain folder goes with --dir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_a_path_or_a_host_that_can_be_named() {
        let far = |text: &str| match Remote::parse(text).unwrap() {
            Remote::Far(far) => (far.scheme.word(), far.host, far.port),
            Remote::Local(path) => ("path", path.display().to_string(), 0),
        };
        let check = |text, scheme, host: &str, port| assert_eq!(far(text), (scheme, host.to_owned(), port), "{text}");
        check("/srv/app", "path", "/srv/app", 0);
        check("file:///srv/app", "path", "/srv/app", 0);
        check("./a:b", "path", "./a:b", 0);
        check("https://GitHub.com/a/b.git", "https", "github.com", 443);
        check("https://host:8443/a", "https", "host", 8443);
        check("http://127.0.0.1:8080/a", "http", "127.0.0.1", 8080);
        check("ssh://git@host:2222/a", "ssh", "host", 2222);
        check("git@github.com:a/b.git", "ssh", "github.com", 22);
        check("https://[::1]:8443/a", "https", "::1", 8443);
    }

    #[test]
    fn a_courier_may_reach_that_host_at_that_port_and_nothing_else() {
        let check = |text: &str, addresses: &[&str], expected: &[&str]| {
            let Remote::Far(far) = Remote::parse(text).unwrap() else { panic!("{text} is far") };
            let addresses: Vec<IpAddr> = addresses.iter().map(|each| each.parse().unwrap()).collect();
            let rules: Vec<String> = far.rules(&addresses).unwrap().iter().map(ToString::to_string).collect();
            assert_eq!(rules, expected, "{text}");
        };
        check("https://github.com/a/b", &[], &["github.com:443"]);
        check("git@github.com:a/b", &[], &["github.com:22"]);
        check(
            "https://git.corp:8443/a",
            &["10.1.2.3", "fd00::1"],
            &["git.corp:8443", "10.1.2.3:8443", "[fd00::1]:8443"],
        );
        check("https://10.1.2.3:8443/a", &[], &["10.1.2.3:8443"]);
        check("https://[fd00::1]/a", &[], &["[fd00::1]:443"]);
        check("http://localhost:8080/a", &[], &["127.0.0.1:8080", "[::1]:8080"]);
        let Remote::Far(far) = Remote::parse("https://198.18.0.1/a").unwrap() else { panic!("far") };
        assert!(far.rules(&[]).is_err(), "what stands for names inside is no host");
    }

    #[test]
    fn what_could_run_a_program_or_tell_a_credential_is_refused() {
        for (text, words) in [
            ("ext::sh -c touch% /tmp/x", "run programs"),
            ("fd::3", "run programs"),
            ("git://host/a", "`git`"),
            ("ssh://-oProxyCommand=x/a", "no host"),
            ("https://me:secret@host/a", "credential in a URL"),
            ("https://token@host/a", "credential in a URL"),
            ("http://example.com/a", "plain http"),
            ("https://host:0/a", "no port"),
            ("https://host", "no repository"),
            ("https:///a", "no host"),
        ] {
            let error = Remote::parse(text).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(!error.to_string().contains("secret") && !error.to_string().contains("token@"), "{error}");
        }
    }
}
