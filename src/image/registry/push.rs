//! Sending an image of the store to a registry: blobs that it does not have, then the manifest.

use super::client::{Call, Client, Payload, refusal};
use super::{Registry, RegistryOptions};
use crate::error::{Error, Kind, Result, Step};
use crate::image::Reference;
use crate::image::manifest::Descriptor;
use crate::image::progress::{Event, Report};
use crate::image::store::Store;

/// Sends the image that `image` means under the name `reference`; returns the digest that it has there.
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
    let registry = Registry::open(reference, "pull,push", options, report).doing(step)?;
    // The last place is the registry itself; mirrors are for reading.
    let Some((client, repository)) = registry.clients.last() else {
        return Err(Error::new(Kind::Internal, "no registry to ask"));
    };
    for blob in record.layer_blobs.iter().chain([&record.config_blob]) {
        send(store, client, repository, blob, report).doing(|| format!("send `{}`", blob.digest)).doing(step)?;
    }
    let bytes = store.read_blob(&record.manifest).doing(step)?;
    let name = reference.tag().map_or_else(|| record.digest.to_string(), str::to_owned);
    let response = client.send(&Call {
        method: "PUT",
        address: client.base.at(&format!("/v2/{repository}/manifests/{name}")),
        headers: vec![("content-type", record.manifest.media_type.clone())],
        payload: Payload::Bytes(&bytes),
    });
    let response = response.doing(step)?;
    match response.status().as_u16() {
        200..=299 => Ok(record.digest.to_string()),
        _ => Err(refusal(response)).doing(step),
    }
}

fn send(store: &Store, client: &Client<'_>, repository: &str, blob: &Descriptor, report: Report<'_>) -> Result<()> {
    let there = Call {
        method: "HEAD",
        address: client.base.at(&format!("/v2/{repository}/blobs/{}", blob.digest)),
        headers: Vec::new(),
        payload: Payload::Nothing,
    };
    if client.send(&there)?.status().as_u16() == 200 {
        report(Event::There { digest: &blob.digest, size: blob.size });
        return Ok(());
    }
    report(Event::Begin { digest: &blob.digest, size: blob.size });
    let file = store.open_blob(&blob.digest)?;
    let begin = Call {
        method: "POST",
        address: client.base.at(&format!("/v2/{repository}/blobs/uploads/")),
        headers: Vec::new(),
        payload: Payload::Bytes(b""),
    };
    let response = client.send(&begin)?;
    if response.status().as_u16() != 202 {
        return Err(refusal(response));
    }
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
    report(Event::Done { digest: &blob.digest });
    Ok(())
}
