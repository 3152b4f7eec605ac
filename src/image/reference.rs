//! Image references: `[host[:port]/]name[:tag][@digest]`, as Docker reads them. Pure.

use super::Digest;
use crate::error::{Error, Kind, Result};
use std::fmt;
use std::str::FromStr;

const DEFAULT_HOST: &str = "docker.io";
/// distribution-spec, "Pulling manifests".
const LONGEST_TAG: usize = 128;
/// Docker's limit of a whole name with its host.
const LONGEST_NAME: usize = 255;

/// Host and repository, and a tag or a digest or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The host with its port, such as `docker.io` or `localhost:5000`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Such as `library/debian`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, if one is written or implied.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the reference is pinned.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The name without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    /// The same repository, pinned to `digest`.
    pub fn pinned(&self, digest: Digest) -> Reference {
        Reference { digest: Some(digest), ..self.clone() }
    }

    /// A pinned name means nothing for its tag.
    pub(crate) fn kept(&self) -> Reference {
        let tag = self.tag.clone().filter(|_| self.digest.is_none());
        Reference { tag, ..self.clone() }
    }

    /// Without Docker's host and `library/`.
    pub fn familiar(&self) -> String {
        let full = self.to_string();
        let short = full.strip_prefix("docker.io/").map(|rest| rest.strip_prefix("library/").unwrap_or(rest));
        short.unwrap_or(&full).to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(out, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(out, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reference> {
        read(text).map_err(|error| {
            error
                .doing(format!("read the reference `{}`", text.escape_debug()))
                .hint("write it as [HOST[:PORT]/]NAME[:TAG][@sha256:DIGITS], all in lower case but for the tag")
        })
    }
}

fn read(text: &str) -> Result<Reference> {
    let wrong = |why: String| Err(Error::new(Kind::Usage, why));
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().map_err(|error| error.of_kind(Kind::Usage))?)),
        None => (text, None),
    };
    // A colon after the last slash starts the tag; one before it is the host's port.
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    if let Some(tag) = tag
        && !is_tag(tag)
    {
        return wrong(format!("`{}` is not a tag", tag.escape_debug()));
    }
    let (host, repository) = match path.split_once('/') {
        Some((first, rest)) if is_host_like(first) => (first, rest.to_owned()),
        _ => (DEFAULT_HOST, path.to_owned()),
    };
    let host = if host == "index.docker.io" { DEFAULT_HOST } else { host };
    let repository =
        if host == DEFAULT_HOST && !repository.contains('/') { format!("library/{repository}") } else { repository };
    if !is_host(host) {
        return wrong(format!("`{}` is not a host name", host.escape_debug()));
    }
    if host.len() + repository.len() >= LONGEST_NAME {
        return wrong(format!("a name has at most {LONGEST_NAME} characters"));
    }
    if let Some(part) = repository.split('/').find(|part| !is_component(part)) {
        return wrong(format!("`{}` is not a part of a name", part.escape_debug()));
    }
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, None) => Some("latest".to_owned()),
        (None, Some(_)) => None,
    };
    Ok(Reference { host: host.to_owned(), repository, tag, digest })
}

/// Docker's rule: a host cannot be a Hub user's name.
fn is_host_like(part: &str) -> bool {
    part.contains('.') || part.contains(':') || part == "localhost"
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            if !address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':') || address.is_empty() {
                return false;
            }
            ("v6", port.strip_prefix(':').or(port.is_empty().then_some("0")))
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("0")),
        },
    };
    let label = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.split('.').all(label) && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

pub(crate) fn is_tag(tag: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !tag.is_empty() && tag.len() <= LONGEST_TAG && tag.bytes().all(allowed) && !tag.starts_with(['.', '-'])
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`, distribution-spec.
fn is_component(part: &str) -> bool {
    let bytes = part.as_bytes();
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !word(*first) || !word(*last) {
        return false;
    }
    let separators = part.split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit());
    separators
        .filter(|run| !run.is_empty())
        .all(|run| matches!(run, "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let pinned = format!("debian@{digest}");
        let both = format!("ghcr.io/a/b:v1@{digest}");
        let rows: &[(&str, &str)] = &[
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("index.docker.io/debian", "docker.io/library/debian:latest"),
            ("me/tool", "docker.io/me/tool:latest"),
            ("localhost/tool", "localhost/tool:latest"),
            ("localhost:5000/a/b:1.0-RC_2", "localhost:5000/a/b:1.0-RC_2"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("ghcr.io/a/b__c/d-e--f.g", "ghcr.io/a/b__c/d-e--f.g:latest"),
            (&pinned, &format!("docker.io/library/debian@{digest}")),
            (&both, &both),
        ];
        for (text, full) in rows {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), *full);
        }
        assert_eq!("debian".parse::<Reference>().unwrap().familiar(), "debian:latest");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "Debian", "a//b", "/a", "a/", "a:", "a:-x", "a@sha256:12", "../x", "a/../b", "a b", "h.:x/a"] {
            assert_eq!(text.parse::<Reference>().unwrap_err().kind(), Kind::Usage, "{text:?}");
        }
        assert!(format!("a:{}", "x".repeat(129)).parse::<Reference>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_what_is_read_prints_back(text in "\\PC{0,60}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference.clone());
                prop_assert!(!reference.to_string().contains(".."));
            }
        }
    }
}
