//! A certificate authority for one sandbox: X.509 v3 (RFC 5280) with ECDSA on P-256 (RFC 5480, RFC 5758).
//!
//! Written by hand: two kinds of certificates do not justify a library.

use super::der::{
    OCTET_STRING, SET, UTC_TIME, UTF8_STRING, bits, implicit, integer, object, sequence, tagged, value, yes,
};
use crate::error::{Error, Kind, Result};
use crate::files::hash::sha1;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use std::time::{Duration, SystemTime};

/// Validity begins in the past: clocks differ.
const EARLIER: Duration = Duration::from_secs(24 * 3600);
/// Longer than any sandbox runs. Each start makes a new authority.
const GOOD_FOR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The longest common name (RFC 5280, ub-common-name).
const LONGEST_NAME: usize = 64;

// Encoded object identifiers.
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const SUBJECT_KEY: &[u8] = &[0x55, 0x1d, 14];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
const AUTHORITY_KEY: &[u8] = &[0x55, 0x1d, 35];
const EXTENDED_USAGE: &[u8] = &[0x55, 0x1d, 37];
const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];

/// The certificate is public; the key is for the gateway alone.
pub(crate) struct NewAuthority {
    /// DER.
    pub certificate: Vec<u8>,
    /// PKCS#8.
    pub key: Vec<u8>,
}

pub(crate) struct Authority {
    key: EcdsaKeyPair,
    name: Vec<u8>,
    certificate: Vec<u8>,
}

/// Its certificates are valid only for these hosts and the names below them. Clients refuse other names even if the key
/// is lost (RFC 5280, 4.2.1.10).
pub(crate) fn make(hosts: &[&str]) -> Result<NewAuthority> {
    let pkcs8 = new_key()?;
    let key = read_key(&pkcs8)?;
    let mark: String = random::<4>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = named(&format!("brig sandbox {mark}"));
    let permitted: Vec<u8> = hosts.iter().flat_map(|host| sequence(&[&implicit(2, host.as_bytes())])).collect();
    let extensions = [
        extension(BASIC_CONSTRAINTS, true, &sequence(&[&yes(), &integer(&[0])])),
        extension(KEY_USAGE, true, &bits(1, &[0b0000_0110])), // keyCertSign, cRLSign
        extension(SUBJECT_KEY, false, &value(OCTET_STRING, &fingerprint(&key))),
        extension(NAME_CONSTRAINTS, true, &sequence(&[&tagged(0, &permitted)])),
    ];
    let certificate = sign(&key, &name, &name, &key, &extensions.concat())?;
    Ok(NewAuthority { certificate, key: pkcs8 })
}

/// The name of the certificate's file in OpenSSL's folder, without the final number: the first four bytes of the
/// canonical subject's SHA-1 (X509_NAME_hash(3)).
pub(crate) fn file_hash(certificate: &[u8]) -> Option<String> {
    let text = common_name(certificate)?;
    // OpenSSL's x509_name_canon: lower-case UTF-8, single blanks, no outer sequence. Our names have no other letters.
    let attribute = sequence(&[&object(COMMON_NAME), &value(UTF8_STRING, text.to_ascii_lowercase().as_bytes())]);
    let digest = sha1(&[&value(SET, &attribute)]);
    Some(format!("{:08x}", u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])))
}

/// Finds the first common name, the issuer's.
fn common_name(certificate: &[u8]) -> Option<&str> {
    let mark = object(COMMON_NAME);
    let at = certificate.windows(mark.len()).position(|each| each == mark)? + mark.len();
    let length = usize::from(*certificate.get(at + 1)?);
    std::str::from_utf8(certificate.get(at + 2..at + 2 + length)?).ok()
}

impl Authority {
    pub(crate) fn new(made: NewAuthority) -> Result<Authority> {
        let name = common_name(&made.certificate).ok_or_else(|| wrong("the authority has no name"))?;
        Ok(Authority { key: read_key(&made.key)?, name: named(name), certificate: made.certificate })
    }

    /// Returns the chain (DER) and the key (PKCS#8).
    pub(crate) fn issue(&self, host: &str) -> Result<([Vec<u8>; 2], Vec<u8>)> {
        let pkcs8 = new_key()?;
        let key = read_key(&pkcs8)?;
        let subject = named(if host.len() <= LONGEST_NAME { host } else { "brig" });
        let extensions = [
            extension(KEY_USAGE, true, &bits(7, &[0b1000_0000])), // digitalSignature
            extension(EXTENDED_USAGE, false, &sequence(&[&object(SERVER)])),
            extension(ALTERNATIVE_NAME, false, &sequence(&[&implicit(2, host.as_bytes())])),
            extension(SUBJECT_KEY, false, &value(OCTET_STRING, &fingerprint(&key))),
            extension(AUTHORITY_KEY, false, &sequence(&[&implicit(0, &fingerprint(&self.key))])),
        ];
        let leaf = sign(&self.key, &self.name, &subject, &key, &extensions.concat())?;
        Ok(([leaf, self.certificate.clone()], pkcs8))
    }
}

