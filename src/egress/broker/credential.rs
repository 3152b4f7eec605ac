//! The scope of a secret: host, header, methods and paths. Pure.

use super::super::http::{Content, Head};
use super::super::rule::{Host, Rule};
use super::request::another_request;
use super::target::unclear;
use crate::error::{Error, Kind, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::path::Path;

const DEFAULT_PORT: u16 = 443;
const PLACEHOLDER: &str = "{}";
const LONGEST_FILE: u64 = 1 << 20;

/// Headers that determine how a request is read or routed: a secret never goes into one.
const FORBIDDEN: [&str; 10] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// How requests to a host get a secret that the sandbox never has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// The secret's name.
    pub name: String,
    host: String,
    port: u16,
    form: Form,
    methods: Vec<String>,
    paths: Vec<String>,
    /// DER.
    trusted: Vec<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Form {
    /// The value is between `before` and `after`.
    Header { name: String, before: String, after: String },
    /// `Authorization: Basic` with this user (RFC 7617).
    Basic { user: String },
}

/// A credential as text in a profile.
#[derive(Clone, Debug, Default)]
pub struct Wording<'words> {
    /// `HOST[:PORT]`.
    pub host: &'words str,
    /// `Name: text with {} in it`; the default without `basic` is `Authorization: Bearer {}`.
    pub header: Option<&'words str>,
    /// The user of basic authentication; the value is the password.
    pub basic: Option<&'words str>,
    /// Empty means all methods.
    pub methods: &'words [String],
    /// A final `*` stands for any rest. Empty means all paths.
    pub paths: &'words [String],
    /// A file of certificates (PEM) that are trusted for this host besides the system's.
    pub ca: Option<&'words Path>,
}

impl Credential {
    /// Parses a credential.
    pub fn new(name: &str, words: &Wording<'_>) -> Result<Credential> {
        read(name, words).map_err(|error| error.doing(format!("read `secrets.{name}`")))
    }

    /// In canonical form.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn target(&self) -> Host {
        Host::Name(self.host.clone())
    }

    /// The rule that reaches the host if no other rule does.
    pub fn rule(&self) -> Result<Rule> {
        Rule::parse(&format!("{}:{}", self.host, self.port))
    }

    pub(super) fn trusted(&self) -> impl Iterator<Item = CertificateDer<'static>> + '_ {
        self.trusted.iter().map(|each| CertificateDer::from(each.clone()))
    }

    pub(in crate::egress) fn header(&self) -> &str {
        match &self.form {
            Form::Header { name, .. } => name,
            Form::Basic { .. } => "Authorization",
        }
    }

    pub(in crate::egress) fn render(&self, value: &[u8]) -> Vec<u8> {
        match &self.form {
            Form::Header { before, after, .. } => [before.as_bytes(), value, after.as_bytes()].concat(),
            Form::Basic { user } => {
                let pair = [user.as_bytes(), b":", value].concat();
                format!("Basic {}", STANDARD.encode(pair)).into_bytes()
            }
        }
    }

    /// Returns why the request does not get the secret.
    pub(in crate::egress) fn check_request(&self, head: &Head) -> Option<String> {
        let name = &self.name;
        if !self.methods.is_empty() && !self.methods.contains(&head.method) {
            return Some(format!("`{name}` is for {}, not for {}", self.methods.join(" "), head.method));
        }
        if self.is_limited()
            && let Some(header) = another_request(head)
        {
            return Some(format!("`{name}` is for some requests, and `{header}` could make this one another"));
        }
        // Servers and proxies differ about content here, and could read the rest of it as another request.
        if self.is_limited() && matches!(head.method.as_str(), "GET" | "HEAD") && head.content != Content::Length(0) {
            return Some(format!(
                "`{name}` is for some requests, and a {} with content could hide another",
                head.method
            ));
        }
        if self.paths.is_empty() {
            return None;
        }
        let path = head.target.split('?').next().unwrap_or_default();
        if let Some(why) = unclear(path) {
            return Some(format!("`{name}` is for some paths, and this one {why}"));
        }
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => path.starts_with(beginning),
            None => path == pattern,
        };
        match self.paths.iter().any(fits) {
            true => None,
            false => Some(format!("`{name}` is for {}, not for {path}", self.paths.join(" "))),
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        !(self.methods.is_empty() && self.paths.is_empty())
    }

    /// Whether each request that gets `other` gets this one in the same header.
    fn covers(&self, other: &Credential) -> bool {
        let header = |each: &Credential| each.header().to_ascii_lowercase();
        (&self.host, self.port, header(self)) == (&other.host, other.port, header(other)) && !self.is_limited()
    }
}

/// Rejects two credentials for one header of the same requests.
pub(crate) fn check_credentials(all: &[Credential]) -> Result<()> {
    for (index, one) in all.iter().enumerate() {
        if let Some(other) = all[..index].iter().find(|other| other.covers(one) || one.covers(other)) {
            return Err(Error::new(
                Kind::Secret,
                format!("`{}` and `{}` are for the same header of `{}:{}`", other.name, one.name, one.host, one.port),
            )
            .hint("give each its own paths, or leave one out"));
        }
    }
    Ok(())
}

