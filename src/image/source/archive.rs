//! An OCI layout in a tar, or the output of `docker save`. Blobs are read by offset, several at once, so the caller
//! spools standard input first.
//!
//! A docker-archive has no manifest: it is made from the config and the layers. Plain layers are named by the config's
//! DiffIDs, which unpacking proves. Compressed ones need a pass to hash them.

use super::layout::{check_version, offers};
use super::{Blob, Offer, Source};
use crate::error::{Error, Kind, Result, Step};
use crate::image::Digest;
use crate::image::config::ImageConfig;
use crate::image::digest::{Algorithm, Hasher};
use crate::image::layer::Compression;
use crate::image::manifest::{
    Descriptor, LARGEST_DOCUMENT, OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, OCI_MANIFEST, json,
};
use crate::image::tar::{EntryKind, Reader, unreadable};
use serde::Deserialize;
use serde_json::json as value;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A few hundred images.
const MOST_MEMBERS: usize = 100_000;
/// PATH_MAX: bytes of a name or of a link's target.
const LONGEST_NAME: usize = 4096;
/// Bytes of all names and targets.
const MOST_NAME_BYTES: usize = 32 << 20;
/// `layer.tar` of old archives links to another layer's.
const MOST_HOPS: usize = 8;

#[derive(Clone, Debug)]
enum Member {
    File {
        offset: u64,
        size: u64,
    },
    /// Hard links share it.
    Link(Arc<[u8]>),
}

pub(crate) struct Archive {
    file: File,
    name: String,
    members: HashMap<Vec<u8>, Member>,
    /// The places of a docker-archive's blobs.
    blobs: HashMap<Digest, (u64, u64)>,
    made: HashMap<Digest, Vec<u8>>,
    offers: Vec<Offer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Vec<String>,
    #[serde(default)]
    layers: Vec<String>,
}

impl Archive {
    pub(crate) fn open(file: File, name: String) -> Result<Archive> {
        let members = members(&file)?;
        let mut archive =
            Archive { file, name, members, blobs: HashMap::new(), made: HashMap::new(), offers: Vec::new() };
        // Docker since 25 writes archives of both forms; the layout has digests for everything.
        if archive.find(b"oci-layout")?.is_some() {
            check_version(&archive.read("oci-layout")?)?;
            archive.offers = offers(&archive.read("index.json")?)?;
        } else if archive.find(b"manifest.json")?.is_some() {
            archive.saved().doing(|| "read `manifest.json`")?;
        } else {
            return Err(Error::new(Kind::Image, "there is neither `oci-layout` nor `manifest.json` in it").hint(
                "give an OCI layout or what `docker save` writes; a root file system goes with `brig image import`",
            ));
        }
        Ok(archive)
    }

    pub(crate) fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Links lead to other members only.
    fn find(&self, name: &[u8]) -> Result<Option<(u64, u64)>> {
        let mut name = plain(name);
        for _ in 0..MOST_HOPS {
            match self.members.get(&name) {
                None => return Ok(None),
                Some(Member::File { offset, size }) => return Ok(Some((*offset, *size))),
                Some(Member::Link(target)) => {
                    let parent = name.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &name[..at]);
                    name = plain(&[parent, b"/", target].concat());
                }
            }
        }
        Err(Error::new(Kind::Image, "its links go in a circle"))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let step = || format!("read `{}`", name.escape_debug());
        let missing = || Error::new(Kind::Image, "the archive has no such file");
        let (offset, size) = self.find(name.as_bytes())?.ok_or_else(missing).doing(step)?;
        if size > LARGEST_DOCUMENT {
            return Err(Error::new(Kind::Image, format!("{size} bytes are more than {LARGEST_DOCUMENT}"))).doing(step);
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, offset).map_err(unreadable).doing(step)?;
        Ok(bytes)
    }

    fn saved(&mut self) -> Result<()> {
        let images: Vec<Saved> = serde_json::from_value(json(&self.read("manifest.json")?)?)
            .map_err(|cause| Error::new(Kind::Image, cause.to_string()))?;
        for image in images {
            let config_bytes = self.read(&image.config)?;
            let config = ImageConfig::parse(&config_bytes)?;
            if config.diff_ids.len() != image.layers.len() {
                let (found, wanted) = (image.layers.len(), config.diff_ids.len());
                return Err(Error::new(Kind::Image, format!("{found} layers are listed and the config has {wanted}")));
            }
            let mut layers = Vec::new();
            for (name, diff_id) in image.layers.iter().zip(&config.diff_ids) {
                let missing =
                    || Error::new(Kind::Image, format!("the layer `{}` is not in the archive", name.escape_debug()));
                let place = self.find(name.as_bytes())?.ok_or_else(missing)?;
                let (digest, media_type) = self.layer(place, diff_id)?;
                layers.push(value!({ "mediaType": media_type, "digest": digest.to_string(), "size": place.1 }));
                self.blobs.insert(digest, place);
            }
            let config_digest = Digest::of(&config_bytes);
            let manifest = value!({
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": { "mediaType": OCI_CONFIG, "digest": config_digest.to_string(), "size": config_bytes.len() },
                "layers": layers,
            });
            let bytes = manifest.to_string().into_bytes();
            let descriptor = Descriptor {
                media_type: OCI_MANIFEST.into(),
                digest: Digest::of(&bytes),
                size: bytes.len() as u64,
                urls: Vec::new(),
                data: None,
                toc: None,
            };
            self.made.insert(config_digest, config_bytes);
            self.made.insert(descriptor.digest.clone(), bytes);
            self.offers.push(Offer { names: image.repo_tags, descriptor });
        }
        Ok(())
    }

    /// The DiffID for a plain tar, else computed.
    fn layer(&self, (offset, size): (u64, u64), diff_id: &Digest) -> Result<(Digest, &'static str)> {
        let mut head = [0; 512];
        let count = self.file.read_at(&mut head, offset).map_err(unreadable)?;
        let media_type = match Compression::of(&head[..count])? {
            Compression::None => return Ok((diff_id.clone(), OCI_LAYER)),
            Compression::Gzip => OCI_LAYER_GZIP,
            Compression::Zstd => OCI_LAYER_ZSTD,
        };
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut source = BufReader::with_capacity(1 << 20, Section { file: &self.file, offset, left: size });
        loop {
            let piece = source.fill_buf().map_err(unreadable)?;
            if piece.is_empty() {
                return Ok((hasher.finish(), media_type));
            }
            hasher.update(piece);
            let count = piece.len();
            source.consume(count);
        }
    }
}

