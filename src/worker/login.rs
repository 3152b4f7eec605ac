//! Persons' logins: a worker gets only those that its file names twice.
//!
//! A token that a worker renews is lost to the person, and a token that leaks from a worker is the person's.

use crate::error::{Error, Kind, Result};
use crate::task::{Definition, Source};
use std::path::{Component, Path, PathBuf};

/// Logins in a home.
const LOGINS: [&str; 18] = [
    ".aws",
    ".azure",
    ".claude",
    ".claude.json",
    ".codex",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".docker/config.json",
    ".gemini",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/opencode/auth.json",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".ssh",
];

fn is_login(path: &Path) -> bool {
    let parts: Vec<_> = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    LOGINS.iter().any(|login| {
        let login: Vec<_> = Path::new(login).components().collect();
        parts.windows(login.len()).any(|window| window == login)
    })
}

/// Homes of the machine's accounts and of the caller, without links.
fn homes() -> Vec<PathBuf> {
    let accounts = std::fs::read("/etc/passwd").unwrap_or_default();
    let accounts = String::from_utf8_lossy(&accounts);
    let homes = accounts.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    homes.chain(std::env::var_os("HOME").map(PathBuf::from)).filter_map(|home| home.canonicalize().ok()).collect()
}

/// Whether a folder shows the login of a home.
fn contains_login(folder: &Path, homes: &[PathBuf]) -> bool {
    let logins = |home: &PathBuf| LOGINS.map(|login| home.join(login));
    homes.iter().flat_map(logins).any(|login| login.starts_with(folder) && login.exists())
}

/// Refuses secrets, git's keys, mounts and a root that are or contain logins, except those of `named`.
pub(super) fn check(definition: &Definition, named: &[String]) -> Result<()> {
    let secrets = definition.secrets.iter().map(|secret| &secret.source);
    let sources = secrets.chain(&definition.git.credential).chain(&definition.git.ssh_key);
    let secrets = sources.filter_map(|source| match source {
        Source::File(path) | Source::OAuth(path) => Some(path),
        _ => None,
    });
    let homes = homes();
    let mounts = definition.sandbox.mounts.iter().map(|mount| &mount.source);
    for path in secrets.chain(mounts).chain(&definition.sandbox.rootfs) {
        let is_named = named.iter().any(|name| Path::new(name) == path);
        // A link may lead to a login. A file that does not exist is refused when it is opened.
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let relation = match is_login(path) || is_login(&real) {
            true => "is",
            false if contains_login(&real, &homes) => "contains",
            false => continue,
        };
        if !is_named {
            let shown = path.display();
            return Err(Error::new(Kind::Policy, format!("`{shown}` {relation} the login of a person"))
                .hint(format!("give the worker another login, or name it twice: logins = [\"{shown}\"]")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_found_below_any_home() {
        for path in ["/home/a/.ssh/id_ed25519", "/root/.claude/.credentials.json", "/srv/h/.config/gh/hosts.yml"] {
            assert!(is_login(Path::new(path)), "{path}");
        }
        for path in ["/etc/brig/keys/deploy", "/home/a/.config/app.toml", "/home/a/ssh/x"] {
            assert!(!is_login(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn folder_around_a_login_contains_it() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home/a");
        std::fs::create_dir_all(home.join(".config/gh")).unwrap();
        std::fs::create_dir_all(home.join("project/.claude")).unwrap();
        let homes = [home.clone()];
        for (path, expected) in
            [(folder.path().to_owned(), true), (home.join(".config"), true), (home.join("project"), false)]
        {
            assert_eq!(contains_login(&path, &homes), expected, "{}", path.display());
        }
    }

    #[test]
    fn root_with_a_login_is_refused() {
        let mut definition = Definition::new(Vec::new());
        definition.sandbox.rootfs = Some("/home/a/.ssh".into());
        let error = check(&definition, &[]).unwrap_err();
        assert!(error.to_string().contains("`/home/a/.ssh` is the login of a person"), "{error}");
    }

    #[test]
    fn login_is_refused_unless_named_twice() {
        let path = "/home/a/.netrc";
        let mut definition = Definition::new(Vec::new());
        definition.secrets.push(crate::task::Secret::parse(&format!("NETRC=file:{path}")).unwrap());
        let error = check(&definition, &[]).unwrap_err();
        assert!(error.to_string().contains("`/home/a/.netrc` is the login of a person"), "{error}");
        assert!(check(&definition, &["/home/a/.ssh".to_owned()]).is_err());
        check(&definition, &[path.to_owned()]).unwrap();
    }
}
