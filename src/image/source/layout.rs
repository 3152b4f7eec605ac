//! An OCI image layout in a folder (image-spec, image-layout.md). It may link to any file of the host, so no symlink is
//! followed.

use super::{Blob, Offer, Source};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::image::form::open_below;
use crate::image::manifest::{Descriptor, Index, LARGEST_DOCUMENT, json};
use crate::image::union::read_regular;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use serde_json::Value;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub(crate) struct Layout {
    directory: OwnedFd,
    name: String,
    offers: Vec<Offer>,
}

impl Layout {
    pub(crate) fn open(path: &Path) -> Result<Layout> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).failing(Kind::NotFound, || "open the folder")?;
        let read = |name: &str| {
            read_regular(directory.as_fd(), name.as_bytes(), LARGEST_DOCUMENT)
                .doing(|| format!("read `{name}`"))
                .hint(|| "this is not an OCI image layout: it needs oci-layout, index.json and blobs/")
        };
        check_version(&read("oci-layout")?)?;
        let offers = offers(&read("index.json")?)?;
        Ok(Layout { directory, name: path.display().to_string(), offers })
    }

    pub(crate) fn offers(&self) -> &[Offer] {
        &self.offers
    }
}

impl Source for Layout {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>> {
        let folder = format!("blobs/{}", descriptor.digest.algorithm().name());
        let step = || format!("open `{folder}/{}`", descriptor.digest.hex());
        let folder = open_below(self.directory.as_fd(), folder.as_bytes()).failing(Kind::Image, step)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&folder, descriptor.digest.hex(), flags, Mode::empty()).failing(Kind::Image, step)?;
        let stat = rustix::fs::fstat(&file).failing(Kind::Image, step)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::new(Kind::Image, "it is not a regular file")).doing(step);
        }
        if u64::try_from(stat.st_size) != Ok(descriptor.size) {
            let cause = format!("it has {} bytes where {} were announced", stat.st_size, descriptor.size);
            return Err(Error::new(Kind::Image, cause)).doing(step);
        }
        rustix::fs::seek(&file, SeekFrom::Start(from)).failing(Kind::Image, step)?;
        Ok(Box::new(File::from(file)))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub(in crate::image) fn check_version(bytes: &[u8]) -> Result<()> {
    let value = json(bytes).doing(|| "read `oci-layout`")?;
    match value.get("imageLayoutVersion").and_then(Value::as_str) {
        Some(version) if version.starts_with("1.") => Ok(()),
        other => {
            let found = other.unwrap_or("none").escape_debug().to_string();
            Err(Error::new(Kind::Image, format!("the layout's version is `{found}`, not 1.0.0")))
        }
    }
}

pub(in crate::image) fn offers(bytes: &[u8]) -> Result<Vec<Offer>> {
    let step = || "read `index.json`";
    let value = json(bytes).doing(step)?;
    if value.get("layers").is_some() || value.get("config").is_some() {
        return Err(Error::new(Kind::Image, "it is a manifest as well as an index")).doing(step);
    }
    let index: Index =
        serde_json::from_value(value).map_err(|cause| Error::new(Kind::Image, cause.to_string())).doing(step)?;
    let mut offers: Vec<Offer> = Vec::new();
    for entry in &index.manifests {
        let annotations = &entry.annotations;
        // containerd writes the whole reference, the specification only the tag.
        let name = annotations
            .get("io.containerd.image.name")
            .or_else(|| annotations.get("org.opencontainers.image.ref.name"));
        let descriptor = Descriptor::new(entry).doing(step)?;
        match offers.iter_mut().find(|offer| offer.descriptor.digest == descriptor.digest) {
            Some(offer) => offer.names.extend(name.cloned()),
            None => offers.push(Offer { names: name.cloned().into_iter().collect(), descriptor }),
        }
    }
    Ok(offers)
}
