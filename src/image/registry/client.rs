//! Requests to one registry: credentials, tokens, redirects, retries.
//!
//! What is secret goes to the registry itself and, checked, to its token server, and nowhere else: a redirect to another host
//! loses the Authorization header (CVE-2020-15157 sent it to whoever the manifest named).

use super::address::{Address, Scheme};
use super::challenge::{Challenge, best, check_realm};
use super::credentials::Credentials;
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
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, SendBody};

/// Tries of one request, the first included.
pub(super) const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(300);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const MOST_REDIRECTS: usize = 8;
const LARGEST_TOKEN: u64 = 1 << 20;
/// What of a registry's own words is repeated.
const LONGEST_WORDS: u64 = 16 << 10;
/// distribution-spec: a token without a date is good for a minute.
const TOKEN_LIFE: Duration = Duration::from_secs(60);
/// What a request has for a body.
pub(super) enum Payload<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// A file and its length.
    File(&'a File, u64),
}

/// One request, as often as it must be sent.
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

/// A connection to a registry (or a mirror of it) for one repository.
pub(super) struct Client<'a> {
    agent: Agent,
    pub(super) base: Address,
    scope: String,
    credentials: Credentials,
    allowed_realms: Vec<String>,
    authorization: Mutex<Option<Token>>,
    report: Report<'a>,
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
        scope: String,
        credentials: Credentials,
        allowed_realms: Vec<String>,
        report: Report<'a>,
    ) -> Result<Client<'a>> {
        let tls = TlsConfig::builder().root_certs(crate::host::roots()).build();
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls)
            .user_agent(concat!("brig/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .build()
            .new_agent();
        Ok(Client { agent, base, scope, credentials, allowed_realms, authorization: Mutex::new(None), report })
    }

    /// Sends until there is an answer that is not about tokens, haste or trouble. Any other status is an answer.
    pub(super) fn send(&self, call: &Call<'_>) -> Result<Response<Body>> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let (error, asked) = match self.authorized(call) {
                Ok(response) if !is_trouble(response.status().as_u16()) => return Ok(response),
                Ok(response) => {
                    let asked = response
                        .headers()
                        .get("retry-after")
                        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
                    (refusal(response), asked.map(Duration::from_secs))
                }
                Err(error) if error.retryable() => (error, None),
                Err(error) => return Err(error).doing(|| format!("ask `{}`", self.base.host)),
            };
            let pause = asked.unwrap_or(wait);
            if attempt >= TRIES || pause > LONGEST_WAIT {
                return Err(error).doing(|| format!("ask `{}`", self.base.host)).hint(|| "try again later");
            }
            (self.report)(Event::Note(&format!("{error}; trying again in {:.1} s", pause.as_secs_f32())));
            std::thread::sleep(pause);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Err(Error::new(Kind::Internal, "no answer and no error"))
    }

    /// Sends with what authorization there is; with a better one if that is not enough.
    fn authorized(&self, call: &Call<'_>) -> Result<Response<Body>> {
        let response = self.redirected(call, self.known_authorization())?;
        if response.status().as_u16() != 401 {
            return Ok(response);
        }
        let headers: Vec<&str> =
            response.headers().get_all("www-authenticate").iter().filter_map(|value| value.to_str().ok()).collect();
        let authorization = match best(&headers) {
            None => return Err(self.denied(response)),
            Some(Challenge::Basic) => match &self.credentials {
                Credentials::Password { user, password } => Token {
                    value: format!(
                        "Basic {}",
                        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
                    ),
                    until: Instant::now() + Duration::from_secs(86_400),
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
        let response = self.redirected(call, Some(value))?;
        if response.status().as_u16() == 401 { Err(self.denied(response)) } else { Ok(response) }
    }

    fn known_authorization(&self) -> Option<String> {
        if let Credentials::Bearer(token) = &self.credentials {
            return Some(format!("Bearer {token}"));
        }
        let known = self.authorization.lock().ok()?;
        known.as_ref().filter(|token| token.until > Instant::now()).map(|token| token.value.clone())
    }

    fn denied(&self, response: Response<Body>) -> Error {
        let hint = match self.credentials {
            Credentials::Anonymous => format!("log in first, for example with `skopeo login {}`", self.base.host),
            _ => "check the name and password in your auth file".to_owned(),
        };
        refusal(response).of_kind(Kind::Registry).hint(hint)
    }

    /// Gets a token for our scope.
    fn token(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<Token> {
        let address = check_realm(realm, &self.base, &self.allowed_realms)?;
        let step = || format!("get a token from `{}`", address.host);
        let scope = scope.filter(|scope| scope.starts_with("repository:")).unwrap_or(&self.scope);
        let scope = if scope.contains(self.scope.as_str()) { scope } else { &self.scope };
        let mut fields = vec![("scope", scope.to_owned()), ("client_id", "brig".to_owned())];
        fields.extend(service.map(|service| ("service", service.to_owned())));
        let mut headers = Vec::new();
        let response = if let Credentials::Identity(secret) = &self.credentials {
            fields.extend([("grant_type", "refresh_token".to_owned()), ("refresh_token", secret.clone())]);
            headers.push(("content-type", "application/x-www-form-urlencoded".to_owned()));
            let form = encoded(&fields);
            let payload = Payload::Bytes(form.as_bytes());
            self.once(&Call { method: "POST", address: address.clone(), headers, payload }, None)
        } else {
            let mut authorization = None;
            if let Credentials::Password { user, password } = &self.credentials {
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
        let read = response.body_mut().as_reader().take(LARGEST_TOKEN).read_to_end(&mut bytes);
        read.map_err(unreachable).doing(step)?;
        let wrong = || Error::new(Kind::Registry, "the answer holds no token");
        let answer: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| wrong()).doing(step)?;
        let token =
            answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(wrong).doing(step)?;
        let life = answer.expires_in.map_or(TOKEN_LIFE, Duration::from_secs).max(TOKEN_LIFE);
        // A little early, so that it does not end on the way.
        Ok(Token { value: format!("Bearer {token}"), until: Instant::now() + life * 9 / 10 })
    }

    /// Follows redirects; what is ours to show stays with our host.
    fn redirected(&self, call: &Call<'_>, authorization: Option<String>) -> Result<Response<Body>> {
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
                return Ok(response);
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or_default();
            let next = address.join(location)?;
            if address.scheme == Scheme::Https && next.scheme == Scheme::Http {
                return Err(Error::new(Kind::Registry, format!("it redirects from https to `{next}`")));
            }
            address = next;
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
        let wrong = |cause: ureq::http::Error| Error::new(Kind::Registry, cause.to_string());
        let sent = match &call.payload {
            Payload::Nothing => self.agent.run(request.body(()).map_err(wrong)?),
            Payload::Bytes(bytes) => self.agent.run(request.body(*bytes).map_err(wrong)?),
            Payload::File(file, length) => {
                let mut reader = *file;
                std::io::Seek::rewind(&mut reader).map_err(|cause| Error::os(Kind::Store, cause))?;
                let request = request.header("content-length", length.to_string());
                self.agent.run(request.body(SendBody::from_reader(&mut reader)).map_err(wrong)?)
            }
        };
        sent.map_err(|cause| failed(&cause))
    }
}

/// Too many requests, or the registry's own trouble: worth another try.
fn is_trouble(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// The registry's own words.
pub(super) fn refusal(mut response: Response<Body>) -> Error {
    let status = response.status();
    let mut bytes = Vec::new();
    // Words that cannot be read are left out: the status says the most.
    let _ = response.body_mut().as_reader().take(LONGEST_WORDS).read_to_end(&mut bytes);
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
    match cause {
        ureq::Error::Io(cause) if cause.raw_os_error().is_some() => Error::new(Kind::Registry, cause.to_string()),
        ureq::Error::HostNotFound => {
            Error::new(Kind::Registry, "there is no such host").hint("check the name and the network")
        }
        other => Error::new(Kind::Registry, other.to_string()),
    }
}

/// An error in the middle of a body.
pub(super) fn unreachable(cause: std::io::Error) -> Error {
    Error::new(Kind::Registry, format!("the connection broke: {cause}"))
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