/// RFC 9110, 5.5.
pub(crate) fn fits_a_header(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

fn read(name: &str, words: &Wording<'_>) -> Result<Credential> {
    let wrong = |cause: String, hint: &str| Err(Error::new(Kind::Secret, cause).hint(hint.to_owned()));
    let text = if words.host.contains(':') { words.host.to_owned() } else { format!("{}:{DEFAULT_PORT}", words.host) };
    let rule = Rule::parse(&text)?;
    let (Some(Host::Name(host)), [port]) = (rule.exact(), rule.ports()) else {
        return wrong(
            format!("a broker's host is one name with one port, not `{}`", words.host.escape_debug()),
            "write it like `api.example.com` or `api.example.com:8443`",
        );
    };
    let form = match (words.header, words.basic) {
        (Some(_), Some(_)) => return wrong("`header` and `basic` exclude each other".into(), "leave one of them out"),
        (None, Some(user)) if user.contains(':') || !fits_a_header(user.as_bytes()) => {
            return wrong("a user of basic authentication has no `:`".into(), "give the user's name");
        }
        (None, Some(user)) => Form::Basic { user: user.to_owned() },
        (header, None) => header_form(header.unwrap_or("Authorization: Bearer {}"))?,
    };
    for method in words.methods {
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') {
            return wrong(format!("`{}` is not a method", method.escape_debug()), "write it like `GET`");
        }
    }
    for path in words.paths {
        let plain = path.strip_suffix('*').unwrap_or(path);
        if !plain.starts_with('/') || plain.contains(['*', '?', '#', ' ']) || unclear(plain).is_some() {
            return wrong(
                format!("`{}` is not a path", path.escape_debug()),
                "write it like `/v1/models` or `/v1/*`; a `*` may stand at the end only",
            );
        }
    }
    Ok(Credential {
        name: name.to_owned(),
        host,
        port: *port,
        form,
        methods: words.methods.to_vec(),
        paths: words.paths.to_vec(),
        trusted: words.ca.map(certificates).transpose()?.unwrap_or_default(),
    })
}

fn header_form(text: &str) -> Result<Form> {
    let wrong = |cause: String| {
        Err(Error::new(Kind::Secret, cause).hint("write it like `Authorization: Bearer {}` or `X-Api-Key: {}`"))
    };
    let Some((name, value)) = text.split_once(':') else { return wrong("the header has no `:`".into()) };
    let token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || !name.bytes().all(token) {
        return wrong(format!("`{}` is not a header", name.escape_debug()));
    }
    if FORBIDDEN.contains(&name.to_ascii_lowercase().as_str()) {
        return wrong(format!("`{name}` controls how a request is read: a secret cannot go into it"));
    }
    let value = value.trim();
    let Some((before, after)) = value.split_once(PLACEHOLDER) else {
        return wrong("the header has no `{}` where the secret goes".into());
    };
    if after.contains(PLACEHOLDER) || !fits_a_header(value.as_bytes()) {
        return wrong("the header has more than one `{}`, or letters that no header has".into());
    }
    Ok(Form::Header { name: name.to_owned(), before: before.to_owned(), after: after.to_owned() })
}

