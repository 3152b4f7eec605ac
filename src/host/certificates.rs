//! The certificates that this machine trusts.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Where they are on the usual distributions, in one file.
const PLACES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The line by which one begins (RFC 7468).
const BEGINNING: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Whether `SSL_CERT_FILE` counts.
static CALLER_CHOOSES: AtomicBool = AtomicBool::new(true);

/// From now on `SSL_CERT_FILE` names nothing. In hosted mode the caller may not have the program read a file, or choose whom it trusts.
pub(crate) fn ignore_callers_certificates() {
    CALLER_CHOOSES.store(false, Ordering::Relaxed);
}

/// The machine's certificates in PEM form, or those of `SSL_CERT_FILE`; `None` where there are none. The file may contain something else, too.
pub(crate) fn certificates() -> Option<Vec<u8>> {
    let chosen = std::env::var_os("SSL_CERT_FILE").filter(|_| CALLER_CHOOSES.load(Ordering::Relaxed));
    let chosen = chosen.map(PathBuf::from);
    let mut paths = chosen.into_iter().chain(PLACES.map(PathBuf::from));
    paths.find_map(|path| std::fs::read(path).ok().filter(|pem| has_certificate(pem)))
}

/// Whether there is a certificate in PEM form.
pub(crate) fn has_certificate(pem: &[u8]) -> bool {
    pem.windows(BEGINNING.len()).any(|each| each == BEGINNING)
}

/// Whom a TLS client of ours trusts: the machine's certificates and `more`; where there are none at all, those that Mozilla trusts
/// and that come with the program.
pub(crate) fn roots(more: &[Certificate<'static>]) -> RootCerts {
    let mut found = in_pem(&certificates().unwrap_or_default());
    found.extend_from_slice(more);
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&found) }
}

/// The certificates of a text in PEM form; what else is in it is passed over.
pub(crate) fn in_pem(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificates = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}
