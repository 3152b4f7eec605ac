//! Locations of submodules and large files: the repository's own host, and those that the user has named.
//!
//! `.gitmodules` is hostile input. Its URLs pass the same checks as the user's ([`Remote::parse`]: no transport that
//! runs programs, no credential, no plain http). They must also stay on the allowed locations.

use super::remote::{Remote, RemoteHost, Scheme, host_of};
use crate::error::{Error, Kind, Result, Step};
use crate::sandbox::Rule;
use std::path::{Path, PathBuf};

/// A location of submodules and large files besides the repository's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// A host. Without a port, its standard ports.
    Host(String, Option<u16>),
    /// A folder of this machine, with the repositories in it.
    Folder(PathBuf),
}

impl Elsewhere {
    /// `host`, `host:port`, or a folder.
    pub fn parse(text: &str) -> Result<Elsewhere> {
        if text.starts_with(['/', '.']) {
            return Ok(Elsewhere::Folder(text.into()));
        }
        let found = if text.contains(['/', '@']) { None } else { host_of(text, NO_PORT) };
        let (host, port) = found.ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is neither a host nor a folder", text.escape_debug()))
                .hint("give it like `github.com`, `git.example.com:8443` or `/srv/repositories`")
        })?;
        Ok(Elsewhere::Host(host, Some(port).filter(|&port| port != NO_PORT)))
    }

    /// `None` for a host.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Elsewhere::Folder(folder) => Some(folder),
            Elsewhere::Host(..) => None,
        }
    }

    fn has(&self, far: &RemoteHost) -> bool {
        match self {
            Elsewhere::Host(host, Some(port)) => *host == far.host && *port == far.port,
            Elsewhere::Host(host, None) => *host == far.host && is_standard(far),
            Elsewhere::Folder(_) => false,
        }
    }
}

/// Not a valid port.
const NO_PORT: u16 = 0;

/// TLS or ssh at its standard port.
fn is_standard(far: &RemoteHost) -> bool {
    matches!((far.scheme, far.port), (Scheme::Https, 443) | (Scheme::Ssh, 22))
}

/// Whether it may receive the repository's credentials.
pub(super) fn is_own(far: &RemoteHost, top: &RemoteHost) -> bool {
    far.host == top.host && ((far.scheme, far.port) == (top.scheme, top.port) || is_standard(far))
}

/// For a courier that fetches large files: the named hosts, and for an ssh remote its host over TLS.
pub(super) fn of_lfs(far: &RemoteHost, also: &[Elsewhere]) -> Result<Vec<Rule>> {
    let own = (far.scheme == Scheme::Ssh).then_some((far.host.as_str(), 443));
    let named = also.iter().filter_map(|each| match each {
        Elsewhere::Host(host, port) => Some((host.as_str(), port.unwrap_or(443))),
        Elsewhere::Folder(_) => None,
    });
    let words = own.into_iter().chain(named).map(|(host, port)| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    });
    words.map(|word| Rule::parse(&word)).collect()
}

/// See git-lfs, docs/api/server-discovery.md. The repository's `.lfsconfig` has no effect.
pub(super) fn lfs_url(far: &RemoteHost) -> String {
    if far.scheme == Scheme::Ssh {
        return far.url.clone();
    }
    let url = far.url.trim_end_matches('/');
    let suffix = if url.ends_with(".git") { "" } else { ".git" };
    format!("{url}{suffix}/info/lfs")
}

/// `top` is the user's repository, `parent` the one whose `.gitmodules` has `url`. A path is canonical.
pub(super) fn submodule(top: &Remote, parent: &Remote, also: &[Elsewhere], url: &str) -> Result<Remote> {
    let step = || format!("use the URL `{}`", url.chars().take(200).flat_map(char::escape_debug).collect::<String>());
    let wrong = |why: &str| Err(Error::new(Kind::Workspace, why.to_owned()).doing(step()).hint(LEAVE));
    if url.is_empty() || url.starts_with('-') || url.chars().any(char::is_control) {
        return wrong("it is not a URL: it is an option, or has more than one line");
    }
    let is_relative = ["./", "../"].iter().any(|start| url.starts_with(start)) || matches!(url, "." | "..");
    let found = match is_relative {
        true => relative(parent, url).doing(step)?,
        false => Remote::parse(url)?,
    };
    match (&found, top) {
        (Remote::Far(far), Remote::Far(own)) if is_own(far, own) => Ok(found),
        (Remote::Far(far), _) if also.iter().any(|each| each.has(far)) => Ok(found),
        (Remote::Far(far), _) => {
            Err(Error::new(Kind::Workspace, format!("it is at `{}`, which is not an allowed location", far.place()))
                .doing(step())
                .hint(format!("if that is right, allow it by name: --git-from {}", named(far))))
        }
        (Remote::Local(_), Remote::Far(_)) => wrong("a repository from elsewhere names a path of this machine"),
        (Remote::Local(path), Remote::Local(_)) if !path.is_absolute() => {
            wrong("it is neither a URL nor an absolute path")
        }
        (Remote::Local(_), Remote::Local(_)) => Ok(found),
    }
}