impl Source for Archive {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>> {
        if let Some(bytes) = self.made.get(&descriptor.digest) {
            return Ok(Box::new(bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default()));
        }
        let name = format!("blobs/{}/{}", descriptor.digest.algorithm().name(), descriptor.digest.hex());
        let place = match self.blobs.get(&descriptor.digest) {
            Some(place) => Some(*place),
            None => self.find(name.as_bytes())?,
        };
        let missing = || Error::new(Kind::Image, format!("`{}` is not in the archive", descriptor.digest));
        let (offset, size) = place.ok_or_else(missing)?;
        let from = from.min(size);
        Ok(Box::new(Section { file: &self.file, offset: offset + from, left: size - from }))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Reads by offset, so several parts can be read at once.
struct Section<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

fn members(file: &File) -> Result<HashMap<Vec<u8>, Member>> {
    let mut head = [0; 512];
    let count = file.read_at(&mut head, 0).map_err(unreadable)?;
    if Compression::of(&head[..count])? != Compression::None {
        return Err(Error::new(Kind::Image, "the archive is compressed")
            .hint("decompress it: `gzip -dc FILE | brig image load`"));
    }
    let too_large = |cause: String| Error::new(Kind::Image, cause).hint("load an archive that contains only images");
    let (mut found, mut name_bytes) = (HashMap::new(), 0);
    let mut reader = Reader::new(BufReader::with_capacity(4096, PositionedFile(file)));
    while let Some(entry) = reader.next()? {
        if entry.path.len().max(entry.link.len()) > LONGEST_NAME {
            return Err(too_large(format!("a name in the archive has more than {LONGEST_NAME} bytes")));
        }
        name_bytes += entry.path.len() + entry.link.len();
        if name_bytes > MOST_NAME_BYTES {
            return Err(too_large(format!("the archive's names have more than {MOST_NAME_BYTES} bytes")));
        }
        let name = plain(&entry.path);
        let offset = reader.source().stream_position().map_err(unreadable)?;
        match entry.kind {
            EntryKind::File if entry.sparse.is_none() => found.insert(name, Member::File { offset, size: entry.size }),
            EntryKind::Symlink => found.insert(name, Member::Link(entry.link.into())),
            // A hard link names its target from the root of the archive.
            EntryKind::HardLink => match found.get(&plain(&entry.link)).cloned() {
                Some(target) => found.insert(name, target),
                None => None,
            },
            _ => None,
        };
        if found.len() > MOST_MEMBERS {
            return Err(too_large(format!("the archive has more than {MOST_MEMBERS} files")));
        }
        reader.seek_past_data()?;
    }
    Ok(found)
}

struct PositionedFile<'a>(&'a File);

impl Read for PositionedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        (&mut &*self.0).read(buffer)
    }
}

impl Seek for PositionedFile<'_> {
    fn seek(&mut self, position: SeekFrom) -> std::io::Result<u64> {
        (&mut &*self.0).seek(position)
    }
}

fn plain(name: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tar::{Entry, write::Writer};

    fn entry(kind: EntryKind, path: String, link: &str) -> Entry {
        Entry { link: link.into(), ..Entry::new(kind, path) }
    }

    fn members_of(entries: impl IntoIterator<Item = Entry>) -> Result<HashMap<Vec<u8>, Member>> {
        let mut file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(std::io::BufWriter::new(file.try_clone().unwrap()));
        entries.into_iter().for_each(|entry| writer.entry(&entry).unwrap());
        drop(writer.finish().unwrap());
        file.rewind().unwrap();
        members(&file)
    }

    #[test]
    fn memory_for_names_is_bounded() {
        let symlink = |length: usize| entry(EntryKind::Symlink, "l".into(), &"a".repeat(length));
        let check = |entries: Vec<Entry>, words: &str| {
            let refused = members_of(entries).unwrap_err();
            assert!(refused.to_string().contains(words) && refused.advice().is_some(), "{refused:?}");
        };
        check(vec![symlink(LONGEST_NAME + 1)], "more than 4096 bytes");
        check(vec![entry(EntryKind::File, "n".repeat(LONGEST_NAME + 1), "")], "more than 4096 bytes");
        let long = |n: usize| entry(EntryKind::File, format!("{n}/{}", "n".repeat(4000)), "");
        check((0..MOST_NAME_BYTES / 4000 + 1).map(long).collect(), "names have more than");
        let links = (0..1000).map(|n| entry(EntryKind::HardLink, format!("h{n}"), "l"));
        let found = members_of([symlink(LONGEST_NAME)].into_iter().chain(links)).unwrap();
        let targets = found.values().map(|member| match member {
            Member::Link(target) => target,
            Member::File { .. } => panic!("{member:?}"),
        });
        assert!(targets.clone().all(|target| Arc::ptr_eq(target, targets.clone().next().unwrap())));
        assert_eq!(targets.count(), 1001);
    }
}
