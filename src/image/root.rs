//! What a sandbox needs to mount an image's layers as a root, read without mounting.

use super::flatten::{self, ApplyMode};
use super::form::{Form, Marks, Owners, open_below};
use super::store::{Image, Store, Temporary};
use super::union::Stack;
use crate::error::{Context, Error, Kind, Result};
use crate::files::empty_directory;
use crate::host;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, statat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An image's layers for overlayfs, and the entries of their root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayeredRoot {
    /// The directory that contains all layers.
    pub directory: PathBuf,
    /// Paths in it, topmost first.
    pub layers: Vec<String>,
    /// The mode of the root.
    pub mode: u32,
    /// Top-level directories.
    pub folders: Vec<String>,
    /// Other top-level entries: links and files.
    pub others: Vec<String>,
}

/// The user that mounts layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounter {
    /// The machine's root.
    Root,
    /// An ordinary user, whose sandbox has one id.
    User,
}

/// The files of an image as one tree, removed on drop.
#[derive(Debug)]
pub struct Copied(Temporary);

impl Copied {
    /// The path of the tree.
    pub fn tree(&self) -> PathBuf {
        self.0.path().join("root")
    }
}

/// `names` are layers in `directory`, topmost first. `target` must be empty.
pub(crate) fn gather(directory: &Path, names: &[String], target: BorrowedFd<'_>) -> Result<()> {
    let form = directory.parent().map(Store::peek).transpose()?.flatten();
    let form = form.ok_or_else(|| Error::new(Kind::Internal, "layers outside a store"))?;
    copy(names.iter().map(|name| directory.join(name)), form, target)
}

/// Copies one layer's part of `path` (of the merged tree, without links) onto `target`, which has the parts below.
/// Returns whether the directory then exists.
fn copy_part(layer: &Path, path: &[u8], form: Form, target: BorrowedFd<'_>, existed: bool) -> Result<bool> {
    let step = || format!("look into the layer `{}`", layer.display());
    let layer = rustix::fs::open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let mut directory = open_below(layer.failing(Kind::Store, step)?.as_fd(), b"").failing(Kind::Store, step)?;
    let mut hides = false;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        let status = match statat(&directory, part, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if hides => return clear(target).map(|()| false),
            Err(Errno::NOENT) => return Ok(existed),
            other => other.failing(Kind::Store, step)?,
        };
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            return clear(target).map(|()| false); // a whiteout, or another file in its place
        }
        directory = open_below(directory.as_fd(), part).failing(Kind::Store, step)?;
        hides |= form.is_opaque(directory.as_fd())?;
    }
    if hides {
        clear(target)?;
    }
    flatten::apply(directory.as_fd(), target, form, ApplyMode::Copy, true)?;
    Ok(true)
}

fn clear(target: BorrowedFd<'_>) -> Result<()> {
    let directory = open_below(target, b"").failing(Kind::Store, || "open a copied directory")?;
    empty_directory(directory).failing(Kind::Store, || "empty a copied directory")
}

fn copy(layers: impl DoubleEndedIterator<Item = PathBuf>, form: Form, target: BorrowedFd<'_>) -> Result<()> {
    for path in layers.rev() {
        let layer = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::Store, || format!("open the layer `{}`", path.display()))?;
        let layer = open_below(layer.as_fd(), b"").failing(Kind::Store, || "open a layer")?;
        flatten::apply(layer.as_fd(), target, form, ApplyMode::Copy, true)?;
    }
    Ok(())
}

impl Image {
    /// Whether this kernel can mount the layers in place: with other owners for root, in a user namespace for other
    /// users.
    pub fn can_be_shown(&self, mounter: Mounter) -> Result<bool> {
        let Some(layer) = self.layers.first() else { return Ok(true) };
        let found = rustix::fs::statfs(layer).failing(Kind::Store, || format!("look at `{}`", layer.display()))?;
        match mounter {
            Mounter::Root => Ok(host::shows_other_owners(found.f_type)),
            Mounter::User => {
                let store = self.store()?;
                let layer = layer.strip_prefix(store).unwrap_or(layer);
                Ok(host::overlays_take(found.f_type, store, layer, Path::new("blobs")))
            }
        }
    }

