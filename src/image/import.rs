//! Imports a root file system, a tar or a folder, as an image of one layer. A folder is read in the order of its names,
//! so the layer is reproducible.

use super::digest::{Algorithm, Digest, Hasher};
use super::layer::Budget;
use super::load::{self, LoadOptions};
use super::manifest::{Descriptor, OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST};
use super::progress::Report;
use super::source::{Blob, Source};
use super::store::{ImageRecord, Store, Temporary};
use super::tar::write::Writer;
use super::tar::{Entry, EntryKind};
use super::{Overrides, Platform, Reference, copy};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Bounds, Names, Walk, WalkStep, open_directory};
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `path` is a folder or a tar, which may be compressed; `-` is standard input. `run` sets the command and its
/// settings.
pub fn import(
    store: &Store,
    path: &Path,
    name: &Reference,
    run: &Overrides,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<ImageRecord> {
    let step = || format!("import `{}`", path.display());
    let work = Temporary::new(store)?;
    let blob = work.path().join("layer.tar.gz");
    let file = File::create(&blob).map_err(|cause| files::failed(cause, step()))?;
    let packed = HashingWriter::new(file);
    let plain = HashingWriter::new(GzEncoder::new(packed, flate2::Compression::default()));
    let mut plain = LimitedWriter { layer: plain, counted: 0, budget: Budget::new(options.limits) };
    if path.is_dir() {
        folder(path, &mut plain).doing(step)?;
    } else {
        let input: Box<dyn Read> = match path == Path::new("-") {
            true => Box::new(std::io::stdin().lock()),
            false => Box::new(File::open(path).map_err(|cause| files::failed(cause, step()))?),
        };
        let mut input = std::io::BufReader::with_capacity(256 << 10, input);
        let head = std::io::BufRead::fill_buf(&mut input).map_err(super::tar::unreadable).doing(step)?;
        let mut input: Box<dyn Read> = match super::layer::Compression::of(head).doing(step)? {
            super::layer::Compression::None => Box::new(input),
            super::layer::Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
            super::layer::Compression::Zstd => {
                Box::new(zstd::stream::read::Decoder::with_buffer(input).map_err(super::tar::unreadable).doing(step)?)
            }
        };
        std::io::copy(&mut input, &mut plain).map_err(super::tar::unreadable).doing(step)?;
    }
    let (encoder, diff_id, _) = plain.layer.finish();
    let (_, digest, size) = encoder.finish().map_err(|cause| files::failed(cause, step()))?.finish();
    let platform = options.platform.clone().unwrap_or_else(Platform::host);
    let config = json!({
        "architecture": platform.architecture, "os": platform.os,
        "config": {
            "User": run.user.clone().unwrap_or_default(), "Env": run.env, "Entrypoint": run.entrypoint,
            "Cmd": run.args.clone().unwrap_or_else(|| vec!["/bin/sh".into()]),
            "WorkingDir": run.working_dir.clone().unwrap_or_default(),
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id.to_string()] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": { "mediaType": OCI_CONFIG, "digest": Digest::of(&config).to_string(), "size": config.len() },
        "layers": [{ "mediaType": OCI_LAYER_GZIP, "digest": digest.to_string(), "size": size }],
    });
    let manifest = manifest.to_string().into_bytes();
    let descriptor = Descriptor {
        media_type: OCI_MANIFEST.into(),
        digest: Digest::of(&manifest),
        size: manifest.len() as u64,
        urls: Vec::new(),
        data: None,
        toc: None,
    };
    let source = ImportedImage { documents: vec![manifest, config], layer: (digest, blob) };
    load::add(store, &source, &descriptor, std::slice::from_ref(name), options, report).doing(step)
}

struct ImportedImage {
    documents: Vec<Vec<u8>>,
    layer: (Digest, PathBuf),
}

impl Source for ImportedImage {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>> {
        if descriptor.digest == self.layer.0 {
            let failed = |cause| files::failed(cause, "open the layer".into());
            let mut file = File::open(&self.layer.1).map_err(failed)?;
            file.seek(SeekFrom::Start(from)).map_err(failed)?;
            return Ok(Box::new(file));
        }
        let found = self.documents.iter().find(|bytes| Digest::of(bytes) == descriptor.digest);
        let bytes = found.ok_or_else(|| Error::new(Kind::Internal, "a document that was not made"))?;
        Ok(Box::new(bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default()))
    }

    fn name(&self) -> String {
        "the imported root".into()
    }
}

/// Refuses a root beyond the limits before the store has all of it.
struct LimitedWriter {
    layer: HashingWriter<GzEncoder<HashingWriter<File>>>,
    /// Compressed bytes that the budget has.
    counted: u64,
    budget: Arc<Budget>,
}

impl Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.layer.write(bytes)?;
        let packed = self.layer.sink.get_ref().size;
        self.budget.take_layer(packed - self.counted, count as u64, 0).map_err(std::io::Error::other)?;
        self.counted = packed;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.layer.flush()
    }
}

struct HashingWriter<W> {
    sink: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> HashingWriter<W> {
    fn new(sink: W) -> HashingWriter<W> {
        HashingWriter { sink, hasher: Hasher::new(Algorithm::Sha256), size: 0 }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.sink, self.hasher.finish(), self.size)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.sink.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.sink.flush()
    }
}

