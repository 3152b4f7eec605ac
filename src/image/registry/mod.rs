//! A registry as a source of images, and as a place to send them to (distribution-spec).
//!
//! Order: `mirrors` says where to go, `credentials` who we are, `client` sends (`challenge` and `address` are its pure parts),
//! `resume` keeps a download going. Nothing that arrives is believed: documents and blobs are checked by their digests by
//! whoever takes them, and the digest that a registry names for a tag is checked against the body.

mod address;
mod challenge;
mod client;
mod credentials;
mod mirrors;
mod push;
mod resume;

pub use push::push;

use super::Reference;
use super::digest::Digest;
use super::load::{self, LoadOptions};
use super::manifest::{DOCKER_LIST, DOCKER_MANIFEST, Descriptor, LARGEST_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
use super::progress::{Event, Report};
use super::source::{Blob, Source};
use super::store::{ImageRecord, Store};
use crate::error::{Error, Kind, Result, Step};
use client::{Call, Client, Payload, refusal};
use std::io::Read;
use std::path::PathBuf;

/// How to talk to registries.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// No TLS, for registries in a trusted network.
    pub plain_http: bool,
    /// `(HOST[/PATH], MIRROR[/PATH])`, tried in order before the registry.
    pub mirrors: Vec<(String, String)>,
    /// Token servers outside the registry's own domain.
    pub allowed_realms: Vec<String>,
    /// An auth file instead of the usual ones.
    pub auth_file: Option<PathBuf>,
}

/// One repository, at the first place that has it.
pub(crate) struct Registry<'a> {
    clients: Vec<(Client<'a>, String)>,
    reference: Reference,
    report: Report<'a>,
}

impl<'a> Registry<'a> {
    pub(crate) fn open(
        reference: &Reference,
        actions: &str,
        options: &RegistryOptions,
        report: Report<'a>,
    ) -> Result<Registry<'a>> {
        let mut clients = Vec::new();
        for endpoint in mirrors::endpoints(reference, &options.mirrors, options.plain_http)? {
            let found = match &options.auth_file {
                Some(path) => credentials::from_file(path, &endpoint.host, &endpoint.repository)?,
                None => credentials::find(&endpoint.host, &endpoint.repository)?,
            };
            let scope = format!("repository:{}:{actions}", endpoint.repository);
            let client = Client::new(endpoint.address, scope, found, options.allowed_realms.clone(), report)?;
            clients.push((client, endpoint.repository));
        }
        Ok(Registry { clients, reference: reference.clone(), report })
    }

    /// Asks each place in turn; the error is that of the last, which is the registry itself.
    fn ask<T>(&self, ask: impl Fn(&Client<'a>, &str) -> Result<T>) -> Result<T> {
        let mut last = Error::new(Kind::Internal, "no registry to ask");
        for (index, (client, repository)) in self.clients.iter().enumerate() {
            match ask(client, repository) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
            if index + 1 < self.clients.len() {
                self.note(&format!("{last}; trying the next registry"));
            }
        }
        Err(last)
    }

    /// The manifest or index that the reference means. One request if the registry names its digest.
    fn head(&self) -> Result<Option<Digest>> {
        if let Some(digest) = self.reference.digest() {
            return Ok(Some(digest.clone()));
        }
        self.ask(|client, repository| {
            let response = client.send(&self.manifest_call(client, repository, "HEAD", self.tag()))?;
            match response.status().as_u16() {
                200 => {
                    let named = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
                    named.map(str::parse).transpose()
                }
                // Some registries do not answer HEAD; GET says why.
                _ => Ok(None),
            }
        })
    }

    fn tag(&self) -> &str {
        self.reference.tag().unwrap_or("latest")
    }

    fn manifest_call<'b>(&self, client: &Client<'_>, repository: &str, method: &'b str, name: &str) -> Call<'b> {
        let accepted = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST].join(", ");
        let address = client.base.at(&format!("/v2/{repository}/manifests/{name}"));
        Call { method, address, headers: vec![("accept", accepted)], payload: Payload::Nothing }
    }

    /// Fetches a manifest by digest or tag: its descriptor, made from what arrived and checked, and its bytes within it.
    fn manifest(&self, digest: Option<&Digest>) -> Result<Descriptor> {
        let name = digest.map_or_else(|| self.tag().to_owned(), Digest::to_string);
        self.ask(|client, repository| {
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
            let read = response.body_mut().as_reader().take(LARGEST_DOCUMENT + 1).read_to_end(&mut bytes);
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
                Descriptor { media_type, digest: wanted, size, urls: Vec::new(), data: Some(bytes.clone()) };
            descriptor.check(&bytes)?;
            Ok(descriptor)
        })
    }

    /// Opens a blob from the byte `from` on.
    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>> {
        self.ask(|client, repository| {
            // Manifests of an index are fetched by another path than everything else.
            let document =
                matches!(descriptor.media_type.as_str(), OCI_INDEX | OCI_MANIFEST | DOCKER_LIST | DOCKER_MANIFEST);
            let call = if document {
                self.manifest_call(client, repository, "GET", &descriptor.digest.to_string())
            } else {
                let address = client.base.at(&format!("/v2/{repository}/blobs/{}", descriptor.digest));
                let range = (from > 0).then(|| ("range", format!("bytes={from}-")));
                Call { method: "GET", address, headers: range.into_iter().collect(), payload: Payload::Nothing }
            };
            let response = client.send(&call)?;
            match response.status().as_u16() {
                206 => Ok(Box::new(response.into_body().into_reader()) as Box<dyn Read + Send>),
                200 => {
                    // Everything, though only the rest was asked for: pass over what is there.
                    let mut reader = response.into_body().into_reader();
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
        Ok(Box::new(resume::Resuming::new(self, descriptor, from)))
    }

    fn name(&self) -> String {
        self.reference.familiar()
    }

    fn is_slow(&self) -> bool {
        true
    }
}

/// What a pull did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// It was there, and the tag still means it.
    Current,
    /// It came.
    Fetched,
}

/// Brings the image that `reference` means into the store.
pub fn pull(
    store: &Store,
    reference: &Reference,
    registry: &RegistryOptions,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<(ImageRecord, Pulled)> {
    let step = || format!("pull `{}`", reference.familiar());
    let source = Registry::open(reference, "pull", registry, report).doing(step)?;
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
