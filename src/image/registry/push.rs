//! Pushes the missing blobs of an image, then its manifest.

use super::client::{Call, Client, Payload, refusal};
use super::{Registry, RegistryOptions, Server};
use crate::error::{Error, Kind, Result, Step};
use crate::image::Digest;
use crate::image::Reference;
use crate::image::manifest::Descriptor;
use crate::image::progress::{Event, Report};
use crate::image::store::{ImageRecord, Store};
use std::collections::{BTreeMap, BTreeSet};

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
    let there = Call {
        method: "HEAD",
        address: client.api(&format!("{repository}/blobs/{}", blob.digest)),
        headers: Vec::new(),
        payload: Payload::Nothing,
    };
    if client.send(&there)?.status().as_u16() == 200 {
        report(Event::There { digest: &blob.digest, size: blob.size });
        return Ok(());
    }
    let begin = |how: String| Call {
        method: "POST",
        address: client.api(&format!("{repository}/blobs/uploads/{how}")),
        headers: Vec::new(),
        payload: Payload::Bytes(b""),
    };
    // distribution-spec, "Mounting a blob from another repository": 201 means done. After any other status the blob is
    // sent.
    let mounted = source.map(|source| client.send(&begin(format!("?mount={}&from={source}", blob.digest)))).transpose();
    let response = match mounted {
        Ok(Some(response)) if response.status().as_u16() == 201 => {
            report(Event::There { digest: &blob.digest, size: blob.size });
            return Ok(());
        }
        Ok(Some(response)) if response.status().as_u16() == 202 => response,
        Ok(None | Some(_)) => client.send(&begin(String::new()))?,
        Err(error) if error.kind() == Kind::Credentials => client.send(&begin(String::new()))?,
        Err(error) => return Err(error),
    };
    if response.status().as_u16() != 202 {
        return Err(refusal(response));
    }
    report(Event::Begin { digest: &blob.digest, size: blob.size });
    let file = store.open_blob(&blob.digest)?;
    let location = response.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let address = client.base.join(location)?;
    let mark = if address.path.contains('?') { '&' } else { '?' };
    let response = client.send(&Call {
        method: "PUT",
        address: address.at(&format!("{}{mark}digest={}", address.path, blob.digest)),
        headers: vec![("content-type", "application/octet-stream".into())],
        payload: Payload::File(&file, blob.size),
    })?;
    if !response.status().is_success() {
        return Err(refusal(response));
    }
    report(Event::Advance { digest: &blob.digest, bytes: blob.size });
    report(Event::Done { digest: &blob.digest, reused: 0 });
    Ok(())
}