    fn store(&self) -> Result<&Path> {
        let outside = || Error::new(Kind::Internal, "a layer outside a store");
        self.layers.first().and_then(|layer| layer.ancestors().nth(3)).ok_or_else(outside)
    }

    /// Copies all files into one tree: for root, and where [`Image::can_be_shown`] is false.
    pub fn copied(&self) -> Result<Copied> {
        let work = Temporary::in_directory(&self.store()?.join("temporary"))?;
        let root = work.make("root")?;
        copy(self.layers.iter().cloned(), self.form, root.as_fd())?;
        Ok(Copied(work))
    }

    /// Refuses a store whose marks this mounter's overlay ignores: removed files would come back.
    pub fn layered_root(&self, mounter: Mounter) -> Result<LayeredRoot> {
        self.fits(mounter)?;
        let (Some(first), false) = (self.layers.first(), self.layers.is_empty()) else {
            return Err(Error::new(Kind::Image, "the image has no layers, so there is nothing to run in it"));
        };
        let directory = first.parent().and_then(Path::parent).map(Path::to_path_buf);
        let directory = directory.ok_or_else(|| Error::new(Kind::Internal, "a layer without a directory"))?;
        let relative = |path: &PathBuf| {
            let below = path.strip_prefix(&directory).ok().and_then(Path::to_str).map(str::to_owned);
            below.ok_or_else(|| Error::new(Kind::Internal, "a layer outside the store"))
        };
        let layers = self.layers.iter().map(relative).collect::<Result<Vec<_>>>()?;
        let stack = Stack::open(&self.layers, self.form)?;
        let mode = stack.top()?.map_or(0o755, |top| top.stat.st_mode & 0o7777);
        let (mut folders, mut others) = (Vec::new(), Vec::new());
        for (name, is_folder) in stack.root_names()? {
            // A name that is not text cannot be a volume, and stays read-only.
            if let Ok(name) = String::from_utf8(name) {
                if is_folder { folders.push(name) } else { others.push(name) }
            }
        }
        Ok(LayeredRoot { directory, layers, mode, folders, others })
    }

    /// Follows symlinks inside the image.
    pub fn has_directory(&self, path: &str) -> Result<bool> {
        let stack = Stack::open(&self.layers, self.form)?;
        let real = stack.real_path(path.as_bytes(), true)?;
        Ok(real.is_empty() || stack.find(&real)?.is_some_and(|hit| hit.kind() == FileType::Directory))
    }

    /// `target` must be empty. Follows symlinks inside the image. `false` if the image lacks such a directory.
    pub(crate) fn copy_directory(&self, path: &Path, target: BorrowedFd<'_>) -> Result<bool> {
        let stack = Stack::open(&self.layers, self.form)?;
        let real = stack.real_path(path.as_os_str().as_bytes(), true)?;
        if real.is_empty() || stack.find(&real)?.is_none_or(|hit| hit.kind() != FileType::Directory) {
            return Ok(false);
        }
        let mut exists = false;
        for layer in self.layers.iter().rev() {
            exists = copy_part(layer, &real, self.form, target, exists)?;
        }
        Ok(exists)
    }

    fn fits(&self, mounter: Mounter) -> Result<()> {
        match (mounter, self.form.marks, self.form.owners) {
            (Mounter::Root, Marks::Trusted, Owners::Image) | (Mounter::User, Marks::User, Owners::Caller) => Ok(()),
            (Mounter::Root, ..) => Err(Error::new(
                Kind::Store,
                "its store was made without root, and root's overlays do not read its marks",
            )
            .hint("as root use a store that root made: --store DIR")),
            (Mounter::User, _, Owners::Image) => Err(Error::new(
                Kind::Store,
                "its store has files of many owners, and an ordinary user's sandbox has one id",
            )
            .hint("use a store of your own that was made without --subuid: --store DIR")),
            (Mounter::User, ..) => {
                Err(Error::new(Kind::Store, "its store was made by root").hint("use a store of your own: --store DIR"))
            }
        }
    }
}