fn folder(path: &Path, sink: impl Write) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).failing(Kind::NotFound, || "open the folder")?;
    let stat = rustix::fs::fstat(&root).failing(Kind::Store, || "look at the folder")?;
    let mut writer = Writer::new(sink);
    // By inode, for files with several names.
    let mut links = HashMap::<u64, Vec<u8>>::new();
    writer.entry(&entry(b"./".to_vec(), &stat, EntryKind::Directory, copy::listed(root.as_fd())?))?;
    let mut walk = Walk::<1, Vec<u8>>::new(Bounds::NONE);
    let step = || "read the folder";
    let enter = |walk: &mut Walk<1, Vec<u8>>, directory: OwnedFd, path: Vec<u8>| -> Result<()> {
        let mut names = Names::of(&directory).failing(Kind::Store, || "list a directory")?;
        names.sort();
        walk.enter([Some(directory)], names, path).failing(Kind::Store, step)
    };
    enter(&mut walk, root, Vec::new())?;
    while let Some(next) = walk.next().failing(Kind::Store, step)? {
        let (WalkStep::Entry(_), Some(path)) = (next, walk.state()) else { continue };
        let (name, directory) = (walk.name(), walk.side(0).failing(Kind::Internal, step)?);
        let mut own = path.clone();
        own.extend_from_slice(name.to_bytes());
        let step = || format!("read `{}`", String::from_utf8_lossy(&own).escape_debug());
        let status = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, step)?;
        let Some(kind) = kind(&status) else { continue };
        // Another file system does not belong to the root: /proc, a mounted cache.
        if status.st_dev != stat.st_dev {
            continue;
        }
        if kind != EntryKind::Directory && status.st_nlink > 1 {
            if let Some(first) = links.get(&status.st_ino) {
                let mut link = entry(own, &status, EntryKind::HardLink, Vec::new());
                link.link.clone_from(first);
                writer.entry(&link)?;
                continue;
            }
            links.insert(status.st_ino, own.clone());
        }
        match kind {
            EntryKind::File => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat(directory, name, flags, Mode::empty()).failing(Kind::Store, step)?);
                let made = entry(own.clone(), &status, kind, copy::listed(file.as_fd())?);
                writer.entry(&made)?;
                content(file, made.size, &mut writer).doing(step)?;
            }
            EntryKind::Directory => {
                let inner = open_directory(directory, name).failing(Kind::Store, step)?;
                let attributes = copy::listed(inner.as_fd())?;
                own.push(b'/');
                writer.entry(&entry(own.clone(), &status, kind, attributes))?;
                enter(&mut walk, inner, own)?;
            }
            _ => {
                let mut made = entry(own.clone(), &status, kind, Vec::new());
                if kind == EntryKind::Symlink {
                    let target = readlinkat(directory, name, Vec::new()).failing(Kind::Store, step)?;
                    made.link = target.into_bytes();
                }
                writer.entry(&made)?;
            }
        }
    }
    writer.finish().map(drop)
}

/// Leaves out a socket: its process is not in the image.
fn kind(status: &Stat) -> Option<EntryKind> {
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Some(EntryKind::File),
        FileType::Directory => Some(EntryKind::Directory),
        FileType::Symlink => Some(EntryKind::Symlink),
        FileType::CharacterDevice => Some(EntryKind::Character),
        FileType::BlockDevice => Some(EntryKind::Block),
        FileType::Fifo => Some(EntryKind::Fifo),
        _ => None,
    }
}

/// A file that changes must not shift the next entry.
fn content<W: Write>(file: File, size: u64, writer: &mut Writer<W>) -> Result<()> {
    let (mut file, mut left, mut buffer) = (file.take(size), size, vec![0; 64 << 10]);
    while left > 0 {
        let count = file.read(&mut buffer).map_err(|cause| files::failed(cause, "read it".into()))?;
        if count == 0 {
            return Err(Error::new(Kind::State, "it became shorter while it was read")
                .hint("import a root that no process changes"));
        }
        writer.data(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn entry(path: Vec<u8>, stat: &Stat, kind: EntryKind, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Entry {
    let device = match kind {
        EntryKind::Character | EntryKind::Block => (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
        _ => (0, 0),
    };
    Entry {
        kind,
        path,
        link: Vec::new(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        size: if kind == EntryKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 },
        sparse: None,
        device,
        xattrs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Limits;

    #[test]
    fn limit_is_checked_before_all_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Store::open(&scratch.path().join("store")).unwrap();
        // Without its end: a read to the end fails with another error.
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&vec![0; 4 << 20]).unwrap();
        let packed = encoder.finish().unwrap();
        let cut = scratch.path().join("cut.tar.gz");
        std::fs::write(&cut, &packed[..packed.len() - 16]).unwrap();
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).unwrap();
        // A hole: a read to the end takes hours.
        File::create(root.join("hole")).unwrap().set_len(8 << 40).unwrap();
        let limits = Limits { bytes: 1_000_000, ..Limits::default() };
        let options = LoadOptions { limits, ..LoadOptions::default() };
        for path in [&cut, &root] {
            let name = "x".parse().unwrap();
            let refused = import(&store, path, &name, &Overrides::default(), &options, &|_| {}).unwrap_err();
            assert!(refused.to_string().contains("unpacks to more than 1000000 bytes"), "{refused}");
            assert!(refused.advice().is_some_and(|advice| advice.contains("--limit")), "{refused:?}");
            assert_eq!(std::fs::read_dir(store.path().join("temporary")).unwrap().count(), 0);
        }
    }
}
