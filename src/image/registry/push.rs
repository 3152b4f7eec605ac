//! Pushes the missing blobs of an image, then its manifest.

use super::client::{Call, Client, Payload, is_trouble, refusal};
use super::{Registry, RegistryOptions, Server};
use crate::error::{Error, Kind, Result, Step};
use crate::image::Digest;
use crate::image::Reference;
use crate::image::manifest::Descriptor;
use crate::image::progress::{Event, Report};
use crate::image::store::{ImageRecord, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use ureq::Body;
use ureq::http::Response;

/// Each repository to mount layers from extends the token's scope.
const MOST_SOURCES: usize = 3;

/// Pushes `image` under the name `reference`. Returns its digest there.
pub fn push(
    store: &Store,
    image: &str,
    reference: &Reference,
    options: &RegistryOptions,
    report: Report<'_>,
) -> Result<String> {
    let step = || format!("push `{}`", reference.familiar());
    let image = store.resolve(image).doing(step)?;
    let record =
        store.image(&image.digest)?.ok_or_else(|| Error::new(Kind::NotFound, "it was removed just now")).doing(step)?;
    let sources = sources(store, reference, &record).doing(step)?;
    let repositories: BTreeSet<_> = sources.values().collect();
    let scopes: Vec<_> = repositories.iter().map(|repository| format!("repository:{repository}:pull")).collect();
    let registry = Registry::open(reference, "pull,push", &scopes, options, report).doing(step)?;
    // The registry itself; mirrors are read-only.
    let Some(Server { client, repository, .. }) = registry.clients.last() else {
        return Err(Error::new(Kind::Internal, "no registry to ask"));
    };
    // A configuration file renamed the repository: the other names there are unknown.
    let sources = if repository == reference.repository() { sources } else { BTreeMap::new() };
    for blob in record.layer_blobs.iter().chain([&record.config_blob]) {
        let source = sources.get(&blob.digest).map(String::as_str);
        send(store, client, repository, blob, source, report)
            .doing(|| format!("send `{}`", blob.digest))
            .doing(step)?;
    }
    let bytes = store.read_blob(&record.manifest).doing(step)?;
    let name = reference.tag().map_or_else(|| record.digest.to_string(), str::to_owned);
    let response = client.send(&Call {
        method: "PUT",
        address: client.api(&format!("{repository}/manifests/{name}")),
        headers: vec![("content-type", record.manifest.media_type.clone())],
        payload: Payload::Bytes(&bytes),
    });
    let response = response.doing(step)?;
    match response.status().as_u16() {
        200..=299 => Ok(record.digest.to_string()),
        _ => Err(refusal(response)).doing(step),
    }
}

/// Other repositories of the registry that have the blobs, by images in the store.
fn sources(store: &Store, reference: &Reference, record: &ImageRecord) -> Result<BTreeMap<Digest, String>> {
    let mut found = BTreeMap::new();
    let mut repositories = BTreeSet::new();
    for (name, digest) in store.names()? {
        if name.host() != reference.host() || name.repository() == reference.repository() {
            continue;
        }
        let Some(other) = store.image(&digest)? else { continue };
        let shared =
            record.layer_blobs.iter().filter(|blob| other.layer_blobs.iter().any(|each| each.digest == blob.digest));
        let new: Vec<_> = shared.map(|blob| blob.digest.clone()).filter(|digest| !found.contains_key(digest)).collect();
        if new.is_empty() || (repositories.len() == MOST_SOURCES && !repositories.contains(name.repository())) {
            continue;
        }
        repositories.insert(name.repository().to_owned());
        found.extend(new.into_iter().map(|digest| (digest, name.repository().to_owned())));
    }
    Ok(found)
}

fn send(
    store: &Store,
    client: &Client<'_>,
    repository: &str,
    blob: &Descriptor,
    source: Option<&str>,
    report: Report<'_>,
) -> Result<()> {
    let file = store.open_blob(&blob.digest)?;
    let mut sent = None;
    // The whole exchange: a registry takes a blob at an address of an upload only once.
    let response = client.repeat(|| upload(client, repository, blob, &file, source, report, &mut sent))?;
    match sent {
        Some(false) => report(Event::There { digest: &blob.digest, size: blob.size }),
        Some(true) if response.status().is_success() => {
            report(Event::Advance { digest: &blob.digest, bytes: blob.size });
            report(Event::Done { digest: &blob.digest, reused: 0 });
        }
        _ => return Err(refusal(response)),
    }
    Ok(())
}

/// `sent` becomes whether the registry got the blob or had it. It stays `None` if the registry refused before.
fn upload(
    client: &Client<'_>,
    repository: &str,
    blob: &Descriptor,
    file: &File,
    source: Option<&str>,
    report: Report<'_>,
    sent: &mut Option<bool>,
) -> Result<Response<Body>> {
    *sent = None;
    let ask = |method, path: &str, payload| {
        let address = client.api(&format!("{repository}/blobs/{path}"));
        client.authorized(&Call { method, address, headers: Vec::new(), payload })
    };
    let there = ask("HEAD", &blob.digest.to_string(), Payload::Nothing)?;
    match there.status().as_u16() {
        200 => {
            *sent = Some(false);
            return Ok(there);
        }
        status if is_trouble(status) => return Ok(there),
        _ => {}
    }
    let begin = |how: &str| ask("POST", &format!("uploads/{how}"), Payload::Bytes(b""));
    // distribution-spec, "Mounting a blob from another repository": 201 means done. After any other status the blob is
    // sent.
    let mounted = source.map(|source| begin(&format!("?mount={}&from={source}", blob.digest))).transpose();
    let response = match mounted {
        Ok(Some(response)) if response.status().as_u16() == 201 => {
            *sent = Some(false);
            return Ok(response);
        }
        Ok(Some(response)) if response.status().as_u16() == 202 => response,
        Ok(None | Some(_)) => begin("")?,
        Err(error) if error.kind() == Kind::Credentials => begin("")?,
        Err(error) => return Err(error),
    };
    if response.status().as_u16() != 202 {
        return Ok(response);
    }
    report(Event::Begin { digest: &blob.digest, size: blob.size });
    *sent = Some(true);
    let location = response.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let address = client.base.join(location)?;
    let mark = if address.path.contains('?') { '&' } else { '?' };
    client.authorized(&Call {
        method: "PUT",
        address: address.at(&format!("{}{mark}digest={}", address.path, blob.digest)),
        headers: vec![("content-type", "application/octet-stream".into())],
        payload: Payload::File(file, blob.size),
    })
}
