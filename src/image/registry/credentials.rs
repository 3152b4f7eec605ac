//! The credential files and helpers of Docker and Podman, in Podman's order.

use crate::error::{Error, Kind, Result, Step};
use crate::files;
use base64::Engine as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LARGEST_FILE: u64 = 4 << 20;
/// A helper may ask the user: this is its time limit.
const HELPER_PATIENCE: Duration = Duration::from_secs(60);
const LARGEST_ANSWER: u64 = 1 << 20;
/// How a helper finds the user's keys, agents and accounts.
const TOLD: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "GPG_TTY",
];
/// pass, GnuPG, and the clouds whose registries have helpers.
const TOLD_FAMILIES: [&str; 6] = ["PASSWORD_STORE_", "GNUPG", "AWS_", "AZURE_", "CLOUDSDK_", "GOOGLE_"];

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// No credentials.
    Anonymous,
    /// For a token server or HTTP Basic.
    Password { user: String, password: String },
    /// A token that gets other tokens.
    Identity(String),
    /// A token that is sent as it is.
    Bearer(String),
}

// Not derived: `{:?}` in a message must not show a secret.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Credentials::Anonymous => "Anonymous",
            Credentials::Password { .. } => "Password(…)",
            Credentials::Identity(_) => "Identity(…)",
            Credentials::Bearer(_) => "Bearer(…)",
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuthFile {
    auths: BTreeMap<String, Auth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    username: String,
    secret: String,
}

