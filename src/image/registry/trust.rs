//! Authorities and client certificate for a registry, by host (containers-certs.d(5), as in Podman, Docker and
//! containerd). Never: a connection whose certificate is not checked.

use crate::error::{Error, Kind, Result, Step};
use crate::{files, host};
use rustls::{AlertDescription, CertificateError};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use ureq::tls::{Certificate, ClientCert, PrivateKey, TlsConfig};

const LARGEST_FILE: u64 = 1 << 20;

/// Extends the machine's trust for one registry.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    authorities: Vec<Certificate<'static>>,
    own: Option<ClientCert>,
}

impl Trust {
    /// The caller's `certs.d` directory, else the first that exists.
    pub(super) fn find(host: &str, chosen: Option<&Path>) -> Result<Option<Trust>> {
        let directory = match chosen {
            Some(directory) => Some(directory.to_owned()),
            None => host_folders().into_iter().map(|place| place.join(host)).find(|directory| directory.is_dir()),
        };
        directory.map(|directory| read(&directory)).transpose()
    }

    pub(super) fn add_authorities(&mut self, path: &Path) -> Result<()> {
        self.authorities.extend(certificates(path)?);
        Ok(())
    }

    pub(super) fn set_own(&mut self, certificate: &Path, key: &Path) -> Result<()> {
        let chain = certificates(certificate)?;
        let secret = PrivateKey::from_pem(&files::read_bounded(key, LARGEST_FILE)?)
            .map_err(|_| Error::new(Kind::Certificate, "it contains no private key"))
            .doing(|| format!("read `{}`", key.display()))?;
        self.own = Some(ClientCert::new_with_certs(&chain, secret));
        Ok(())
    }

    pub(super) fn without_ours(&self) -> Trust {
        Trust { own: None, ..self.clone() }
    }

    pub(super) fn tls(&self) -> TlsConfig {
        TlsConfig::builder().root_certs(host::roots(&self.authorities)).client_cert(self.own.clone()).build()
    }
}

/// At least one, else an error.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let found = host::in_pem(&files::read_bounded(path, LARGEST_FILE)?);
    if found.is_empty() {
        return Err(Error::new(Kind::Certificate, "it contains no certificate"))
            .doing(|| format!("read `{}`", path.display()));
    }
    Ok(found)
}

/// First the user's own.
fn host_folders() -> Vec<PathBuf> {
    let own = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/containers/certs.d"));
    own.into_iter().chain(["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from)).collect()
}

/// `*.crt` are authorities; `NAME.cert` and `NAME.key` are the client certificate.
fn read(directory: &Path) -> Result<Trust> {
    let step = || format!("read the certificates in `{}`", directory.display());
    let listed = std::fs::read_dir(directory).map_err(|cause| files::failed(cause, step()))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut trust = Trust::default();
    for path in &paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => trust.add_authorities(path).doing(step)?,
            Some("cert") => trust.set_own(path, &path.with_extension("key")).doing(step)?,
            _ => {}
        }
    }
    Ok(trust)
}

/// `None` for errors that are not about TLS.
pub(super) fn refusal(cause: &ureq::Error) -> Option<Error> {
    let inner = match cause {
        ureq::Error::Rustls(inner) => inner,
        ureq::Error::Io(cause) => cause.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    Some(explained(inner))
}

fn explained(cause: &rustls::Error) -> Error {
    let wrong = |why: String| Error::new(Kind::Certificate, format!("its certificate {why}"));
    let authority = "if you trust it, put its authority's certificate as *.crt into /etc/containers/certs.d/HOST or the directory of --cert-dir";
    let date = |seconds: u64| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
    match cause {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => {
                wrong("is not signed by an authority that this machine trusts".into()).hint(authority)
            }
            CertificateError::ExpiredContext { not_after, .. } => {
                wrong(format!("was good until {} only", date(not_after.as_secs())))
                    .hint("its operator must renew it, or this machine's clock is wrong")
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                wrong(format!("is good from {} on only", date(not_before.as_secs())))
                    .hint("look at this machine's clock")
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names: Vec<String> = presented.iter().map(|name| named(name)).collect();
                let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
                wrong(format!("is for {names} and not for this host")).hint("use a name that is in the certificate")
            }
            CertificateError::BadEncoding => wrong("does not parse".into()),
            CertificateError::Revoked => wrong("was revoked".into()),
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                wrong("signs itself and others: an authority's, and no server's".into())
                    .hint("the server must show a certificate that the authority has signed for its name")
            }
            other => wrong(format!("is not accepted: {other}")).hint(authority),
        },
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown,
        ) => Error::new(Kind::Certificate, "it accepts no client without a certificate that it knows").hint(
            "put yours as NAME.cert and NAME.key into /etc/containers/certs.d/HOST or the directory of --cert-dir",
        ),
        rustls::Error::InvalidMessage(_) => Error::new(Kind::Certificate, "what it speaks there is not TLS")
            .hint("if it is a registry without TLS in a trusted network: --plain-http"),
        other => Error::new(Kind::Registry, other.to_string()),
    }
}

/// From rustls's form, such as `DnsName("a.test")`. The server chooses the names, so unusual characters are escaped.
fn named(name: &str) -> String {
    let inner = name.split_once('(').map_or(name, |(_, rest)| rest.trim_end_matches(')'));
    inner.trim_matches('"').escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::UnixTime;

    #[test]
    fn each_fault_of_a_certificate_has_its_words() {
        let check = |why: CertificateError, expected: &str| {
            let error = explained(&rustls::Error::InvalidCertificate(why));
            assert!(error.to_string().contains(expected) && !error.retryable(), "{error}");
        };
        let moment = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        check(CertificateError::UnknownIssuer, "not signed by an authority that this machine trusts");
        check(
            CertificateError::ExpiredContext { time: moment(99), not_after: moment(86_400) },
            "until 1970-01-02T00:00:00Z",
        );
        check(
            CertificateError::NotValidYetContext { time: moment(99), not_before: moment(86_400) },
            "from 1970-01-02T00:00:00Z",
        );
        let presented = vec!["DnsName(\"a.test\")".to_owned(), "IpAddress(127.0.0.1)".to_owned()];
        let expected = rustls::pki_types::ServerName::try_from("b.test").unwrap();
        check(CertificateError::NotValidForNameContext { expected, presented }, "is for a.test, 127.0.0.1 and not");
    }
}
