//! One small file for each tag or digest of a repository, replaced atomically. A pinned name never moves a tag, and
//! only names content with that digest.

use super::{ImageRecord, Store, Temporary};
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Durability};
use crate::image::{Digest, Reference};
use serde::Serialize;
use std::path::{Path, PathBuf};

const LONGEST: u64 = 256;

/// The result of `rm`.
#[derive(Debug, Serialize)]
pub struct Removed {
    /// Removed names.
    pub untagged: Vec<String>,
    /// The image, if that was its last name and it is not in use.
    pub removed: Option<Digest>,
}

/// A name with a digest must name exactly that content.
pub(in crate::image) fn pinned(name: &Reference) -> Error {
    Error::new(Kind::Usage, "a name with a digest is what has that digest, and cannot be given")
        .doing(format!("name an image `{name}`"))
        .hint("give it a tag: NAME:TAG")
}

impl Store {
    /// The grammar of references excludes `..` and absolute paths.
    fn name_path(&self, reference: &Reference) -> PathBuf {
        self.path.join("names").join(reference.kept().to_string())
    }

    pub(crate) fn put_name(&self, reference: &Reference, digest: &Digest) -> Result<()> {
        // The digest of an index has no image: its name maps it to one.
        if let Some(other) = reference.digest().filter(|other| *other != digest)
            && self.image(other)?.is_some()
        {
            return Err(pinned(reference));
        }
        let path = self.name_path(reference);
        if let Some(parent) = path.parent() {
            files::create_directories(parent, 0o700)?;
        }
        // A temporary name next to it would read as a tag.
        let work = Temporary::new(self)?;
        let staged = work.path().join("name");
        files::replace(&staged, digest.to_string().as_bytes(), 0o600, Durability::Synced)?;
        let renamed = std::fs::rename(&staged, &path);
        renamed.map_err(|cause| files::failed(cause, format!("name the image `{}`", reference.familiar())))
    }

    /// By digest, by name, or by the first digits of a digest.
    pub fn find(&self, text: &str) -> Result<ImageRecord> {
        self.find_by(text).doing(|| format!("find the image `{}`", text.escape_debug()))
    }

    fn find_by(&self, text: &str) -> Result<ImageRecord> {
        if let Ok(digest) = text.parse::<Digest>() {
            return self.image(&digest)?.ok_or_else(missing);
        }
        // A name wins over digits, which it may look like.
        if let Ok(reference) = text.parse::<Reference>() {
            // A manifest is found by its digest. Only the name maps the digest of an index to an image.
            let named = self.read_name(&self.name_path(&reference))?;
            for digest in reference.digest().into_iter().chain(&named) {
                if let Some(record) = self.image(digest)? {
                    return Ok(record);
                }
            }
        }
        self.find_by_digits(text)
    }

    /// [`Store::find`], also of an image with an unreadable record.
    pub fn find_digest(&self, text: &str) -> Result<Digest> {
        match self.find(text) {
            Err(error) if error.kind() == Kind::Record => {
                let named = || self.read_name(&self.name_path(&text.parse().ok()?)).ok()?;
                text.parse().ok().or_else(named).ok_or(error)
            }
            found => found.map(|record| record.digest),
        }
    }

    fn find_by_digits(&self, text: &str) -> Result<ImageRecord> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < 4 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(missing());
        }
        let fits = |record: &ImageRecord| {
            record.digest.hex().starts_with(digits) || record.config_blob.digest.hex().starts_with(digits)
        };
        let mut found = self.images()?.into_iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(record), None) => Ok(record),
            (Some(_), Some(_)) => {
                Err(Error::new(Kind::NotFound, "several images begin with these digits").hint("give more of them"))
            }
            _ => Err(missing()),
        }
    }

    fn read_name(&self, path: &Path) -> Result<Option<Digest>> {
        match files::read_bounded(path, LONGEST) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().parse().map(Some),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            // `host/a:1` is a file, so no name is below it. A long repository with a long digest exceeds the length of
            // a file name.
            Err(error) if matches!(error.errno(), Some(libc::ENOTDIR | libc::EISDIR | libc::ENAMETOOLONG)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// In order.
    pub fn names(&self) -> Result<Vec<(Reference, Digest)>> {
        let root = self.path.join("names");
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            // `prune` removes an image whose name is not listed.
            let failed = |cause| files::failed(cause, format!("list `{}`", folder.display()));
            for entry in std::fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => {
                        folders.push(path);
                        continue;
                    }
                    // Removed meanwhile.
                    Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                    kind => kind.map_err(failed)?,
                };
                let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str) else { continue };
                let Ok(reference) = name.parse::<Reference>() else { continue };
                if self.name_path(&reference) == path
                    && let Some(digest) = self.read_name(&path)?
                {
                    found.push((reference, digest));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn remove_name(&self, reference: &Reference) -> Result<bool> {
        match std::fs::remove_file(self.name_path(reference)) {
            Ok(()) => Ok(true),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(cause) => Err(files::failed(cause, format!("remove the name `{}`", reference.familiar()))),
        }
    }

    /// Gives an image another name.
    pub fn tag(&self, image: &str, name: &Reference) -> Result<()> {
        if name.digest().is_some() {
            return Err(Error::new(Kind::Usage, "a name with a digest cannot be given").doing(format!("tag `{name}`")));
        }
        let _writing = self.writing()?;
        let record = self.find(image)?;
        self.put_name(name, &record.digest)
    }

    /// Names an image that another name found. `false` if the image was removed meanwhile.
    pub(crate) fn name_too(&self, name: &Reference, digest: &Digest) -> Result<bool> {
        if self.read_name(&self.name_path(name))?.as_ref() == Some(digest) {
            return Ok(true);
        }
        let _writing = self.writing()?;
        if self.image(digest)?.is_none() {
            return Ok(false);
        }
        self.put_name(name, digest).map(|()| true)
    }

    /// Removes a name, or an image with all names if `text` is a digest. An image in use loses only its names; `prune`
    /// removes it later.
    pub fn remove(&self, text: &str) -> Result<Removed> {
        let digest = self.find_digest(text)?;
        let all: Vec<Reference> =
            self.names()?.into_iter().filter(|(_, named)| *named == digest).map(|(name, _)| name).collect();
        let named = text.parse::<Reference>().ok().map(|name| name.kept()).filter(|name| all.contains(name));
        let going = match &named {
            Some(reference) => vec![reference.clone()],
            None if all.len() > 1 => {
                let names = all.iter().map(Reference::familiar).collect::<Vec<_>>().join(", ");
                return Err(Error::new(Kind::State, format!("it has several names: {names}"))
                    .doing(format!("remove the image `{}`", digest.short()))
                    .hint("remove it by its names"));
            }
            None => all.clone(),
        };
        let mut untagged = Vec::new();
        for reference in &going {
            if self.remove_name(reference)? {
                untagged.push(reference.familiar());
            }
        }
        let last = going.len() == all.len();
        let removed = if last { self.remove_image(&digest)?.then_some(digest) } else { None };
        Ok(Removed { untagged, removed })
    }
}

fn missing() -> Error {
    Error::new(Kind::NotFound, "the store has no such image").hint("get it with `brig image pull` or `brig image load`")
}