pub(crate) fn find(host: &str, repository: &str) -> Result<Credentials> {
    for path in paths() {
        let bytes = match files::read_bounded(&path, LARGEST_FILE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let found =
            in_file(&bytes, host, repository).doing(|| format!("read the credentials in `{}`", path.display()))?;
        if found != Credentials::Anonymous {
            return Ok(found);
        }
    }
    Ok(Credentials::Anonymous)
}

fn paths() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("REGISTRY_AUTH_FILE") {
        return vec![path];
    }
    let home = variable("HOME");
    let below = |base: &Option<PathBuf>, name: &str| base.as_ref().map(|base| base.join(name));
    [
        below(&variable("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(&variable("XDG_CONFIG_HOME"), "containers/auth.json"),
        below(&home, ".config/containers/auth.json"),
        below(&variable("DOCKER_CONFIG"), "config.json"),
        below(&home, ".docker/config.json"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn in_file(bytes: &[u8], host: &str, repository: &str) -> Result<Credentials> {
    let file: AuthFile =
        serde_json::from_slice(bytes).map_err(|cause| Error::new(Kind::Credentials, cause.to_string()))?;
    let helper = file.cred_helpers.get(host).or(file.creds_store.as_ref());
    if let Some(helper) = helper {
        let found = ask(helper, helper_key(host))?;
        if found != Credentials::Anonymous {
            return Ok(found);
        }
    }
    best(&file.auths, host, repository).map_or(Ok(Credentials::Anonymous), read)
}

/// The longest prefix of `host/repository` wins. Docker Hub has another key.
fn best<'a>(auths: &'a BTreeMap<String, Auth>, host: &str, repository: &str) -> Option<&'a Auth> {
    let mut name = format!("{host}/{repository}");
    loop {
        if let Some(auth) = auths.get(&name) {
            return Some(auth);
        }
        match name.rfind('/') {
            Some(at) => name.truncate(at),
            None => break,
        }
    }
    let hub = ["https://index.docker.io/v1/", "index.docker.io", "docker.io"];
    let bare = |key: &str| {
        let key = key.trim_start_matches("https://").trim_start_matches("http://");
        key.split('/').next().unwrap_or_default().to_owned()
    };
    if host == "docker.io" {
        return hub.iter().find_map(|key| auths.get(*key));
    }
    auths.iter().find(|(key, _)| key.contains("://") && bare(key) == host).map(|(_, auth)| auth)
}

fn helper_key(host: &str) -> &str {
    if host == "docker.io" { "https://index.docker.io/v1/" } else { host }
}

fn read(auth: &Auth) -> Result<Credentials> {
    if let Some(token) = auth.registrytoken.as_ref().filter(|token| !token.is_empty()) {
        return Ok(Credentials::Bearer(token.clone()));
    }
    if let Some(token) = auth.identitytoken.as_ref().filter(|token| !token.is_empty()) {
        return Ok(Credentials::Identity(token.clone()));
    }
    if let (Some(user), Some(password)) = (&auth.username, &auth.password) {
        return Ok(Credentials::Password { user: user.clone(), password: password.clone() });
    }
    let Some(packed) = auth.auth.as_ref().filter(|packed| !packed.is_empty()) else {
        return Ok(Credentials::Anonymous);
    };
    let wrong = || Error::new(Kind::Credentials, "an `auth` is not base64 of NAME:PASSWORD");
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or_else(wrong)?;
    Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
}

/// Gives the helper few variables and little time.
fn ask(helper: &str, host: &str) -> Result<Credentials> {
    let step = || format!("ask the credential helper `{}` for `{host}`", helper.escape_debug());
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if helper.is_empty() || !helper.bytes().all(word) {
        return Err(Error::new(Kind::Credentials, "that is not a name of a helper")).doing(step);
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.envs(std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        TOLD.contains(&&*name) || TOLD_FAMILIES.iter().any(|family| name.starts_with(family))
    }));
    let failed = |cause: std::io::Error| Error::os(Kind::Credentials, cause).doing(step());
    let mut child = command.spawn().map_err(failed).hint(|| {
        format!("install `docker-credential-{helper}`, or take it out of the auth file and log in without it")
    })?;
    if let Some(mut input) = child.stdin.take() {
        // A helper that ended without reading has written its answer.
        let _ = writeln!(input, "{host}");
    }
    let output = child.stdout.take();
    let (sender, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map(|output| output.take(LARGEST_ANSWER).read_to_string(&mut text));
        // The receiver may have gone.
        let _ = sender.send(read.transpose().map(|_| text));
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if start.elapsed() > HELPER_PATIENCE {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Err(Error::new(Kind::Credentials, "it did not answer within a minute")).doing(step);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // A process that the helper left behind may keep its output open.
    let text = answer
        .recv_timeout(HELPER_PATIENCE.saturating_sub(start.elapsed()))
        .map_err(|_| Error::new(Kind::Credentials, "its output did not end within a minute"))
        .doing(step)?
        .map_err(failed)?;
    if !status.success() {
        if text.contains("credentials not found in native keychain") {
            return Ok(Credentials::Anonymous);
        }
        let words: String = text.trim().chars().take(200).collect();
        return Err(Error::new(Kind::Credentials, format!("the helper printed `{}`", words.escape_debug())))
            .doing(step);
    }
    let answer: Answer =
        serde_json::from_str(&text).map_err(|_| Error::new(Kind::Credentials, "its answer is not JSON")).doing(step)?;
    Ok(match answer.username.as_str() {
        // docker-credential-pass 0.6 returns an empty secret instead of an error.
        "" if answer.secret.is_empty() => Credentials::Anonymous,
        "<token>" => Credentials::Identity(answer.secret),
        _ => Credentials::Password { user: answer.username, password: answer.secret },
    })
}

pub(crate) fn from_file(path: &Path, host: &str, repository: &str) -> Result<Credentials> {
    let bytes = files::read_bounded(path, LARGEST_FILE)?;
    in_file(&bytes, host, repository).doing(|| format!("read the credentials in `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_and_the_hub_has_its_old_name() {
        let auth = |user: &str| base64::engine::general_purpose::STANDARD.encode(format!("{user}:p:w"));
        let file = format!(
            r#"{{"auths":{{"a.org":{{"auth":"{}"}},"a.org/team":{{"auth":"{}"}},"https://index.docker.io/v1/":{{"identitytoken":"t"}},
            "https://b.org/v2/":{{"auth":"{}"}}}}}}"#,
            auth("host"),
            auth("team"),
            auth("url")
        );
        let user = |host: &str, repository: &str| match in_file(file.as_bytes(), host, repository).unwrap() {
            Credentials::Password { user, password } => format!("{user} {password}"),
            Credentials::Identity(token) => format!("identity {token}"),
            other => format!("{other:?}"),
        };
        assert_eq!(user("a.org", "team/x"), "team p:w");
        assert_eq!(user("a.org", "teams/x"), "host p:w");
        assert_eq!(user("docker.io", "library/x"), "identity t");
        assert_eq!(user("b.org", "x"), "url p:w");
        assert_eq!(user("c.org", "x"), "Anonymous");
    }

    #[test]
    fn a_helper_with_a_path_for_a_name_is_not_run() {
        let error = in_file(br#"{"credsStore":"../../tmp/x"}"#, "a.org", "x").unwrap_err();
        assert!(error.to_string().contains("not a name of a helper"), "{error}");
    }
}
