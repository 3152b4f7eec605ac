//! What a sandbox gets to know of its authority: files in which programs look for certificates. Pure.

use super::authority::file_hash;
use crate::files::hash::sha1;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// A file of certificates.
pub(crate) struct TrustFile {
    /// Its path below /etc/ssl/certs.
    pub name: String,
    /// What is in it.
    pub content: Vec<u8>,
}

/// The password of every store of Java's; it protects nothing and is in the manuals.
const PASSWORD: &str = "changeit";

/// The files below /etc/ssl/certs: the bundle, the authority alone, the authority as OpenSSL finds it in a folder, and the store of Java's where
/// `java` says that there is one.
pub(crate) fn trust_files(certificate: &[u8], roots: Option<&[u8]>, java: bool) -> Vec<TrustFile> {
    let own = pem(certificate);
    let mut bundle = match roots {
        Some(roots) => roots.to_vec(),
        None => Vec::new(),
    };
    if !bundle.is_empty() && !bundle.ends_with(b"\n") {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(own.as_bytes());
    let mut files = vec![
        TrustFile { name: "ca-certificates.crt".into(), content: bundle.clone() },
        TrustFile { name: "brig.pem".into(), content: own.clone().into_bytes() },
    ];
    files.extend(file_hash(certificate).map(|hash| TrustFile { name: format!("{hash}.0"), content: own.into_bytes() }));
    if java {
        let all: Vec<_> = CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok).collect();
        files.push(TrustFile { name: "java/cacerts".into(), content: java_store(&all) });
    }
    files
}

/// A certificate as text (RFC 7468).
fn pem(certificate: &[u8]) -> String {
    let base64 = STANDARD.encode(certificate);
    let lines: Vec<_> = base64.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// A key store in Java's oldest form (JKS, version 2), which every Java reads: entries of trusted certificates, and a digest over all.
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
    let digest = sha1(&[&password, b"Mighty Aphrodite", &out]); // the form's own salt
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
        let files = trust_files(&made.certificate, Some(roots.trim_end().as_bytes()), true);
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((names[0], names[1], names[3]), ("ca-certificates.crt", "brig.pem", "java/cacerts"));
        let all: Vec<_> = CertificateDer::pem_slice_iter(&files[0].content).map(Result::unwrap).collect();
        assert_eq!(all, [CertificateDer::from(other.certificate), CertificateDer::from(made.certificate)]);
    }

    #[test]
    fn javas_own_tool_reads_the_store() {
        let made = make_authority(&["a.test"]).unwrap();
        let files = trust_files(&made.certificate, None, true);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cacerts");
        std::fs::write(&path, &files[3].content).unwrap();
        let mut keytool = std::process::Command::new("keytool");
        let shown = keytool.args(["-list", "-storepass", PASSWORD, "-keystore"]).arg(&path).output();
        let Ok(shown) = shown else { return crate::sys::skip("needs keytool") };
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(
            shown.status.success() && text.contains("certificate-0") && text.contains("trustedCertEntry"),
            "{text}"
        );
    }
}
