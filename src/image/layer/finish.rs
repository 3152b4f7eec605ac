//! Finishes a layer when the layers below are known.
//!
//! An archive omits what did not change: the parents of a changed file, the target of a new hard link. Docker applies
//! it on top of the layers below; here each layer is extracted alone. Directories get their modes and times last, the
//! deepest first.

use super::attributes::{self, FileDescriptor, Skipped};
use super::extract::Extractor;
use super::path_records::{Folder, Implicit};
use super::tree::TreeDirectory;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::Names;
use crate::image::form::{join, made, open_below, split};
use crate::image::union::{Hit, Stack};
use crate::image::{copy, tar::named};
use rustix::fs::{AtFlags, FileType, RenameFlags, linkat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FinishedLayer {
    pub(crate) entries: u64,
    /// A layer that removes nothing can be moved as a whole.
    pub(crate) removes: bool,
    pub(crate) skipped: Skipped,
}

pub(crate) fn finish_layer(mut extractor: Extractor, below: &Stack) -> Result<FinishedLayer> {
    inherit_root(&mut extractor, below).doing(|| "finish the layer's root")?;
    inherit(&mut extractor, below).doing(|| "finish the layer's directories")?;
    link(&mut extractor, below).doing(|| "finish the layer's hard links")?;
    hide(&mut extractor, below).doing(|| "finish the layer's whiteouts")?;
    close(&extractor).doing(|| "finish the layer's directories")?;
    let removes = extractor.tree.records.removes();
    Ok(FinishedLayer { entries: extractor.entries, removes, skipped: extractor.skipped })
}

fn root(extractor: &Extractor) -> OwnedFdRef {
    extractor.tree.root().directory
}

type OwnedFdRef = std::sync::Arc<OwnedFd>;

fn inherit_root(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    if extractor.tree.records.has_folder(b"") {
        return Ok(());
    }
    let folder = match below.top()? {
        Some(hit) => copy_folder(extractor, b"", &hit)?,
        None => Folder { mode: 0o755, mtime: (0, 0) },
    };
    extractor.tree.records.set_folder(Vec::new(), folder)
}

/// Parents come first.
fn inherit(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    // A move may add implicit directories.
    while let Some((path, how)) = extractor.tree.records.pop_implicit() {
        // A parent that is a directory only here was named by this layer, and hides what is below.
        let hidden = how == Implicit::Fresh
            || extractor.tree.records.is_hidden(&path)
            || below.real_path(split(&path).0, true)? != split(&path).0;
        let real = if hidden { path.clone() } else { below.real_path(&path, true)? };
        if real != path {
            move_into(extractor, &path, &real)?;
            continue;
        }
        let hit = if hidden { None } else { below.find(&path)? };
        let folder = match hit {
            None => new_folder(extractor, &path)?,
            Some(hit) if hit.kind() == FileType::Directory => copy_folder(extractor, &path, &hit)?,
            Some(_) => {
                return Err(
                    Error::new(Kind::Image, "a file is in a directory that is a file below").doing(named(&path))
                );
            }
        };
        extractor.tree.records.set_folder(path, folder)?;
    }
    Ok(())
}

/// A directory without metadata belongs to root, whatever group its parent passes on.
fn new_folder(extractor: &Extractor, path: &[u8]) -> Result<Folder> {
    let directory = open_below(root(extractor).as_fd(), path).failing(Kind::Store, || "open a directory")?;
    attributes::set_owner(FileDescriptor::Open(directory.as_fd()), 0, 0, extractor.form)?;
    Ok(Folder { mode: 0o755, mtime: (0, 0) })
}

/// Mode and time follow at the end.
fn copy_folder(extractor: &mut Extractor, path: &[u8], hit: &Hit) -> Result<Folder> {
    let directory = open_below(root(extractor).as_fd(), path).failing(Kind::Store, || "open a directory")?;
    let source = open_below(hit.directory.as_fd(), &hit.name).failing(Kind::Store, || "open a directory below")?;
    copy::attributes(source.as_fd(), directory.as_fd(), extractor.form)?;
    attributes::set_owner(FileDescriptor::Open(directory.as_fd()), hit.stat.st_uid, hit.stat.st_gid, extractor.form)?;
    let nanoseconds = u32::try_from(hit.stat.st_mtime_nsec).unwrap_or(0);
    Ok(Folder { mode: hit.stat.st_mode & 0o7777, mtime: (hit.stat.st_mtime, nanoseconds) })
}

/// `path` is a symlink below, and `real` its target.
fn move_into(extractor: &mut Extractor, path: &[u8], real: &[u8]) -> Result<()> {
    let target = extractor.tree.directory(real)?;
    let source = open_below(root(extractor).as_fd(), path).failing(Kind::Store, || "open a directory")?;
    for (name, _) in Names::of(&source).failing(Kind::Store, || "list a directory")?.iter() {
        let moved = renameat_with(&source, name, &target, name, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let shown = named(&join(path, name.to_bytes()));
                return Err(Error::new(Kind::Image, "the layer has it twice, by way of a symlink below").doing(shown));
            }
            Err(errno) => return Err(made(errno)),
        }
    }
    let (parent, name) = split(path);
    let parent = open_below(root(extractor).as_fd(), parent).failing(Kind::Store, || "open a directory")?;
    unlinkat(&parent, name, AtFlags::REMOVEDIR).failing(Kind::Store, || "remove a directory")?;
    extractor.tree.forget();
    extractor.tree.records.rename_below(path, real);
    if extractor.tree.records.forget_folder(path) {
        extractor.form.set_opaque(target.as_fd())?;
        extractor.tree.records.hide_below(real)?;
    }
    Ok(())
}

