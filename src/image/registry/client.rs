//! Secrets go only to the registry and its checked token server (CVE-2020-15157: to any host that the manifest named).

use super::address::Address;
use super::challenge::{Challenge, best, check_realm};
use super::credentials::Credentials;
use super::pace::PacedReader;
use super::trust::{self, Trust};
use crate::error::{Error, Kind, Result, Step};
use crate::image::progress::{Event, Report};
use crate::sys::weaken;
use base64::Engine as _;
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use ureq::http::{Request, Response};
use ureq::{Agent, Body, SendBody};

pub(super) const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(300);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Without a byte, in either direction.
const PATIENCE: Duration = Duration::from_secs(60);
/// A registry answers when it has copied the whole blob to its storage.
const STORING: Duration = Duration::from_secs(600);
const MOST_REDIRECTS: usize = 8;
const LARGEST_TOKEN: u64 = 1 << 20;
/// Bytes of a registry's error text that are repeated.
const LONGEST_WORDS: u64 = 16 << 10;
/// distribution-spec: a token without a lifetime is valid for a minute.
const TOKEN_LIFE: Duration = Duration::from_secs(60);
/// A day in seconds. The registry chooses the number, and a huge one would panic (`Duration * u32` and `Instant +
/// Duration`).
const LONGEST_TOKEN_LIFE: u64 = 86_400;

pub(super) enum Payload<'a> {
    Nothing,
    Bytes(&'a [u8]),
    File(&'a File, u64),
}

pub(super) struct Call<'a> {
    pub(super) method: &'a str,
    pub(super) address: Address,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) payload: Payload<'a>,
}

struct Token {
    value: String,
    until: Instant,
}

pub(super) struct Client<'a> {
    agent: Agent,
    /// For redirects and token servers, which do not get the client certificate.
    elsewhere: Agent,
    /// The prefix of all requests.
    pub(super) base: Address,
    /// The registry for which a mirror of several answers.
    of: Option<String>,
    identity: Identity,
    authorization: Mutex<Option<Token>>,
    pub(super) tries: u32,
    report: Report<'a>,
}

