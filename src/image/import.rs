//! A root file system as an image of one layer: from a tar (packed or not, standard input too) or a folder.
//!
//! A folder is read in the order of its names and gives the same layer each time; what goes in is what the layer's reader
//! takes out: owners, modes, times, attributes, hard links, devices.

use super::digest::{Algorithm, Digest, Hasher};
use super::load::{self, LoadOptions};
use super::manifest::{Descriptor, OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST};
use super::progress::Report;
use super::source::{Blob, Source};
use super::store::{ImageRecord, Store, Temporary};
use super::tar::write::Writer;
use super::tar::{Entry, EntryKind};
use super::{Overrides, Platform, Reference, copy, tree};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Imports the root at `path` (`-` is standard input) under `name`; `run` says how it is started.
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
    let packed = Hashed::new(file);
    let mut plain = Hashed::new(flate2::write::GzEncoder::new(packed, flate2::Compression::default()));
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
    let (encoder, diff_id, _) = plain.finish();
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
    };
    let source = Made { documents: vec![manifest, config], layer: (digest, blob) };
    load::add(store, &source, &descriptor, std::slice::from_ref(name), options, report).doing(step)
}

/// The documents that were just made, and the layer.
struct Made {
    documents: Vec<Vec<u8>>,
    layer: (Digest, PathBuf),
}

impl Source for Made {
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

/// Hashes and counts what is written.
struct Hashed<W> {
    sink: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Hashed<W> {
    fn new(sink: W) -> Hashed<W> {
        Hashed { sink, hasher: Hasher::new(Algorithm::Sha256), size: 0 }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.sink, self.hasher.finish(), self.size)
    }
}

impl<W: Write> Write for Hashed<W> {
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
    let mut links = HashMap::new();
    writer.entry(&entry(b"./".to_vec(), &stat, EntryKind::Directory, copy::listed(root.as_fd())?))?;
    walk(root.as_fd(), b"", stat.st_dev, &mut writer, &mut links)?;
    writer.finish().map(drop)
}

fn walk<W: Write>(
    directory: BorrowedFd<'_>,
    path: &[u8],
    device: u64,
    writer: &mut Writer<W>,
    links: &mut HashMap<u64, Vec<u8>>,
) -> Result<()> {
    let mut names = tree::names(directory)?;
    names.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, _) in names {
        let own = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        let step = || format!("read `{}`", String::from_utf8_lossy(&own).escape_debug());
        let stat = statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, step)?;
        // Another file system is not part of the root: /proc, a cache that is mounted there.
        if stat.st_dev != device {
            continue;
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            FileType::CharacterDevice => EntryKind::Character,
            FileType::BlockDevice => EntryKind::Block,
            FileType::Fifo => EntryKind::Fifo,
            // A socket belongs to a process that is not in the image.
            _ => continue,
        };
        if kind != EntryKind::Directory && stat.st_nlink > 1 {
            if let Some(first) = links.get(&stat.st_ino) {
                let mut link = entry(own, &stat, EntryKind::HardLink, Vec::new());
                link.link.clone_from(first);
                writer.entry(&link)?;
                continue;
            }
            links.insert(stat.st_ino, own.clone());
        }
        let open = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match kind {
            EntryKind::File => {
                let file =
                    File::from(openat(directory, name.as_slice(), open, Mode::empty()).failing(Kind::Store, step)?);
                let made = entry(own.clone(), &stat, kind, copy::listed(file.as_fd())?);
                writer.entry(&made)?;
                content(file, made.size, writer).doing(step)?;
            }
            EntryKind::Directory => {
                let inner = super::layer::open_child(directory, &name).failing(Kind::Store, step)?;
                let attributes = copy::listed(inner.as_fd())?;
                writer.entry(&entry([own.as_slice(), b"/"].concat(), &stat, kind, attributes))?;
                walk(inner.as_fd(), &own, device, writer, links)?;
            }
            _ => {
                let mut made = entry(own.clone(), &stat, kind, Vec::new());
                if kind == EntryKind::Symlink {
                    let target = readlinkat(directory, name.as_slice(), Vec::new()).failing(Kind::Store, step)?;
                    made.link = target.into_bytes();
                }
                writer.entry(&made)?;
            }
        }
    }
    Ok(())
}

/// Exactly as many bytes as were announced: a file that changes while it is read must not shift the rest.
fn content<W: Write>(file: File, size: u64, writer: &mut Writer<W>) -> Result<()> {
    let (mut file, mut left, mut buffer) = (file.take(size), size, vec![0; 64 << 10]);
    while left > 0 {
        let count = file.read(&mut buffer).map_err(|cause| files::failed(cause, "read it".into()))?;
        if count == 0 {
            return Err(Error::new(Kind::State, "it became shorter while it was read")
                .hint("import a root that nobody is changing"));
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