/// Copies the target up, as overlayfs would, and links to the copy.
fn link(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    let form = extractor.form;
    // A copied target's own name, or the first link to it if this layer removes or replaces the target later.
    let mut placed: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (path, link) in extractor.tree.records.links_in_order() {
        let (parent, name) = split(&path);
        let parent = extractor.tree.directory(parent)?;
        if !is_free(extractor, &parent, name)? {
            continue;
        }
        let real = below.real_path(&link.target, false)?;
        if let Some(first) = placed.get(&real).cloned() {
            let (first_parent, first_name) = split(&first);
            let directory = extractor.tree.directory(first_parent)?;
            linkat(&directory, first_name, &parent, name, AtFlags::empty()).map_err(made)?;
            placed.insert(path, first);
            continue;
        }
        let missing = || Error::new(Kind::Image, "it is a hard link to a file that no layer has").doing(named(&path));
        let hit = below.find(&real)?.ok_or_else(missing)?;
        if hit.kind() == FileType::Directory {
            return Err(Error::new(Kind::Image, "it is a hard link to a directory").doing(named(&path)));
        }
        let blocks = u64::try_from(hit.stat.st_blocks).unwrap_or(0).saturating_mul(512);
        extractor.budget.take_unpacked(blocks)?;
        if is_replaced(extractor, &real) {
            copy::node(hit.directory.as_fd(), &hit.name, &hit.stat, parent.as_fd(), name, form)?;
            placed.insert(real, path.clone());
            placed.insert(path.clone(), path);
        } else {
            let (real_parent, real_name) = split(&real);
            let onto = extractor.tree.directory(real_parent)?;
            copy::node(hit.directory.as_fd(), &hit.name, &hit.stat, onto.as_fd(), real_name, form)?;
            linkat(&onto, real_name, &parent, name, AtFlags::empty()).map_err(made)?;
            placed.insert(path, real.clone());
            placed.insert(real.clone(), real);
        }
    }
    if extractor.tree.records.has_implicit() { inherit(extractor, below) } else { Ok(()) }
}

/// Whether this layer has something else at the target or in its parents, which came after the link.
fn is_replaced(extractor: &Extractor, real: &[u8]) -> bool {
    let (parent, name) = split(real);
    extractor.tree.records.is_replaced(real)
        || match open_below(root(extractor).as_fd(), parent) {
            Ok(directory) => statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok(),
            Err(errno) => errno != Errno::NOENT,
        }
}

/// Removes a whiteout. Anything else came through a symlink of the layers below, and stays.
fn is_free(extractor: &mut Extractor, parent: &TreeDirectory, name: &[u8]) -> Result<bool> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno).failing(Kind::Store, || "look at a layer's file"),
        Ok(_) if extractor.form.is_whiteout(parent.as_fd(), name)? => {
            unlinkat(parent, name, AtFlags::empty()).map_err(made)?;
            extractor.tree.records.forget_whiteout(&parent.child(name));
            Ok(true)
        }
        Ok(_) => Ok(false),
    }
}

/// Removes useless whiteouts, which listings would show: overlayfs does not check for them in a directory of only one
/// layer. Replaces an opaque root, which overlayfs ignores, by whiteouts.
fn hide(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    for path in extractor.tree.records.take_whiteouts() {
        if extractor.tree.records.is_hidden(&path) || below.find(&path)?.is_none() {
            let (parent, name) = split(&path);
            let parent = open_below(root(extractor).as_fd(), parent).failing(Kind::Store, || "open a directory")?;
            unlinkat(&parent, name, AtFlags::empty()).failing(Kind::Store, || "remove a whiteout")?;
        } else {
            extractor.tree.records.keep_whiteout(path);
        }
    }
    if !extractor.tree.records.is_opaque(b"") {
        return Ok(());
    }
    let top = extractor.tree.root();
    for name in below.root_names()?.into_keys() {
        match statat(&top, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                extractor.form.make_whiteout(top.as_fd(), &name)?;
                extractor.tree.records.keep_whiteout(name);
            }
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                let directory = open_below(top.as_fd(), &name).failing(Kind::Store, || "open a directory")?;
                extractor.form.set_opaque(directory.as_fd())?;
                extractor.tree.records.hide_below(&name)?;
            }
            Ok(_) => {}
            Err(errno) => return Err(errno).failing(Kind::Store, || "look at a layer's file"),
        }
    }
    Ok(())
}

/// Children first: an ordinary user could not enter a closed parent, and a child's mode does not change its parent's
/// time.
fn close(extractor: &Extractor) -> Result<()> {
    let root = root(extractor);
    for (path, folder) in extractor.tree.records.folders_from_below() {
        let directory = match open_below(root.as_fd(), path) {
            Ok(directory) => directory,
            Err(errno) => {
                return Err(errno)
                    .failing(Kind::Store, || "open a directory")
                    .map_err(|error| error.doing(named(path)));
            }
        };
        attributes::set_mode(FileDescriptor::Open(directory.as_fd()), folder.mode)?;
        attributes::set_times(directory.as_fd(), folder.mtime)?;
    }
    Ok(())
}