pub(super) struct Identity {
    /// distribution-spec, "Token scope". The main scope is the first.
    pub(super) scopes: Vec<String>,
    pub(super) credentials: Credentials,
    pub(super) allowed_realms: Vec<String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        base: Address,
        of: Option<String>,
        trust: &Trust,
        identity: Identity,
        report: Report<'a>,
    ) -> Client<'a> {
        let agent = |tls| {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .tls_config(tls)
                .user_agent(concat!("brig/", env!("CARGO_PKG_VERSION")))
                .timeout_connect(Some(Duration::from_secs(20)))
                .timeout_recv_response(Some(PATIENCE))
                .timeout_per_read(Some(PATIENCE))
                .timeout_per_write(Some(PATIENCE))
                .build()
                .new_agent()
        };
        let (agent, elsewhere) = (agent(trust.tls()), agent(trust.without_ours().tls()));
        Client { agent, elsewhere, base, of, identity, authorization: Mutex::new(None), tries: TRIES, report }
    }

    pub(super) fn api(&self, what: &str) -> Address {
        let of = self.of.as_ref().map_or(String::new(), |of| {
            format!("{}{}", if what.contains('?') { '&' } else { '?' }, encoded(&[("ns", of.clone())]))
        });
        self.base.at(&format!("{}/{what}{of}", self.base.path))
    }

    pub(super) fn send(&self, call: &Call<'_>) -> Result<Response<Body>> {
        self.repeat(|| self.authorized(call))
    }

    /// Retries after rate limits and server errors. Returns any other status.
    pub(super) fn repeat(&self, mut ask: impl FnMut() -> Result<Response<Body>>) -> Result<Response<Body>> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let (error, asked, hint) = match ask() {
                Ok(response) if !is_trouble(response.status().as_u16()) => return Ok(response),
                Ok(response) => {
                    let asked = response
                        .headers()
                        .get("retry-after")
                        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
                    (refusal(response), asked.map(Duration::from_secs), "try again later".to_owned())
                }
                Err(error) if error.retryable() => (error, None, self.unreached()),
                Err(error) => return Err(error).doing(|| format!("ask `{}`", self.base.host)),
            };
            let pause = asked.unwrap_or(wait);
            if attempt >= self.tries || pause > LONGEST_WAIT {
                return Err(error).doing(|| format!("ask `{}`", self.base.host)).hint(|| hint);
            }
            let note = format!("{}: {error}; trying again in {:.1} s", self.base.host, pause.as_secs_f32());
            (self.report)(Event::Note(&note));
            std::thread::sleep(pause);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Err(Error::new(Kind::Internal, "no answer and no error"))
    }

    fn unreached(&self) -> String {
        let host = &self.base.host;
        format!(
            "see whether this machine reaches `{host}`; name another registry like `HOST/NAME:TAG`, or load an image from a file: brig image load"
        )
    }

    /// One try. After a 401 sends again with better authorization.
    pub(super) fn authorized(&self, call: &Call<'_>) -> Result<Response<Body>> {
        let (response, is_ours) = self.redirected(call, self.known_authorization())?;
        // Another host must not choose the server that gets the registry's password.
        if response.status().as_u16() != 401 || !is_ours {
            return Ok(response);
        }
        let headers: Vec<&str> =
            response.headers().get_all("www-authenticate").iter().filter_map(|value| value.to_str().ok()).collect();
        let authorization = match best(&headers) {
            None => return Err(self.denied(response)),
            Some(Challenge::Basic) => match &self.identity.credentials {
                Credentials::Password { user, password } => Token {
                    value: format!(
                        "Basic {}",
                        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
                    ),
                    until: Instant::now() + Duration::from_secs(LONGEST_TOKEN_LIFE),
                },
                _ => return Err(self.denied(response)),
            },
            Some(Challenge::Bearer { realm, service, scope }) => {
                self.token(&realm, service.as_deref(), scope.as_deref())?
            }
        };
        let value = authorization.value.clone();
        if let Ok(mut known) = self.authorization.lock() {
            *known = Some(authorization);
        }
        let (response, _) = self.redirected(call, Some(value))?;
        if response.status().as_u16() == 401 { Err(self.denied(response)) } else { Ok(response) }
    }

    fn known_authorization(&self) -> Option<String> {
        if let Credentials::Bearer(token) = &self.identity.credentials {
            return Some(format!("Bearer {token}"));
        }
        let known = self.authorization.lock().ok()?;
        known.as_ref().filter(|token| token.until > Instant::now()).map(|token| token.value.clone())
    }

    fn denied(&self, response: Response<Body>) -> Error {
        let hint = match self.identity.credentials {
            Credentials::Anonymous => format!("log in first, for example with `skopeo login {}`", self.base.host),
            _ => "check the name and password in your auth file".to_owned(),
        };
        // Not repeated: five more wrong passwords may lock an account.
        refusal(response).of_kind(Kind::Credentials).hint(hint)
    }

    fn token(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<Token> {
        let address = check_realm(realm, &self.base, &self.identity.allowed_realms)?;
        let step = || format!("get a token from `{}`", address.host);
        // Use the registry's scope if it includes the client's.
        let (own, others) =
            self.identity.scopes.split_first().map_or(("", &[][..]), |(own, others)| (own.as_str(), others));
        let asked = scope.filter(|scope| scope.starts_with("repository:") && scope.contains(own)).unwrap_or(own);
        let scopes =
            [asked].into_iter().chain(others.iter().map(String::as_str).filter(|other| !asked.contains(*other)));
        let (all, by_form): (Vec<&str>, _) =
            (scopes.collect(), matches!(self.identity.credentials, Credentials::Identity(_)));
        // A form has one field with all scopes (RFC 6749, 3.3), a URL one field for each (distribution's token
        // specification).
        let mut fields: Vec<(&str, String)> = if by_form {
            vec![("scope", all.join(" "))]
        } else {
            all.iter().map(|scope| ("scope", (*scope).to_owned())).collect()
        };
        fields.push(("client_id", "brig".to_owned()));
        fields.extend(service.map(|service| ("service", service.to_owned())));
        let mut headers = Vec::new();
        let response = if let Credentials::Identity(secret) = &self.identity.credentials {
            fields.extend([("grant_type", "refresh_token".to_owned()), ("refresh_token", secret.clone())]);
            headers.push(("content-type", "application/x-www-form-urlencoded".to_owned()));
            let form = encoded(&fields);
            let payload = Payload::Bytes(form.as_bytes());
            self.once(&Call { method: "POST", address: address.clone(), headers, payload }, None)
        } else {
            let mut authorization = None;
            if let Credentials::Password { user, password } = &self.identity.credentials {
                fields.push(("account", user.clone()));
                let packed = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                authorization = Some(format!("Basic {packed}"));
            }
            let mark = if address.path.contains('?') { '&' } else { '?' };
            let asked = address.at(&format!("{}{mark}{}", address.path, encoded(&fields)));
            self.once(&Call { method: "GET", address: asked, headers, payload: Payload::Nothing }, authorization)
        };
        let mut response = response.doing(step)?;
        if response.status().as_u16() != 200 {
            let status = response.status().as_u16();
            let error = if is_trouble(status) { refusal(response) } else { self.denied(response) };
            return Err(error).doing(step);
        }
        let mut bytes = Vec::new();
        let read = PacedReader::new(response.body_mut().as_reader()).take(LARGEST_TOKEN).read_to_end(&mut bytes);
        read.map_err(unreachable).doing(step)?;
        let wrong = || Error::new(Kind::Registry, "the answer holds no token");
        let answer: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| wrong()).doing(step)?;
        let token =
            answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(wrong).doing(step)?;
        Ok(Token { value: format!("Bearer {token}"), until: Instant::now() + token_life(answer.expires_in) })
    }

    /// Secrets stay with the registry's host. Also returns whether that host answered.
    fn redirected(&self, call: &Call<'_>, authorization: Option<String>) -> Result<(Response<Body>, bool)> {
        let mut address = call.address.clone();
        for _ in 0..=MOST_REDIRECTS {
            let ours = address.same_origin(&self.base) || weaken::is_off("image-redirect");
            let payload = match &call.payload {
                Payload::Nothing => Payload::Nothing,
                Payload::Bytes(bytes) => Payload::Bytes(bytes),
                Payload::File(file, length) => Payload::File(file, *length),
            };
            let again = Call { method: call.method, address: address.clone(), headers: call.headers.clone(), payload };
            let response = self.once(&again, authorization.clone().filter(|_| ours))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, ours));
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or_default();
            address = address.join(location)?;
        }
        Err(Error::new(Kind::Registry, "it redirects in circles"))
    }

    fn once(&self, call: &Call<'_>, authorization: Option<String>) -> Result<Response<Body>> {
        let mut request = Request::builder().method(call.method).uri(call.address.to_string());
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let agent = if call.address.same_origin(&self.base) { &self.agent } else { &self.elsewhere };
        let wrong = |cause: ureq::http::Error| Error::new(Kind::Registry, cause.to_string());
        let sent = match &call.payload {
            Payload::Nothing => agent.run(request.body(()).map_err(wrong)?),
            Payload::Bytes(bytes) => agent.run(request.body(*bytes).map_err(wrong)?),
            Payload::File(file, length) => {
                let mut reader = *file;
                std::io::Seek::rewind(&mut reader).map_err(|cause| Error::os(Kind::Store, cause))?;
                let request = request.header("content-length", length.to_string());
                let request = request.body(SendBody::from_reader(&mut reader)).map_err(wrong)?;
                let request = agent.configure_request(request).timeout_recv_response(Some(STORING));
                agent.run(request.timeout_per_read(Some(STORING)).build())
            }
        };
        sent.map_err(|cause| failed(&cause))
    }
}

