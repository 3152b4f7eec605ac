//! The store: blobs, unpacked layers and images, shared by every process of one owner. No daemon.
//!
//! ```text
//! STORE/store.json                     version and form (owners of files, overlay marks)
//!       blobs/sha256/HEX               manifests, configs, compressed layers, unchanged
//!       layers/HEX/{fs,layer.json}     a directory for each layer, named by its chain, in overlayfs's form
//!       images/HEX/image.json          the data for a start, named by the manifest; the directory carries the lease
//!       names/HOST/REPOSITORY:TAG      the digest of the image that a name means; REPOSITORY@DIGEST for a pinned one
//!       temporary/…                    work in progress, each with a lock that ends with its process
//!       lock                           shared while something is named or reserved, exclusive while prune decides
//! ```
//! A complete item gets its name by rename(2): a reader never sees a part, and a crash leaves only files in
//! `temporary`. A start takes only a shared lock on its image.

mod blob;
mod layer;
mod lease;
mod names;
mod prune;
mod record;
mod reserve;
mod temporary;

pub(crate) use layer::put_record;
pub use lease::{Image, Lease};
pub use names::Removed;
pub(super) use names::pinned;
pub use prune::Pruned;
pub use record::ImageRecord;
pub(crate) use record::LayerRecord;
pub(crate) use temporary::Temporary;

use super::Digest;
use super::form::Form;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability, Lock};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Other versions need another program.
const VERSION: u32 = 1;
const LARGEST_RECORD: u64 = 16 << 20;

/// A store of images.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    form: Form,
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    form: Form,
}

/// The default store: `/var/lib/brig` for root, `~/.local/share/brig` for other users.
pub fn default_path() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BRIG_STORE").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/brig"));
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    data.or_else(home).map(|path| path.join("brig")).ok_or_else(|| {
        Error::new(Kind::Store, "HOME is not set")
            .doing("find the store")
            .hint("name it with --store DIR or BRIG_STORE")
    })
}

impl Store {
    /// Creates the store if it is missing.
    pub fn open(path: &Path) -> Result<Store> {
        Store::open_or_make(path).map_err(|error| error.doing(format!("open the store `{}`", path.display())))
    }

    /// The store at `path`, if it exists.
    pub fn existing(path: &Path) -> Result<Option<Store>> {
        let there = match files::read_bounded(&path.join("store.json"), LARGEST_RECORD) {
            Ok(bytes) => Store::with_header(path, &bytes).map(Some),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        there.map_err(|error| error.doing(format!("open the store `{}`", path.display())))
    }

    pub(crate) fn peek(path: &Path) -> Result<Option<Form>> {
        Ok(Store::existing(path)?.map(|store| store.form))
    }

    fn open_or_make(path: &Path) -> Result<Store> {
        let header = path.join("store.json");
        match files::read_bounded(&header, LARGEST_RECORD) {
            Ok(bytes) => return Store::with_header(path, &bytes),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
        files::create_directories(path, 0o700)?;
        let _lock = Lock::wait(&path.join("lock"))?;
        if let Ok(bytes) = files::read_bounded(&header, LARGEST_RECORD) {
            return Store::with_header(path, &bytes);
        }
        for folder in ["blobs/sha256", "blobs/sha512", "layers", "images", "names", "temporary"] {
            files::create_directories(&path.join(folder), 0o700)?;
        }
        let directory = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = directory.failing(Kind::Store, || "open it")?;
        let form = Form::probe(std::os::fd::AsFd::as_fd(&directory))?;
        let bytes = to_json(&Header { version: VERSION, form })?;
        files::replace(&header, &bytes, 0o600, Durability::Synced)?;
        Ok(Store { path: path.to_owned(), form })
    }

    fn with_header(path: &Path, bytes: &[u8]) -> Result<Store> {
        let header: Header =
            serde_json::from_slice(bytes).map_err(|cause| Error::new(Kind::Store, cause.to_string()))?;
        if header.version != VERSION {
            let found = header.version;
            return Err(Error::new(Kind::Store, format!("it has version {found}; this program knows {VERSION}"))
                .hint("use the brig that made it, or another --store"));
        }
        Ok(Store { path: path.to_owned(), form: header.form })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The on-disk form of its layers.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Locks the store while something is named or reserved: `prune` does not decide meanwhile.
    pub(crate) fn writing(&self) -> Result<WriteLease> {
        let path = self.path.join("lock");
        let file = File::open(&path).map_err(|cause| files::failed(cause, format!("open `{}`", path.display())))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared))
            .failing(Kind::Store, || "take the store's lock")?;
        Ok(WriteLease { _file: file })
    }

    pub(crate) fn layer_path(&self, chain: &Digest) -> PathBuf {
        self.path.join("layers").join(chain.hex())
    }

    pub(crate) fn image_path(&self, manifest: &Digest) -> PathBuf {
        self.path.join("images").join(manifest.hex())
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.path.join("blobs").join(digest.algorithm().name()).join(digest.hex())
    }
}

#[derive(Debug)]
pub(crate) struct WriteLease {
    _file: File,
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))
}