fn wrong(words: &str) -> Error {
    Error::new(Kind::Egress, words.to_owned()).doing("make a certificate")
}

fn random<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    SystemRandom::new().fill(&mut bytes).map_err(|_| wrong("the kernel gives no randomness"))?;
    Ok(bytes)
}

fn new_key() -> Result<Vec<u8>> {
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
    Ok(made.map_err(|_| wrong("no key can be made"))?.as_ref().to_vec())
}

fn read_key(pkcs8: &[u8]) -> Result<EcdsaKeyPair> {
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &SystemRandom::new())
        .map_err(|cause| wrong(&format!("the key is invalid: {cause}")))
}

/// RFC 5280, 4.2.1.2, method 1.
fn fingerprint(key: &EcdsaKeyPair) -> Vec<u8> {
    sha1(&[key.public_key().as_ref()]).to_vec()
}

fn named(common_name: &str) -> Vec<u8> {
    let attribute = sequence(&[&object(COMMON_NAME), &value(UTF8_STRING, common_name.as_bytes())]);
    sequence(&[&value(SET, &attribute)])
}

fn extension(identifier: &[u8], is_critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if is_critical { yes() } else { Vec::new() };
    sequence(&[&object(identifier), &critical, &value(OCTET_STRING, content)])
}

/// RFC 5280's form for a time before 2050.
fn utc(time: SystemTime) -> Vec<u8> {
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).skip(2).collect();
    value(UTC_TIME, format!("{digits}Z").as_bytes())
}

fn sign(by: &EcdsaKeyPair, issuer: &[u8], subject: &[u8], of: &EcdsaKeyPair, extensions: &[u8]) -> Result<Vec<u8>> {
    let algorithm = sequence(&[&object(ECDSA_WITH_SHA256)]);
    let now = SystemTime::now();
    let key = sequence(&[&sequence(&[&object(EC_PUBLIC_KEY), &object(P256)]), &bits(0, of.public_key().as_ref())]);
    let mut serial = random::<16>()?;
    serial[0] = serial[0] & 0x7f | 0x40; // positive, and of one length
    let content = sequence(&[
        &tagged(0, &integer(&[2])), // version 3
        &integer(&serial),
        &algorithm,
        issuer,
        &sequence(&[&utc(now - EARLIER), &utc(now + GOOD_FOR)]),
        subject,
        &key,
        &tagged(3, &sequence(&[extensions])),
    ]);
    let signature = by.sign(&SystemRandom::new(), &content).map_err(|_| wrong("it cannot be signed"))?;
    Ok(sequence(&[&content, &algorithm, &bits(0, signature.as_ref())]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use std::sync::Arc;

    /// The verdict of a client that trusts the authority and expects `asked`.
    fn verified(permitted: &[&str], host: &str, asked: &str) -> Result<(), String> {
        let authority = Authority::new(make(permitted).unwrap()).unwrap();
        let ([leaf, root], _) = authority.issue(host).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(root)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let name = ServerName::try_from(asked.to_owned()).unwrap();
        let leaf = CertificateDer::from(leaf);
        let done = verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now());
        done.map(|_| ()).map_err(|cause| cause.to_string())
    }

    #[test]
    fn its_certificates_are_good_for_its_hosts_and_no_others() {
        verified(&["api.example.com", "b.test"], "api.example.com", "api.example.com").unwrap();
        assert!(verified(&["a.test"], "a.test", "b.test").unwrap_err().contains("not valid for name"));
        let error = verified(&["a.test"], "b.test", "b.test").unwrap_err();
        assert!(error.contains("NameConstraint"), "{error}");
    }

    #[test]
    fn openssl_reads_them_and_finds_them_by_the_same_name() {
        let made = make(&["a.test"]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.der");
        std::fs::write(&path, &made.certificate).unwrap();
        let shown = std::process::Command::new("openssl")
            .args([
                "x509",
                "-inform",
                "der",
                "-noout",
                "-subject_hash",
                "-ext",
                "nameConstraints,basicConstraints,keyUsage",
                "-in",
            ])
            .arg(&path)
            .output();
        let Ok(shown) = shown else { return crate::sys::skip("needs openssl") };
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains(&file_hash(&made.certificate).unwrap()), "{text}");
        for words in ["DNS:a.test", "CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