pub(super) const LEAVE: &str = "leave submodules out (`git.submodules`), or correct `.gitmodules` in the repository";

fn named(far: &RemoteHost) -> String {
    match is_standard(far) {
        true if !far.host.contains(':') => far.host.clone(),
        _ => far.place(),
    }
}

/// `path` is canonical.
pub(super) fn allows_path(path: &Path, top: &Path, folders: &[PathBuf]) -> bool {
    path.starts_with(top) || folders.iter().any(|folder| path.starts_with(folder))
}

/// Resolves a relative URL (git-submodule(1), `add`), but never out of the host: git itself would take
/// `../../../other.host/x` for another host.
fn relative(parent: &Remote, url: &str) -> Result<Remote> {
    let (before, path) = match parent {
        Remote::Local(path) => (String::new(), path.to_string_lossy().into_owned()),
        Remote::Far(far) => match far.url.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                (format!("{scheme}://{authority}/"), path.to_owned())
            }
            None => {
                let (host, path) = far.url.split_once(':').unwrap_or((&far.url, ""));
                (format!("{host}:"), path.to_owned())
            }
        },
    };
    let root = if path.starts_with('/') { "/" } else { "" };
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for part in url.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part != ".." {
            parts.push(part);
        } else if parts.pop().is_none() {
            return Err(Error::new(Kind::Workspace, "it leads out of the host that it is relative to").hint(LEAVE));
        }
    }
    if parts.is_empty() {
        return Err(Error::new(Kind::Workspace, "it names no repository").hint(LEAVE));
    }
    Remote::parse(&format!("{before}{root}{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(remote: &Remote) -> String {
        match remote {
            Remote::Local(path) => path.display().to_string(),
            Remote::Far(far) => far.url.clone(),
        }
    }

    #[test]
    fn a_submodule_is_at_the_repositorys_own_host_or_at_a_place_that_was_named() {
        let also = [Elsewhere::parse("lib.test").unwrap(), Elsewhere::parse("git.test:8443").unwrap()];
        let check = |top: &str, url: &str, expected: std::result::Result<&str, &str>| {
            let top = Remote::parse(top).unwrap();
            match (submodule(&top, &top, &also, url), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(shown(&found), expected, "{url}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{url}: {error}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        };
        let far = "https://a.test:9443/me/app.git";
        check(far, "../lib.git", Ok("https://a.test:9443/me/lib.git"));
        check(far, "../../you/lib.git", Ok("https://a.test:9443/you/lib.git"));
        check(far, "./lib", Ok("https://a.test:9443/me/app.git/lib"));
        check(far, "https://a.test:9443/x", Ok("https://a.test:9443/x"));
        check(far, "git@a.test:x", Ok("git@a.test:x"));
        check(far, "https://lib.test/x", Ok("https://lib.test/x"));
        check(far, "https://git.test:8443/x", Ok("https://git.test:8443/x"));
        check(far, "https://git.test/x", Err("`git.test:443`, which is not an allowed location"));
        check(far, "https://lib.test:6379/x", Err("is not an allowed location"));
        check(far, "https://a.test:6379/x", Err("is not an allowed location"));
        check(far, "https://b.test/x", Err("is not an allowed location"));
        check(far, "https://169.254.169.254/x", Err("is not an allowed location"));
        check(far, "http://127.0.0.1:9443/x", Err("is not an allowed location"));
        check(far, "../../../b.test/x", Err("leads out of the host"));
        check(far, "/etc", Err("path of this machine"));
        check(far, "file:///etc", Err("path of this machine"));
        check(far, "lib", Err("path of this machine"));
        check(far, "ext::sh -c x", Err("run programs"));
        check(far, "https://me:secret@a.test:9443/x", Err("credential in a URL"));
        check(far, "-u./x", Err("is not a URL"));
        check(far, "--upload-pack=x", Err("is not a URL"));
        check(far, "https://a.test:9443/x\nhost=b.test", Err("is not a URL"));
        check(far, "./\nx", Err("is not a URL"));
        check(far, "", Err("is not a URL"));
        check("git@a.test:me/app.git", "../lib.git", Ok("git@a.test:me/lib.git"));
        check("git@a.test:me/app.git", "../../../x", Err("leads out of the host"));
        check("git@a.test:me/app.git", "https://a.test/x", Ok("https://a.test/x"));
        check("ssh://git@a.test:2222/me/app.git", "../lib", Ok("ssh://git@a.test:2222/me/lib"));
        check("/srv/app", "../lib", Ok("/srv/lib"));
        check("/srv/app", "./lib", Ok("/srv/app/lib"));
        check("/srv/app", "/srv/x", Ok("/srv/x"));
        check("/srv/app", "lib", Err("nor an absolute path"));
        check("/srv/app", "../../../etc", Err("leads out"));
        check("/srv/app", "https://b.test/x", Err("is not an allowed location"));
        check("/srv/app", "https://lib.test/x", Ok("https://lib.test/x"));
    }

    #[test]
    fn a_path_is_below_the_repository_or_a_folder_that_was_named() {
        let folders = [PathBuf::from("/srv/more")];
        for (path, allowed) in [
            ("/srv/app/lib", true),
            ("/srv/app", true),
            ("/srv/more/x", true),
            ("/srv/application", false),
            ("/srv/other", false),
            ("/etc", false),
        ] {
            assert_eq!(allows_path(Path::new(path), Path::new("/srv/app"), &folders), allowed, "{path}");
        }
    }

    #[test]
    fn a_credential_goes_to_the_repositorys_own_host_alone() {
        let far = |text: &str| match Remote::parse(text).unwrap() {
            Remote::Far(far) => far,
            Remote::Local(_) => panic!("{text} is far"),
        };
        let top = far("https://a.test:9443/app");
        for (url, own) in [
            ("https://a.test:9443/lib", true),
            ("https://a.test/lib", true),
            ("git@a.test:lib", true),
            ("https://a.test:8443/lib", false),
            ("https://b.test:9443/lib", false),
            ("ssh://a.test:9443/lib", false),
        ] {
            assert_eq!(is_own(&far(url), &top), own, "{url}");
        }
    }

    #[test]
    fn large_files_are_told_of_by_the_repositorys_own_server_and_come_from_named_hosts() {
        let also = [Elsewhere::parse("cdn.test").unwrap(), Elsewhere::parse("[::1]:8443").unwrap()];
        let check = |text: &str, url: &str, rules: &[&str]| {
            let Remote::Far(far) = Remote::parse(text).unwrap() else { panic!("{text} is far") };
            assert_eq!(lfs_url(&far), url);
            let found: Vec<String> = of_lfs(&far, &also).unwrap().iter().map(ToString::to_string).collect();
            assert_eq!(found, rules, "{text}");
        };
        check("https://a.test/app", "https://a.test/app.git/info/lfs", &["cdn.test:443", "[::1]:8443"]);
        check("https://a.test/app.git/", "https://a.test/app.git/info/lfs", &["cdn.test:443", "[::1]:8443"]);
        check("git@a.test:app", "git@a.test:app", &["a.test:443", "cdn.test:443", "[::1]:8443"]);
    }

    #[test]
    fn a_place_is_a_host_or_a_folder() {
        let host = |name: &str, port| Elsewhere::Host(name.to_owned(), port);
        for (text, expected) in [
            ("GitHub.com", Some(host("github.com", None))),
            ("a.test:8443", Some(host("a.test", Some(8443)))),
            ("[::1]:8443", Some(host("::1", Some(8443)))),
            ("/srv", Some(Elsewhere::Folder("/srv".into()))),
            ("../x", Some(Elsewhere::Folder("../x".into()))),
            ("https://x", None),
            ("", None),
            ("-x", None),
            ("me@host", None),
        ] {
            assert_eq!(Elsewhere::parse(text).ok(), expected, "{text}");
        }
    }
}
