//! A source gives documents and blobs unchecked: each reader checks size and digest.

mod archive;
pub(super) mod layout;
mod select;

pub(crate) use archive::Archive;
pub(crate) use layout::Layout;
pub(crate) use select::{SelectedImage, choose};

use super::manifest::{Descriptor, LARGEST_DOCUMENT};
use super::store::Store;
use crate::error::{Error, Kind, Result, Step};
use std::io::Read;
use std::path::Path;

pub(crate) type Blob<'a> = Box<dyn Read + Send + 'a>;

pub(crate) trait Source: Sync {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>>;
    /// May take parts of the blob from other blobs of the store, and returns the number of those bytes.
    fn open_reusing(&self, descriptor: &Descriptor, from: u64, _store: &Store) -> Result<(Blob<'_>, u64)> {
        Ok((self.open(descriptor, from)?, 0))
    }
    fn name(&self) -> String;
    /// Whether a partial blob is worth keeping.
    fn is_slow(&self) -> bool {
        false
    }
    /// The store cannot replace its own damaged blob.
    fn is_store(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// A whole reference or just a tag.
    pub(crate) names: Vec<String>,
    pub(crate) descriptor: Descriptor,
}

pub(crate) fn document(source: &dyn Source, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let step = || format!("fetch `{}`", descriptor.digest);
    if descriptor.size > LARGEST_DOCUMENT {
        let size = descriptor.size;
        return Err(Error::new(Kind::Image, format!("{size} bytes are more than {LARGEST_DOCUMENT}"))).doing(step);
    }
    let mut bytes = Vec::new();
    match &descriptor.data {
        Some(data) => bytes.clone_from(data),
        None => {
            let blob = source.open(descriptor, 0).doing(step)?;
            blob.take(descriptor.size + 1).read_to_end(&mut bytes).map_err(super::tar::unreadable).doing(step)?;
        }
    }
    descriptor.check(&bytes)?;
    Ok(bytes)
}

pub(crate) enum Local {
    Layout(Layout),
    Archive(Archive),
}

impl Local {
    /// A folder is an OCI layout, a file a tar of one or a docker-archive.
    pub(crate) fn open(path: &Path) -> Result<Local> {
        let step = || format!("open the image at `{}`", path.display());
        if path.is_dir() {
            return Layout::open(path).map(Local::Layout).doing(step);
        }
        let file = std::fs::File::open(path).map_err(|cause| crate::files::failed(cause, step()))?;
        Archive::open(file, path.display().to_string()).map(Local::Archive).doing(step)
    }

    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Local::Layout(layout) => layout,
            Local::Archive(archive) => archive,
        }
    }

    pub(crate) fn offers(&self) -> &[Offer] {
        match self {
            Local::Layout(layout) => layout.offers(),
            Local::Archive(archive) => archive.offers(),
        }
    }
}
