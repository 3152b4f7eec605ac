//! A registry as a source and a destination of images (distribution-spec).
//!
//! `mirrors` (with `conf` and `hosts`) finds the servers, `trust` their certificates, `credentials` the login. The
//! reader of a document or blob checks its digest. The digest that a registry names for a tag is checked against the
//! body.

mod address;
mod challenge;
mod chunked;
mod client;
mod conf;
mod credentials;
mod hosts;
mod mirrors;
mod pace;
mod push;
mod resume;
mod trust;

pub use push::push;

use super::Reference;
use super::digest::Digest;
use super::load::{self, LoadOptions};
use super::manifest::{DOCKER_LIST, DOCKER_MANIFEST, Descriptor, LARGEST_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
use super::progress::{Event, Report};
use super::source::{Blob, Source};
use super::store::{ImageRecord, Store};
use crate::error::{Error, Kind, Result, Step};
use client::{Call, Client, Identity, Payload, refusal};
use pace::PacedReader;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Options of a connection to registries.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// No TLS, for registries in a trusted network.
    pub plain_http: bool,
    /// `(HOST[/PATH], MIRROR[/PATH])`, tried in order before the registry.
    pub mirrors: Vec<(String, String)>,
    /// Token servers outside the registry's domain.
    pub allowed_realms: Vec<String>,
    /// An auth file instead of the usual ones.
    pub auth_file: Option<PathBuf>,
    /// Authorities (`*.crt`) and client certificate (`NAME.cert`, `NAME.key`), instead of the usual directories'.
    pub cert_dir: Option<PathBuf>,
    /// A directory of `HOST/hosts.toml` instead of the usual one.
    pub hosts_dir: Option<PathBuf>,
}

pub(crate) struct Registry<'a> {
    /// In order; the last is the registry itself.
    clients: Vec<Server<'a>>,
    reference: Reference,
    report: Report<'a>,
}

struct Server<'a> {
    client: Client<'a>,
    repository: String,
    resolves: bool,
    /// A mirror that failed is skipped from then on.
    is_down: AtomicBool,
}

/// A part of a blob.
#[derive(Clone)]
enum Extent {
    /// Servers without ranges may send what is before, too.
    From(u64),
    /// Only from servers with ranges.
    Range(std::ops::Range<u64>),
}

/// Another server follows a mirror.
const MIRROR_TRIES: u32 = 2;