fn certificates(path: &Path) -> Result<Vec<Vec<u8>>> {
    let step = || format!("read the certificates in `{}`", path.display());
    let pem = crate::files::read_bounded(path, LONGEST_FILE).map_err(|error| error.of_kind(Kind::Secret))?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .map(|each| each.map(|certificate| certificate.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|cause| Error::new(Kind::Secret, cause.to_string()).doing(step()))?;
    match all.is_empty() {
        false => Ok(all),
        true => {
            Err(Error::new(Kind::Secret, "it contains no certificate").doing(step()).hint("name a file in PEM form"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(words: &Wording<'_>) -> Result<Credential> {
        Credential::new(
            "KEY",
            &Wording { host: if words.host.is_empty() { "a.test" } else { words.host }, ..words.clone() },
        )
    }

    fn head(method: &str, target: &str) -> Head {
        Head {
            method: method.into(),
            target: target.into(),
            host: None,
            content: Content::Length(0),
            websocket: false,
            old: false,
            fields: Vec::new(),
        }
    }

    #[test]
    fn a_value_goes_where_the_form_says() {
        let check = |header, basic, expected: (&str, &str)| {
            let made = credential(&Wording { header, basic, ..Wording::default() }).unwrap();
            let text = String::from_utf8(made.render(b"v4lue")).unwrap();
            assert_eq!((made.header(), text.as_str()), expected);
        };
        check(None, None, ("Authorization", "Bearer v4lue"));
        check(Some("X-Api-Key: {}"), None, ("X-Api-Key", "v4lue"));
        check(Some("Authorization: token {}; x"), None, ("Authorization", "token v4lue; x"));
        check(None, Some("git"), ("Authorization", "Basic Z2l0OnY0bHVl"));
    }

    #[test]
    fn what_is_no_credential_says_why() {
        let check = |words: &Wording<'_>, expected: &str| {
            let error = credential(words).unwrap_err().to_string();
            assert!(error.contains(expected), "{words:?}: {error}");
        };
        let words = Wording::default;
        check(&Wording { host: "*.a.test", ..words() }, "one name with one port");
        check(&Wording { host: "a.test:80,443", ..words() }, "one name with one port");
        check(&Wording { host: "10.0.0.1", ..words() }, "one name with one port");
        check(&Wording { header: Some("Authorization"), ..words() }, "no `:`");
        check(&Wording { header: Some("Authorization: x"), ..words() }, "no `{}`");
        check(&Wording { header: Some("Host: {}"), ..words() }, "how a request is read");
        check(&Wording { header: Some("X: {}{}"), ..words() }, "more than one");
        check(&Wording { header: Some("X: {}"), basic: Some("x"), ..words() }, "exclude each other");
        check(&Wording { basic: Some("a:b"), ..words() }, "no `:`");
        check(&Wording { methods: &["get".into()], ..words() }, "is not a method");
        check(&Wording { paths: &["v1".into()], ..words() }, "is not a path");
        check(&Wording { paths: &["/a*b".into()], ..words() }, "is not a path");
        check(&Wording { ca: Some(Path::new("/dev/null")), ..words() }, "it contains no certificate");
    }

    #[test]
    fn methods_and_paths_are_taken_by_the_letter() {
        let (methods, paths) = (["GET".to_owned()], ["/v1/*".to_owned(), "/models".to_owned()]);
        let made = credential(&Wording { methods: &methods, paths: &paths, ..Wording::default() }).unwrap();
        let check = |method, target, words: Option<&str>| match (made.check_request(&head(method, target)), words) {
            (None, None) => {}
            (Some(why), Some(words)) if why.contains(words) => {}
            (found, _) => panic!("{method} {target}: {found:?}"),
        };
        check("GET", "/v1/x", None);
        check("GET", "/v1/x?a=/../b", None);
        check("GET", "/models", None);
        check("GET", "/models?x", None);
        check("GET", "/v1/a/", None);
        check("POST", "/v1/x", Some("is for GET, not for POST"));
        check("GET", "/admin", Some("not for /admin"));
        check("GET", "/models/x", Some("not for /models/x"));
        for target in
            ["/v1/../admin", "/v1/%2e%2e/admin", "/v1//x", "/v1/.", "/v1/%2fx", "/v1/a;b", "/v1\\x", "/v1/%252e"]
        {
            check("GET", target, Some("and this one"));
        }
    }

    #[test]
    fn where_methods_or_paths_count_get_and_head_have_no_content() {
        let paths = ["/v1/*".to_owned()];
        let check = |paths: &[String], method, content, expected: bool| {
            let made = credential(&Wording { paths, ..Wording::default() }).unwrap();
            let why = made.check_request(&Head { content, ..head(method, "/v1/x") });
            assert_eq!(why.is_some_and(|why| why.contains("with content")), expected, "{method}");
        };
        for method in ["GET", "HEAD"] {
            check(&paths, method, Content::Length(3), true);
            check(&paths, method, Content::Chunked, true);
            check(&paths, method, Content::Length(0), false);
            check(&[], method, Content::Length(3), false);
        }
        check(&paths, "POST", Content::Length(3), false);
    }

    #[test]
    fn where_methods_or_paths_count_no_header_may_name_others() {
        let (methods, paths) = (["GET".to_owned()], ["/v1/*".to_owned()]);
        let check = |methods: &[String], paths: &[String], is_refused: bool| {
            let made = credential(&Wording { methods, paths, ..Wording::default() }).unwrap();
            for name in ["X-HTTP-Method-Override", "X-Method-Override"] {
                let fields = vec![(name.to_owned(), "/admin".to_owned())];
                let why = made.check_request(&Head { fields, ..head("GET", "/v1/x") });
                assert_eq!(why.is_some_and(|why| why.contains("could make this one another")), is_refused, "{name}");
            }
        };
        check(&methods, &[], true);
        check(&[], &paths, true);
        check(&methods, &paths, true);
        check(&[], &[], false);
    }

    #[test]
    fn two_for_the_same_header_are_refused() {
        let paths = ["/x".to_owned()];
        let all = credential(&Wording::default()).unwrap();
        let some = credential(&Wording { paths: &paths, ..Wording::default() }).unwrap();
        let other = credential(&Wording { header: Some("X-Key: {}"), ..Wording::default() }).unwrap();
        assert!(check_credentials(&[all.clone(), some.clone()]).is_err());
        assert!(check_credentials(&[some.clone(), all.clone()]).is_err());
        check_credentials(&[all, other]).unwrap();
    }
}
