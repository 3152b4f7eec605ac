//! The broker: the gateway adds secrets to requests outside, so the sandbox uses them and never has them.
//!
//! The sandbox sees a certificate of its authority; the machine's trust verifies the server's.
//! Never: a value in a message, a record or an error; a secret for another host than its own.

mod authority;
mod credential;
mod der;
mod mask;
mod request;
mod target;
pub(crate) mod trust;
#[cfg(feature = "weakened")]
mod weakened;

pub(crate) use authority::{NewAuthority, make as make_authority};
pub use credential::{Credential, Wording};
pub(crate) use credential::{check_credentials, fits_a_header};
pub(super) use mask::{Mask, Needles};
pub(super) use request::{asks_to_change, expects_continue, written};
use request::{check_head, replaced};
pub(crate) use trust::Trust;

use super::http::Head;
use crate::error::{Error, Kind, Result};
use crate::files;
use crate::sys::weaken;
use authority::Authority;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use std::cell::{Ref, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// The only protocol for the client and the server (ALPN, RFC 7301).
const HTTP_1: &[u8] = b"http/1.1";
/// The default value of a secret's variable.
pub(crate) const PLACEHOLDER: &str = "held-by-the-broker";
/// Resumable TLS sessions with one host.
const SESSIONS: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Broker {
    pub credentials: Vec<Credential>,
    /// The authority's, DER.
    pub certificate: Vec<u8>,
    /// A memory file with the authority's key, for the gateway alone.
    pub key: Arc<OwnedFd>,
    /// A memory file with a JSON array of [`Value`]s, for the gateway alone.
    pub values: Arc<OwnedFd>,
    /// The machine's certificates, PEM.
    pub roots: Option<Arc<Vec<u8>>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Value {
    pub name: String,
    pub value: Vec<u8>,
    /// Answers hide these: the value in every form in which programs write it.
    pub forms: Vec<Vec<u8>>,
}

/// A change of a secret while the sandbox runs.
pub(crate) enum Renewal {
    Replaced(Value),
    /// The secret's name.
    Revoked(String),
}

#[derive(Default)]
struct CurrentValues {
    values: HashMap<String, Vec<u8>>,
    needles: Needles,
}

impl CurrentValues {
    fn put(&mut self, value: Value) {
        if !weaken::is_off("broker-echo") {
            self.needles.add(value.forms);
        }
        self.values.insert(value.name, value.value);
    }
}

#[derive(Default)]
pub(super) struct Brokers {
    hosts: HashMap<(String, u16), Rc<Served>>,
    held: Rc<RefCell<CurrentValues>>,
}

/// A host whose requests get secrets.
pub(super) struct Served {
    credentials: Vec<Credential>,
    held: Rc<RefCell<CurrentValues>>,
    /// TLS towards the sandbox.
    pub(super) inside: Arc<ServerConfig>,
    /// TLS towards the server.
    pub(super) outside: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

fn wrong(cause: impl ToString) -> Error {
    Error::new(Kind::Egress, cause.to_string()).doing("set up the broker")
}

impl Brokers {
    /// Runs before the gateway drops its privileges.
    pub(super) fn load(broker: &Broker) -> Result<Brokers> {
        let authority = Authority::new(NewAuthority {
            certificate: broker.certificate.clone(),
            key: files::read_memory(&broker.key)?,
        })?;
        let values: Vec<Value> = serde_json::from_slice(&files::read_memory(&broker.values)?).map_err(wrong)?;
        let held = Rc::new(RefCell::new(CurrentValues::default()));
        values.into_iter().for_each(|value| held.borrow_mut().put(value));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(broker.roots.as_deref().map(Vec::as_slice)));
        let mut hosts: HashMap<(String, u16), Rc<Served>> = HashMap::new();
        for credential in &broker.credentials {
            let key = (credential.host().to_owned(), credential.port());
            if hosts.contains_key(&key) {
                continue;
            }
            let same = |each: &&Credential| each.host() == key.0 && each.port() == key.1;
            let credentials: Vec<_> = broker.credentials.iter().filter(same).cloned().collect();
            let served = Served {
                inside: Arc::new(inside(&authority, &key.0, &provider)?),
                outside: Arc::new(outside(&roots, &credentials, &provider)?),
                name: ServerName::try_from(key.0.clone()).map_err(wrong)?,
                credentials,
                held: Rc::clone(&held),
            };
            hosts.insert(key, Rc::new(served));
        }
        Ok(Brokers { hosts, held })
    }

    pub(super) fn of(&self, host: &str, port: u16) -> Option<Rc<Served>> {
        if self.hosts.is_empty() {
            return None;
        }
        self.hosts.get(&(host.to_owned(), port)).cloned()
    }

    /// The old value stays hidden in answers.
    pub(super) fn replace(&self, value: Value) {
        self.held.borrow_mut().put(value);
    }

    pub(super) fn revoke(&self, name: &str) {
        self.held.borrow_mut().values.remove(name);
    }
}

impl Served {
    /// Returns the headers for the server, or why the request is refused.
    pub(super) fn admit(&self, head: &Head) -> Result<Vec<(String, Vec<u8>)>, String> {
        if let Some(why) = check_head(head) {
            return Err(why.to_owned());
        }
        let held = self.held.borrow();
        let (mut added, mut why) = (Vec::<(&str, Vec<u8>)>::new(), None);
        for credential in &self.credentials {
            if let Some(refusal) = credential.check_request(head) {
                why = why.or(Some(refusal));
                continue;
            }
            match held.values.get(&credential.name) {
                Some(value) => added.push((credential.header(), credential.render(value))),
                None => why = Some(format!("the secret `{}` was taken back", credential.name)),
            }
        }
        match why {
            Some(why) if added.is_empty() => Err(why),
            _ => Ok(replaced(head, &added, self.credentials.iter().any(Credential::is_limited))),
        }
    }

    pub(super) fn names(&self) -> String {
        self.credentials.iter().map(|each| each.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn needles(&self) -> Ref<'_, Needles> {
        Ref::map(self.held.borrow(), |held| &held.needles)
    }
}

fn roots(pem: Option<&[u8]>) -> RootCertStore {
    let mut store = RootCertStore::empty();
    match pem {
        // An unreadable certificate is not trusted.
        Some(pem) => drop(store.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok))),
        None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    store
}

fn inside(authority: &Authority, host: &str, provider: &Arc<CryptoProvider>) -> Result<ServerConfig> {
    let (chain, key) = authority.issue(host)?;
    let key = PrivateKeyDer::try_from(key).map_err(wrong)?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(chain.map(CertificateDer::from).into(), key)
        .map_err(wrong)?;
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn outside(
    roots: &Arc<RootCertStore>,
    credentials: &[Credential],
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig> {
    let mut all = Arc::clone(roots);
    for certificate in credentials.iter().flat_map(Credential::trusted) {
        Arc::make_mut(&mut all).add(certificate).map_err(wrong)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(all)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    #[cfg(feature = "weakened")]
    if weaken::is_off("broker-upstream") {
        config.dangerous().set_certificate_verifier(Arc::new(weakened::AnyCertificate(Arc::clone(provider))));
    }
    Ok(config)
}
