//! The certificate files of the sandbox's programs. Pure.

use super::authority::file_hash;
use crate::files::hash::sha1;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Of Debian, Alpine, Arch and derivatives.
pub(crate) const FOLDER: &str = "/etc/ssl/certs";
/// All certificates, in [`FOLDER`].
pub(crate) const BUNDLE: &str = "ca-certificates.crt";
/// The broker's authority alone, in [`FOLDER`].
pub(crate) const OWN: &str = "brig.pem";

/// [`BUNDLE`] in other distributions.
pub(crate) const BUNDLES: [&str; 3] = [
    "/etc/pki/tls/certs/ca-bundle.crt",     // Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",               // openSUSE
    "/usr/local/share/certs/ca-bundle.crt", // other builds of curl and git
];

/// Variables that replace a program's built-in certificates by a file in [`FOLDER`].
pub(crate) const VARIABLES: [(&str, &str); 3] = [
    ("SSL_CERT_FILE", BUNDLE),      // OpenSSL built elsewhere, Go, rustls, uv
    ("REQUESTS_CA_BUNDLE", BUNDLE), // Python's requests and pip
    ("NODE_EXTRA_CA_CERTS", OWN),   // Node adds it to its own
];

pub(crate) struct Trust {
    /// PEM, without the rest of the machine's file: it may contain a private key.
    pub machine: Vec<u8>,
    /// PEM.
    pub authority: Vec<u8>,
    /// Its file name in OpenSSL's folder.
    pub hashed: Option<String>,
}

/// RFC 7468.
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";
/// The password of every Java key store: it protects nothing.
const PASSWORD: &str = "changeit";

impl Trust {
    pub(crate) fn new(certificate: &[u8], roots: Option<&[u8]>) -> Trust {
        let machine = certificates_in(roots.unwrap_or_default());
        let authority = pem(certificate).into_bytes();
        let hashed = file_hash(certificate).map(|hash| format!("{hash}.0"));
        Trust { machine, authority, hashed }
    }

    pub(crate) fn bundle(&self) -> Vec<u8> {
        [self.machine.as_slice(), &self.authority].concat()
    }

    pub(crate) fn java(&self) -> Vec<u8> {
        let all: Vec<_> = CertificateDer::pem_slice_iter(&self.bundle()).filter_map(Result::ok).collect();
        java_store(&all)
    }
}

/// Keeps the text of each certificate: decoding 150 takes as long as the rest of the broker's start.
fn certificates_in(text: &[u8]) -> Vec<u8> {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let (mut found, mut block) = (Vec::with_capacity(text.len() + 1), None::<Vec<u8>>);
    for line in text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
        match &mut block {
            _ if line == BEGIN => block = Some([BEGIN, b"\n"].concat()),
            Some(lines) if line == END => {
                found.append(lines);
                found.extend_from_slice(END);
                found.push(b'\n');
                block = None;
            }
            Some(lines) if line.iter().all(is_base64) => {
                lines.extend_from_slice(line);
                lines.push(b'\n');
            }
            _ => block = None,
        }
    }
    found
}

/// RFC 7468.
fn pem(certificate: &[u8]) -> String {
    let base64 = STANDARD.encode(certificate);
    let lines: Vec<_> = base64.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    let [begin, end] = [BEGIN, END].map(String::from_utf8_lossy);
    format!("{begin}\n{}\n{end}\n", lines.join("\n"))
}

/// JKS version 2, which every Java reads: trusted certificates, and a digest over all.
fn java_store(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    const MAGIC: u32 = 0xfeed_feed;
    const VERSION: u32 = 2;
    const TRUSTED: u32 = 2;
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_be_bytes());
    let text = |out: &mut Vec<u8>, value: &str| {
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value.as_bytes());
    };
    number(&mut out, MAGIC);
    number(&mut out, VERSION);
    number(&mut out, certificates.len() as u32);
    for (index, certificate) in certificates.iter().enumerate() {
        number(&mut out, TRUSTED);
        text(&mut out, &format!("certificate-{index}"));
        out.extend_from_slice(&0_u64.to_be_bytes()); // when it was added
        text(&mut out, "X.509");
        number(&mut out, certificate.len() as u32);
        out.extend_from_slice(certificate);
    }
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let digest = sha1(&[&password, b"Mighty Aphrodite", &out]); // the salt of JKS
    out.extend_from_slice(&digest);
    out
}

#[cfg(test)]
mod tests {
    use super::super::make_authority;
    use super::*;

    #[test]
    fn the_bundle_has_the_machines_certificates_and_the_authoritys() {
        let made = make_authority(&["a.test"]).unwrap();
        let other = make_authority(&["b.test"]).unwrap();
        let roots = pem(&other.certificate);
        let trust = Trust::new(&made.certificate, Some(roots.trim_end().as_bytes()));
        let all: Vec<_> = CertificateDer::pem_slice_iter(&trust.bundle()).map(Result::unwrap).collect();
        assert_eq!(all, [CertificateDer::from(other.certificate), CertificateDer::from(made.certificate)]);
    }

    #[test]
    fn nothing_but_certificates_is_shown_of_the_machines_file() {
        let made = make_authority(&["a.test"]).unwrap();
        let certificate = pem(&make_authority(&["b.test"]).unwrap().certificate);
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let begun = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        let other = format!("{begun}a note: of the caller\n-----END CERTIFICATE-----\n{begun}{key}");
        let text = format!("note\n{other}{key}{}{begun}", certificate.replace('\n', "\r\n"));
        let trust = Trust::new(&made.certificate, Some(text.as_bytes()));
        assert_eq!(String::from_utf8(trust.machine).unwrap(), certificate);
    }

    #[test]
    fn javas_own_tool_reads_the_store() {
        let made = make_authority(&["a.test"]).unwrap();
        let store = Trust::new(&made.certificate, None).java();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cacerts");
        std::fs::write(&path, &store).unwrap();
        let mut keytool = std::process::Command::new("keytool");
        let shown =
            keytool.args(["-J-XX:-UsePerfData", "-list", "-storepass", PASSWORD, "-keystore"]).arg(&path).output();
        let Ok(shown) = shown else { return crate::sys::skip("needs keytool") };
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(
            shown.status.success() && text.contains("certificate-0") && text.contains("trustedCertEntry"),
            "{text}"
        );
    }
}
