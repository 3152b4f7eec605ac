//! The certificates that this machine trusts.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

const FILES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// RFC 7468.
const BEGINNING: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Whether `SSL_CERT_FILE` is read.
static CALLER_CHOOSES: AtomicBool = AtomicBool::new(true);

/// In hosted mode the caller must choose neither a file to read nor the trusted authorities.
pub(crate) fn ignore_callers_certificates() {
    CALLER_CHOOSES.store(false, Ordering::Relaxed);
}

/// PEM of `SSL_CERT_FILE`, else of the machine; may contain other text.
pub(crate) fn certificates() -> Option<Vec<u8>> {
    let chosen = std::env::var_os("SSL_CERT_FILE").filter(|_| CALLER_CHOOSES.load(Ordering::Relaxed));
    let chosen = chosen.map(PathBuf::from);
    let mut paths = chosen.into_iter().chain(FILES.map(PathBuf::from));
    paths.find_map(|path| std::fs::read(path).ok().filter(|pem| has_certificate(pem)))
}

pub(crate) fn has_certificate(pem: &[u8]) -> bool {
    pem.windows(BEGINNING.len()).any(|each| each == BEGINNING)
}

/// The machine's certificates and `more`. Without any, Mozilla's list in this program.
pub(crate) fn roots(more: &[Certificate<'static>]) -> RootCerts {
    let mut found = in_pem(&certificates().unwrap_or_default());
    found.extend_from_slice(more);
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&found) }
}

/// Skips other text.
pub(crate) fn in_pem(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificates = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}