/// Shorter than the registry's, so that the token does not expire in transit.
fn token_life(expires_in: Option<u64>) -> Duration {
    let life = expires_in.map_or(TOKEN_LIFE, |seconds| Duration::from_secs(seconds.min(LONGEST_TOKEN_LIFE)));
    life.max(TOKEN_LIFE) * 9 / 10
}

pub(super) fn is_trouble(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

pub(super) fn refusal(mut response: Response<Body>) -> Error {
    let status = response.status();
    let mut bytes = Vec::new();
    // The status is enough.
    let _ = PacedReader::new(response.body_mut().as_reader()).take(LONGEST_WORDS).read_to_end(&mut bytes);
    // The error texts of Go and nginx.
    let wants_tls = ["HTTP request to an HTTPS server", "HTTP request was sent to HTTPS port"];
    if status.as_u16() == 400 && wants_tls.iter().any(|words| String::from_utf8_lossy(&bytes).contains(words)) {
        return Error::new(Kind::Certificate, "it speaks TLS and was asked without")
            .hint("leave out --plain-http; for a registry on this machine name its certificates: --cert-dir DIR");
    }
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let words: Vec<String> = value["errors"]
        .as_array()
        .map(|errors| {
            errors
                .iter()
                .filter_map(|error| error["message"].as_str().map(|text| text.escape_debug().to_string()))
                .collect()
        })
        .unwrap_or_default();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) };
    let kind = if status.as_u16() == 404 { Kind::NotFound } else { Kind::Registry };
    Error::new(kind, format!("the registry answers {status}{words}"))
}

fn failed(cause: &ureq::Error) -> Error {
    if let Some(error) = trust::refusal(cause) {
        return error;
    }
    match cause {
        ureq::Error::Io(cause) if cause.raw_os_error().is_some() => Error::new(Kind::Registry, cause.to_string()),
        ureq::Error::HostNotFound => Error::new(Kind::Registry, "unknown host").hint("check the name and the network"),
        other => Error::new(Kind::Registry, other.to_string()),
    }
}

pub(super) fn unreachable(cause: std::io::Error) -> Error {
    match cause.downcast::<Error>() {
        Ok(error) => error,
        Err(cause) => Error::new(Kind::Registry, format!("the connection broke: {cause}")),
    }
}

/// `name=value&…`, percent-encoded.
fn encoded(fields: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte) {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_used_for_longer_than_a_day_whatever_the_registry_says() {
        let seconds = |expires_in| token_life(expires_in).as_secs();
        assert_eq!([None, Some(0), Some(300)].map(seconds), [54, 54, 270]);
        assert_eq!([Some(u64::from(u32::MAX)), Some(u64::MAX)].map(seconds), [77_760, 77_760]);
    }
}
