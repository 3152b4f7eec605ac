//! How a sandbox gets to trust the authority of its broker: files where programs look for certificates, and variables for those that look nowhere. Pure.

use super::system::System;
use crate::egress::{Broker, trust_files};
use crate::spec::root::{Attributes, Shown, Step};
use std::ffi::OsString;
use std::path::Path;

/// Where Debian, Alpine and what is built for them look.
const FOLDER: &str = "/etc/ssl/certs";
/// The directory of the scratch file system for what is changed there.
const CHANGES: &str = "certificates";

/// Programs that bring certificates of their own, and the variable by which each takes others: a file below the folder.
const VARIABLES: [(&str, &str); 3] = [
    ("SSL_CERT_FILE", "ca-certificates.crt"), // OpenSSL built elsewhere, Go, rustls, uv
    ("REQUESTS_CA_BUNDLE", "ca-certificates.crt"), // Python's requests and pip
    ("NODE_EXTRA_CA_CERTS", "brig.pem"),      // Node adds it to its own
];

/// The steps that make the files. In a root of ours the host's folder is shown copy-on-write, and frozen again.
///
/// `owns_all` says whether files of the machine's root can be replaced in the copy: an ordinary user's view has no power over the folder of Java's.
pub(super) fn steps(broker: &Broker, system: Option<&System>, owns_all: bool) -> Vec<Step> {
    let folder = Path::new(FOLDER);
    let on_host = system.is_some_and(|system| system.settings.iter().any(|each| each == folder));
    let java = system.is_none_or(|_| owns_all && folder.join("java/cacerts").exists());
    let mut steps = Vec::new();
    if on_host {
        steps.push(Step::Overlay {
            lower: folder.to_owned(),
            changes: CHANGES,
            at: folder.to_owned(),
            attributes: Attributes::WRITABLE,
            shown: Shown::Inside,
        });
    }
    let files = trust_files(&broker.certificate, broker.roots.as_deref().map(Vec::as_slice), java);
    steps.extend(files.into_iter().map(|file| Step::File {
        at: folder.join(file.name),
        content: file.content,
        mode: 0o644,
    }));
    if on_host {
        steps.push(Step::Freeze { at: folder.to_owned(), attributes: Attributes::READ_ONLY });
    }
    steps
}

/// The variables.
pub(super) fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    VARIABLES.into_iter().map(|(name, file)| (name.into(), Path::new(FOLDER).join(file).into()))
}
