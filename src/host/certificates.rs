//! The certificates that this machine trusts.

use std::path::PathBuf;

/// Where they are on the usual distributions, in one file.
const PLACES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The line by which one begins (RFC 7468).
const BEGINNING: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The machine's certificates in PEM form, or those of `SSL_CERT_FILE`; `None` where there are none.
pub(crate) fn certificates() -> Option<Vec<u8>> {
    let chosen = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut paths = chosen.into_iter().chain(PLACES.map(PathBuf::from));
    let has_one = |pem: &Vec<u8>| pem.windows(BEGINNING.len()).any(|each| each == BEGINNING);
    paths.find_map(|path| std::fs::read(path).ok().filter(has_one))
}
