//! The login file of an agent's own program: a JSON object with an access token, which that program renews.
//!
//! brig writes nothing: a refresh token may be valid once, and belongs to the program. It follows a replaced file and
//! refuses expired tokens.

use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::process::apart;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LONGEST: u64 = 64 << 10;
/// A larger number is in milliseconds since 1970, a smaller one in seconds.
const MILLISECONDS: u64 = 100_000_000_000;

/// A login file's access token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFile {
    /// The file.
    pub path: PathBuf,
    /// The token's JSON pointer (RFC 6901).
    pub token: String,
    /// Its end's JSON pointer. Without one, a token that is a JWT has it (RFC 7519, `exp`).
    pub expires: Option<String>,
    /// The program that renews it.
    pub program: String,
}

/// Facts of a login file, without its token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::task) struct LoginFacts {
    pub has_token: bool,
    /// The token's end, in seconds since 1970.
    pub end: Option<u64>,
    /// Other texts, by JSON pointer.
    pub texts: BTreeMap<String, String>,
}

impl LoginFile {
    /// Another process reads the file: this one is copied into the sandbox later.
    pub(in crate::task) fn facts(&self, texts: &[&str]) -> Result<LoginFacts> {
        if !self.path.is_file() {
            return Ok(LoginFacts::default());
        }
        let bytes = apart(|| {
            let object = self.object()?;
            let token = text(&object, &self.token);
            let facts = LoginFacts {
                has_token: token.is_some(),
                end: token.and_then(|token| self.end(&object, token)),
                texts: texts
                    .iter()
                    .filter_map(|pointer| Some(((*pointer).to_owned(), text(&object, pointer)?.to_owned())))
                    .collect(),
            };
            serde_json::to_vec(&facts).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))
        })?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))
    }

    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let object = self.object()?;
        let token = text(&object, &self.token).ok_or_else(|| {
            Error::new(Kind::Secret, format!("`{}` has no access token", self.path.display())).hint(self.hint())
        })?;
        match self.end(&object, token).map(expired_for) {
            Some(Some(time)) => Err(self.expired(time)),
            _ => Ok(token.as_bytes().to_vec()),
        }
    }

    pub(in crate::task) fn expired(&self, time: Duration) -> Error {
        let time = humantime::format_duration(Duration::from_secs(time.as_secs().max(1)));
        Error::new(Kind::Secret, format!("the login in `{}` expired {time} ago", self.path.display())).hint(self.hint())
    }

    fn hint(&self) -> String {
        format!("run `{}` once outside of brig: it renews its login", self.program)
    }

    fn end(&self, object: &Value, token: &str) -> Option<u64> {
        let number = match &self.expires {
            Some(pointer) => object.pointer(pointer)?.as_u64()?,
            None => {
                let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
                serde_json::from_slice::<Value>(&claims).ok()?.get("exp")?.as_u64()?
            }
        };
        Some(if number > MILLISECONDS { number / 1000 } else { number })
    }

    fn object(&self) -> Result<Value> {
        let step = || format!("read the login `{}`", self.path.display());
        let bytes = files::read_plain(&self.path, LONGEST)
            .map_err(|cause| files::failed(cause, step()).of_kind(Kind::Secret))
            .hint(|| self.hint())?;
        // The cause names a position, never the content.
        serde_json::from_slice(&bytes)
            .map_err(|cause| Error::new(Kind::Secret, cause.to_string()).doing(step()).hint(self.hint()))
    }
}

fn text<'object>(object: &'object Value, pointer: &str) -> Option<&'object str> {
    object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// How long ago a moment was; `None` if it is to come.
pub(in crate::task) fn expired_for(end: u64) -> Option<Duration> {
    SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(end)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str, expires: Option<&str>) -> (tempfile::TempDir, LoginFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("login.json");
        std::fs::write(&path, content).unwrap();
        let expires = expires.map(str::to_owned);
        (folder, LoginFile { path, token: "/a/token".into(), expires, program: "agent".into() })
    }

    #[test]
    fn a_token_is_read_until_its_end_in_seconds_milliseconds_or_its_own_claims() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let jwt = |end: u64| format!("h.{}.s", URL_SAFE_NO_PAD.encode(format!(r#"{{"exp": {end}}}"#)));
        let check = |token: &str, end: u64, expires: Option<&str>, is_valid: bool| {
            let (_folder, file) = file(&format!(r#"{{"a": {{"token": "{token}"}}, "end": {end}}}"#), expires);
            let read = file.read();
            assert_eq!(read.as_ref().ok().map(Vec::as_slice), is_valid.then_some(token.as_bytes()), "{end}");
            if let Err(error) = read {
                assert!(error.to_string().contains("expired"), "{error}");
                assert!(error.advice().unwrap().contains("run `agent` once"), "{error:?}");
                assert!(!error.to_string().contains(token), "{error}");
            }
        };
        for (end, is_valid) in [(now + 1000, true), (now - 1000, false)] {
            check("s3cret-token", end, Some("/end"), is_valid);
            check("s3cret-token", end * 1000, Some("/end"), is_valid);
            check(&jwt(end), 0, None, is_valid);
        }
        check("s3cret-token", 0, None, true);
    }

    #[test]
    fn a_file_without_a_token_or_of_another_form_is_an_error_that_does_not_repeat_it() {
        for content in ["{}", r#"{"a": {"token": ""}}"#, r#"{"a": "s3cret"}"#, "s3cret", ""] {
            let (_folder, file) = file(content, None);
            let error = file.read().unwrap_err();
            assert!(error.kind() == Kind::Secret && error.advice().is_some(), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
