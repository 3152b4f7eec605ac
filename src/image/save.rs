//! Writes an OCI layout that is also a docker-archive, as current Docker does. The same images give the same bytes.

use super::digest::Digest;
use super::manifest::Descriptor;
use super::progress::{Event, Report};
use super::reference::Reference;
use super::store::{ImageRecord, Store};
use super::tar::write::Writer;
use super::tar::{Entry, EntryKind};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};

/// An image given by a name has only that name in the tar; one given by its digest has all names.
pub fn save(store: &Store, images: &[String], sink: impl Write, report: Report<'_>) -> Result<()> {
    let mut records: Vec<(ImageRecord, Vec<String>)> = Vec::new();
    let mut leases = Vec::new();
    // A reader of the archive could not verify a name with a digest.
    let names: Vec<_> = store.names()?.into_iter().filter(|(name, _)| name.digest().is_none()).collect();
    for text in images {
        let image = store.resolve(text)?;
        let missing = || Error::new(Kind::NotFound, "it was removed just now");
        let record = store.image(&image.digest)?.ok_or_else(missing)?;
        let meant = text.parse::<Reference>().ok();
        let mut own: Vec<_> =
            names.iter().filter(|(_, digest)| *digest == record.digest).map(|(name, _)| name).collect();
        if own.iter().any(|name| Some(*name) == meant.as_ref()) {
            own.retain(|name| Some(*name) == meant.as_ref());
        }
        let own = own.into_iter().map(ToString::to_string);
        match records.iter_mut().find(|(other, _)| other.digest == record.digest) {
            Some((_, all)) => {
                all.extend(own);
                all.sort();
                all.dedup();
            }
            None => records.push((record, own.collect())),
        }
        leases.push(image.into_lease());
    }
    let mut writer = Writer::new(sink);
    document(&mut writer, "oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
    document(&mut writer, "index.json", &index(&records))?;
    document(&mut writer, "manifest.json", &manifest(&records))?;
    let mut written: BTreeSet<&Digest> = BTreeSet::new();
    for (record, _) in &records {
        for blob in record.blobs().filter(|blob| written.insert(&blob.digest)) {
            copy(store, blob, &mut writer, report).doing(|| format!("save `{}`", blob.digest))?;
        }
    }
    writer.finish().map(drop)
}

/// A layout has one descriptor for each name.
fn index(records: &[(ImageRecord, Vec<String>)]) -> Value {
    let mut entries = Vec::new();
    for (record, names) in records {
        let entry = json!({
            "mediaType": record.manifest.media_type, "digest": record.digest.to_string(), "size": record.manifest.size,
            "platform": { "os": record.config.os, "architecture": record.config.architecture },
        });
        if names.is_empty() {
            entries.push(entry.clone());
        }
        for name in names {
            let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            let mut named = entry.clone();
            named["annotations"] =
                json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag });
            entries.push(named);
        }
    }
    json!({ "schemaVersion": 2, "mediaType": super::manifest::OCI_INDEX, "manifests": entries })
}

fn manifest(records: &[(ImageRecord, Vec<String>)]) -> Value {
    let path = |digest: &Digest| format!("blobs/{}/{}", digest.algorithm().name(), digest.hex());
    let entry = |(record, names): &(ImageRecord, Vec<String>)| {
        let layers: Vec<String> = record.layer_blobs.iter().map(|layer| path(&layer.digest)).collect();
        json!({ "Config": path(&record.config_blob.digest), "RepoTags": names, "Layers": layers })
    };
    records.iter().map(entry).collect()
}

fn document<W: Write>(writer: &mut Writer<W>, name: &str, value: &Value) -> Result<()> {
    let bytes = value.to_string().into_bytes();
    writer.entry(&file(name, bytes.len() as u64))?;
    writer.data(&bytes)
}

fn copy<W: Write>(store: &Store, blob: &Descriptor, writer: &mut Writer<W>, report: Report<'_>) -> Result<()> {
    report(Event::Begin { digest: &blob.digest, size: blob.size });
    let name = format!("blobs/{}/{}", blob.digest.algorithm().name(), blob.digest.hex());
    writer.entry(&file(&name, blob.size))?;
    let mut reader = store.open_blob(&blob.digest)?.take(blob.size);
    let (mut buffer, mut left) = (vec![0; 256 << 10], blob.size);
    let mut hasher = super::digest::Hasher::new(blob.digest.algorithm());
    while left > 0 {
        let count = reader.read(&mut buffer).map_err(|cause| files::failed(cause, "read the blob".into()))?;
        if count == 0 {
            return Err(super::manifest::mismatch(&blob.digest, "it is shorter than it should be".into()));
        }
        hasher.update(&buffer[..count]);
        writer.data(&buffer[..count])?;
        left -= count as u64;
        report(Event::Advance { digest: &blob.digest, bytes: count as u64 });
    }
    if hasher.finish() != blob.digest {
        return Err(super::manifest::mismatch(&blob.digest, "the store's copy is damaged".into()));
    }
    report(Event::Done { digest: &blob.digest, reused: 0 });
    Ok(())
}

pub(super) fn file(name: &str, size: u64) -> Entry {
    Entry { size, ..Entry::new(EntryKind::File, name) }
}
