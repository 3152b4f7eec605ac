//! OAuth 2.0: an access token from a refresh token outside of the sandbox (RFC 6749, section 6), for all sandboxes that
//! use the same file.
//!
//! The file is a JSON object: `token_endpoint`, `client_id`, `refresh_token`, optionally `client_secret` and `scope`.
//! `access_token`, `expires_at` (seconds since 1970) and a new `refresh_token` are written back. A lock serialises
//! refreshes: a refresh token may be valid once, and the next process finds the answer.

use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Durability, Lock};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::tls::TlsConfig;

/// Seconds before its end when a token is renewed, for requests under way.
const EARLY: u64 = 60;
/// The assumed lifetime of a token without one, in seconds.
const UNSAID: u64 = 3600;
const PATIENCE: Duration = Duration::from_secs(20);
const LONGEST: u64 = 64 << 10;

type Object = Map<String, Value>;

pub(super) fn access_token(path: &Path) -> Result<Vec<u8>> {
    let step = || format!("refresh the token in `{}`", path.display());
    if let Some(token) = current(path, EARLY) {
        return Ok(token);
    }
    let _lock = Lock::wait(&lock_file(path)).doing(step)?;
    if let Some(token) = current(path, EARLY) {
        return Ok(token); // another process was faster
    }
    let mut object = read(path)?;
    let answer = ask(&object).doing(step)?;
    let token = text(&answer, "access_token")
        .ok_or_else(|| Error::new(Kind::Secret, "the answer has no `access_token`").doing(step()))?
        .to_owned();
    let seconds = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(UNSAID);
    object.insert("expires_at".into(), (now() + seconds).into());
    object.insert("access_token".into(), token.clone().into());
    if let Some(next) = text(&answer, "refresh_token") {
        object.insert("refresh_token".into(), next.into());
    }
    let bytes = serde_json::to_vec_pretty(&object).map_err(|cause| broken(path, &cause))?;
    // A refresh token lost in a power cut cannot be recovered.
    files::replace(path, &bytes, 0o600, Durability::Synced).doing(step)?;
    Ok(token.into_bytes())
}

/// The token, if valid for so many more seconds. Never contacts the server.
pub(super) fn current(path: &Path, seconds: u64) -> Option<Vec<u8>> {
    let object = read(path).ok()?;
    let end = object.get("expires_at").and_then(Value::as_u64)?;
    let token = text(&object, "access_token").filter(|_| end > now() + seconds)?;
    Some(token.as_bytes().to_vec())
}

pub(super) fn is_due(path: &Path) -> bool {
    current(path, EARLY).is_none()
}

fn lock_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn text<'object>(object: &'object Object, key: &str) -> Option<&'object str> {
    object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn broken(path: &Path, cause: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Secret, cause.to_string())
        .doing(format!("read `{}`", path.display()))
        .hint("give a JSON object with `token_endpoint`, `client_id` and `refresh_token`")
}

fn read(path: &Path) -> Result<Object> {
    let bytes = files::read_plain(path, LONGEST)
        .map_err(|cause| files::failed(cause, format!("read `{}`", path.display())).of_kind(Kind::Secret))
        .hint(|| "name a file with a JSON object: `token_endpoint`, `client_id`, `refresh_token`")?;
    serde_json::from_slice(&bytes).map_err(|cause| broken(path, &cause))
}

fn ask(object: &Object) -> Result<Object> {
    let needed = |key: &str| {
        text(object, key).ok_or_else(|| {
            Error::new(Kind::Secret, format!("the file has no `{key}`")).hint("log in again, and write the file anew")
        })
    };
    let endpoint = needed("token_endpoint")?;
    let is_safe = endpoint.starts_with("https://");
    if !is_safe {
        return Err(Error::new(Kind::Secret, "`token_endpoint` is not an https URL").hint("name the server's own"));
    }
    let mut form = vec![
        ("grant_type", "refresh_token"),
        ("refresh_token", needed("refresh_token")?),
        ("client_id", needed("client_id")?),
    ];
    form.extend(["client_secret", "scope"].into_iter().filter_map(|key| Some((key, text(object, key)?))));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .proxy(crate::host::proxy())
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(TlsConfig::builder().root_certs(crate::host::roots(&[])).build())
        .build()
        .into();
    let wrong = |cause: ureq::Error| Error::new(Kind::Secret, cause.to_string()).doing(format!("ask `{endpoint}`"));
    let mut response = agent.post(endpoint).header("accept", "application/json").send_form(form).map_err(wrong)?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(LONGEST).read_to_vec().map_err(wrong)?;
    let answer: Object = serde_json::from_slice(&body).unwrap_or_default();
    if status == 200 {
        return Ok(answer);
    }
    // Only the error code of RFC 6749, 5.2.
    let why = text(&answer, "error").unwrap_or("no reason").escape_debug().to_string();
    Err(Error::new(Kind::Secret, format!("`{endpoint}` answers {status}: {why}"))
        .hint("log in again, and write the file anew"))
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;
    use crate::files::Pinned;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_token_is_read_and_locked_in_the_folder_that_was_checked() {
        let directory = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(directory.path()).unwrap();
        let (folder, moved, victim) = (top.join("a"), top.join("moved"), top.join("victim"));
        let write = |folder: &Path, token: &str, end: u64| {
            let text = format!(r#"{{"access_token": "{token}", "expires_at": {end}}}"#);
            std::fs::write(folder.join("token.json"), text).unwrap();
        };
        for (folder, token) in [(&folder, "own-token"), (&victim, "victims-token")] {
            std::fs::create_dir(folder).unwrap();
            write(folder, token, now() + 1000);
        }
        let mut pinned = Pinned::default();
        pinned.hold(&folder, (&top, &folder), PathBuf::new()).unwrap();
        let source = Source::OAuth(folder.join("token.json")).pinned(&pinned);
        std::fs::rename(&folder, &moved).unwrap();
        symlink(&victim, &folder).unwrap();
        assert_eq!(source.read().unwrap(), b"own-token");
        write(&moved, "old", 1);
        symlink(victim.join("made"), moved.join("token.json.lock")).unwrap();
        assert!(source.read().is_err() && !victim.join("made").exists());
        std::fs::remove_file(moved.join("token.json")).unwrap();
        symlink(victim.join("token.json"), moved.join("token.json")).unwrap();
        assert!(source.read().is_err(), "a link was followed");
    }

    #[test]
    fn a_token_that_is_good_is_taken_as_it_is_and_one_that_is_not_needs_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token.json");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(&format!(r#"{{"access_token": "good-token", "expires_at": {}}}"#, now() + 1000));
        assert_eq!(access_token(&path).unwrap(), b"good-token");
        assert!(!is_due(&path));
        let check = |text: &str, words: &str| {
            write(text);
            let error = access_token(&path).unwrap_err().to_string();
            assert!(error.contains(words) && is_due(&path), "{text}: {error}");
        };
        check(r#"{"access_token": "old", "expires_at": 1}"#, "no `token_endpoint`");
        check(r#"{"token_endpoint": "http://a.test/"}"#, "not an https URL");
        check(r#"{"token_endpoint": "https://127.0.0.1:9/"}"#, "no `refresh_token`");
        check(r#"{"token_endpoint": "https://127.0.0.1:9/", "refresh_token": "r", "client_id": "c"}"#, "ask `https");
        check("[]", "invalid type");
    }
}