impl<'a> Registry<'a> {
    /// `scopes` extend the token's scope beyond `actions` on the repository.
    pub(crate) fn open(
        reference: &Reference,
        actions: &str,
        scopes: &[String],
        options: &RegistryOptions,
        report: Report<'a>,
    ) -> Result<Registry<'a>> {
        let mut clients = Vec::new();
        for endpoint in mirrors::endpoints(reference, options)? {
            let found = match &options.auth_file {
                Some(path) => credentials::from_file(path, &endpoint.host, &endpoint.repository)?,
                None => credentials::find(&endpoint.host, &endpoint.repository)?,
            };
            let own = format!("repository:{}:{actions}", endpoint.repository);
            let identity = Identity {
                scopes: [own].into_iter().chain(scopes.iter().cloned()).collect(),
                credentials: found,
                allowed_realms: options.allowed_realms.clone(),
            };
            let client = Client::new(endpoint.address, endpoint.of, &endpoint.trust, identity, report);
            clients.push(Server {
                client,
                repository: endpoint.repository,
                resolves: endpoint.resolves,
                is_down: AtomicBool::new(false),
            });
        }
        if let Some((_, mirrors)) = clients.split_last_mut() {
            mirrors.iter_mut().for_each(|mirror| mirror.client.tries = MIRROR_TRIES);
        }
        Ok(Registry { clients, reference: reference.clone(), report })
    }

    /// The error is that of the last server, the registry itself.
    fn ask<T>(&self, by_tag: bool, ask: impl Fn(&Client<'a>, &str) -> Result<T>) -> Result<T> {
        let mut last = Error::new(Kind::Internal, "no registry to ask");
        let down = |server: &Server<'_>| server.is_down.load(Ordering::Relaxed);
        let mut servers = self.clients.iter().filter(|server| (server.resolves || !by_tag) && !down(server)).peekable();
        while let Some(server) = servers.next() {
            match ask(&server.client, &server.repository) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
            if servers.peek().is_some() {
                server.is_down.store(last.retryable(), Ordering::Relaxed);
                self.note(&format!("{last}; trying the next registry"));
            }
        }
        Err(last)
    }

    /// `None` if the registry does not name the digest.
    fn head(&self) -> Result<Option<Digest>> {
        if let Some(digest) = self.reference.digest() {
            return Ok(Some(digest.clone()));
        }
        self.ask(true, |client, repository| {
            let response = client.send(&self.manifest_call(client, repository, "HEAD", self.tag()))?;
            match response.status().as_u16() {
                200 => {
                    let named = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
                    named.map(str::parse).transpose()
                }
                // Some registries do not support HEAD. GET then returns the reason.
                _ => Ok(None),
            }
        })
    }

    fn tag(&self) -> &str {
        self.reference.tag().unwrap_or("latest")
    }

    fn manifest_call<'b>(&self, client: &Client<'_>, repository: &str, method: &'b str, name: &str) -> Call<'b> {
        let accepted = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST].join(", ");
        let address = client.api(&format!("{repository}/manifests/{name}"));
        Call { method, address, headers: vec![("accept", accepted)], payload: Payload::Nothing }
    }

    /// By `digest`, else by the tag. The descriptor contains the checked bytes.
    fn manifest(&self, digest: Option<&Digest>) -> Result<Descriptor> {
        let name = digest.map_or_else(|| self.tag().to_owned(), Digest::to_string);
        self.ask(digest.is_none(), |client, repository| {
            let mut response = client.send(&self.manifest_call(client, repository, "GET", &name))?;
            if response.status().as_u16() != 200 {
                return Err(refusal(response).hint("check the name and the tag"));
            }
            let header =
                |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let media_type = header("content-type").unwrap_or_default();
            let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
            let named = header("docker-content-digest");
            let mut bytes = Vec::new();
            let read =
                PacedReader::new(response.body_mut().as_reader()).take(LARGEST_DOCUMENT + 1).read_to_end(&mut bytes);
            read.map_err(client::unreachable)?;
            if bytes.len() as u64 > LARGEST_DOCUMENT {
                return Err(Error::new(Kind::Image, format!("the manifest is longer than {LARGEST_DOCUMENT} bytes")));
            }
            let wanted = match (digest, named) {
                (Some(digest), _) => digest.clone(),
                (None, Some(named)) => named.parse()?,
                (None, None) => Digest::of(&bytes),
            };
            let size = bytes.len() as u64;
            let descriptor =
                Descriptor { media_type, digest: wanted, size, urls: Vec::new(), data: Some(bytes.clone()), toc: None };
            descriptor.check(&bytes)?;
            Ok(descriptor)
        })
    }

    fn blob(&self, descriptor: &Descriptor, extent: Extent) -> Result<Box<dyn Read + Send>> {
        self.ask(false, |client, repository| {
            // Manifests of an index have another path than other blobs.
            let document =
                matches!(descriptor.media_type.as_str(), OCI_INDEX | OCI_MANIFEST | DOCKER_LIST | DOCKER_MANIFEST);
            let call = if document {
                self.manifest_call(client, repository, "GET", &descriptor.digest.to_string())
            } else {
                let address = client.api(&format!("{repository}/blobs/{}", descriptor.digest));
                let range = match &extent {
                    Extent::From(0) => None,
                    Extent::From(from) => Some(("range", format!("bytes={from}-"))),
                    Extent::Range(range) => Some(("range", format!("bytes={}-{}", range.start, range.end - 1))),
                };
                Call { method: "GET", address, headers: range.into_iter().collect(), payload: Payload::Nothing }
            };
            let response = client.send(&call)?;
            match response.status().as_u16() {
                206 => Ok(Box::new(PacedReader::new(response.into_body().into_reader())) as Box<dyn Read + Send>),
                200 => {
                    // The server ignored the range.
                    let Extent::From(from) = extent else {
                        return Err(Error::new(Kind::Image, "the registry sends no parts of a blob"));
                    };
                    let mut reader = PacedReader::new(response.into_body().into_reader());
                    let skipped = std::io::copy(&mut (&mut reader).take(from), &mut std::io::sink());
                    skipped.map_err(client::unreachable)?;
                    Ok(Box::new(reader))
                }
                _ => Err(refusal(response)).doing(|| format!("fetch `{}`", descriptor.digest)),
            }
        })
    }

    fn note(&self, text: &str) {
        (self.report)(Event::Note(text));
    }
}

impl Source for Registry<'_> {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>> {
        Ok(Box::new(resume::ResumingReader::new(self, descriptor, Extent::From(from))))
    }

    fn open_reusing(&self, descriptor: &Descriptor, from: u64, store: &Store) -> Result<(Blob<'_>, u64)> {
        match self.assemble(descriptor, from, store)? {
            Some((reader, reused)) => Ok((Box::new(reader), reused)),
            None => Ok((self.open(descriptor, from)?, 0)),
        }
    }

    fn name(&self) -> String {
        self.reference.familiar()
    }

    fn is_slow(&self) -> bool {
        true
    }
}

/// The result of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// The store has the image, and the tag still means it.
    Current,
    /// The image was fetched.
    Fetched,
}

/// Fetches the image that `reference` means into the store.
pub fn pull(
    store: &Store,
    reference: &Reference,
    registry: &RegistryOptions,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<(ImageRecord, Pulled)> {
    let step = || format!("pull `{}`", reference.familiar());
    let source = Registry::open(reference, "pull", &[], registry, report).doing(step)?;
    let digest = source.head().doing(step)?;
    if let Some(digest) = &digest
        && let Some(record) = load::current(store, reference, digest, options).doing(step)?
    {
        return Ok((record, Pulled::Current));
    }
    let descriptor = source.manifest(digest.as_ref()).doing(step)?;
    let names = [reference.clone()];
    let record = load::add(store, &source, &descriptor, &names, options, report).doing(step)?;
    Ok((record, Pulled::Fetched))
}
