//! Finishing a layer once the layers below are known.
//!
//! An archive leaves out what did not change: the parents of a changed file, the target of a new hard link. Applied on
//! top of the layers below, as Docker does it, those are simply there. Here each layer is a directory of its own, unpacked
//! while the ones below still are, so what was left out is filled in now: metadata of parents, symlinks on the way, links.
//! Directories get their modes and times last, from the deepest up.

use super::attributes::{self, Held, Skipped};
use super::extract::{Extractor, Folder};
use super::place::{self, Implicit, is_below, made, open_below, split};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::image::tree::names;
use crate::image::union::{Hit, Stack};
use crate::image::{copy, tar::named};
use rustix::fs::{AtFlags, FileType, RenameFlags, linkat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a finished layer has, for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) entries: u64,
    /// Whether it removes anything: a layer that does not can be moved as a whole.
    pub(crate) removes: bool,
    pub(crate) skipped: Skipped,
}

/// Finishes the tree of `extractor` on top of `below`.
pub(crate) fn settle(mut extractor: Extractor, below: &Stack) -> Result<Settled> {
    inherit_root(&mut extractor, below).doing(|| "finish the layer's root")?;
    inherit(&mut extractor, below).doing(|| "finish the layer's directories")?;
    link(&mut extractor, below).doing(|| "finish the layer's hard links")?;
    hide(&mut extractor, below).doing(|| "finish the layer's whiteouts")?;
    close(&extractor).doing(|| "finish the layer's directories")?;
    let removes = !extractor.whiteouts.is_empty() || !extractor.opaque.is_empty();
    Ok(Settled { entries: extractor.entries, removes, skipped: extractor.skipped })
}

fn root(extractor: &Extractor) -> OwnedFdRef {
    extractor.tree.root().directory
}

type OwnedFdRef = std::sync::Arc<OwnedFd>;

/// A layer that does not mention the root has the root of the layer below.
fn inherit_root(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    if extractor.folders.contains_key(&b""[..]) {
        return Ok(());
    }
    let folder = match below.top()? {
        Some(hit) => copy_folder(extractor, b"", &hit)?,
        None => Folder { mode: 0o755, mtime: (0, 0) },
    };
    extractor.folders.insert(Vec::new(), folder);
    Ok(())
}

/// Parents first: each implicit directory becomes what the stack below has at its place.
fn inherit(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    let mut moved: Vec<Vec<u8>> = Vec::new();
    // Moving something to where it belongs may make more of them, so the list is taken from until it is empty.
    while let Some((path, how)) = extractor.tree.implicit.pop_first() {
        if moved.iter().any(|old| is_below(&path, old)) {
            continue;
        }
        if how == Implicit::Fresh {
            extractor.opaque.insert(path.clone());
            let directory = open_below(root(extractor).as_fd(), &path).failing(Kind::Store, || "open a directory")?;
            extractor.form.set_opaque(directory.as_fd())?;
        }
        // A parent that is a directory here and not below was named by this layer, and hides what is below.
        let hidden = how == Implicit::Fresh
            || extractor.opaque.iter().any(|other| *other != path && is_below(&path, other))
            || below.real_path(split(&path).0, true)? != split(&path).0;
        let real = if hidden { path.clone() } else { below.real_path(&path, true)? };
        if real != path {
            move_into(extractor, &path, &real)?;
            moved.push(path);
            continue;
        }
        let hit = if hidden { None } else { below.find(&path)? };
        let folder = match hit {
            None => Folder { mode: 0o755, mtime: (0, 0) },
            Some(hit) if hit.kind() == FileType::Directory => copy_folder(extractor, &path, &hit)?,
            Some(_) => {
                return Err(
                    Error::new(Kind::Image, "a file is in a directory that is a file below").doing(named(&path))
                );
            }
        };
        extractor.folders.insert(path, folder);
    }
    Ok(())
}

/// Owner and attributes of the directory below; its mode and time come at the end.
fn copy_folder(extractor: &mut Extractor, path: &[u8], hit: &Hit) -> Result<Folder> {
    let directory = open_below(root(extractor).as_fd(), path).failing(Kind::Store, || "open a directory")?;
    let source = open_below(hit.directory.as_fd(), &hit.name).failing(Kind::Store, || "open a directory below")?;
    copy::attributes(source.as_fd(), directory.as_fd(), extractor.form)?;
    attributes::set_owner(Held::Open(directory.as_fd()), hit.stat.st_uid, hit.stat.st_gid, extractor.form)?;
    let nanoseconds = u32::try_from(hit.stat.st_mtime_nsec).unwrap_or(0);
    Ok(Folder { mode: hit.stat.st_mode & 0o7777, mtime: (hit.stat.st_mtime, nanoseconds) })
}

/// An implicit directory that is a symlink below: what it holds belongs where the symlink leads.
fn move_into(extractor: &mut Extractor, path: &[u8], real: &[u8]) -> Result<()> {
    let form = extractor.form;
    let target = extractor.tree.directory(real, &|directory, name| form.is_whiteout(directory, name))?;
    let source = open_below(root(extractor).as_fd(), path).failing(Kind::Store, || "open a directory")?;
    for (name, _) in names(source.as_fd())? {
        let moved = renameat_with(&source, name.as_slice(), &target, name.as_slice(), RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let shown = named(&place::join(path, &name));
                return Err(Error::new(Kind::Image, "the layer has it twice, by way of a symlink below").doing(shown));
            }
            Err(errno) => return Err(made(errno)),
        }
    }
    let (parent, name) = split(path);
    let parent = open_below(root(extractor).as_fd(), parent).failing(Kind::Store, || "open a directory")?;
    unlinkat(&parent, name, AtFlags::REMOVEDIR).failing(Kind::Store, || "remove a directory")?;
    extractor.tree.forget();
    rename_known(extractor, path, real);
    Ok(())
}

/// Everything that is known about paths below `old` is known about paths below `new`.
fn rename_known(extractor: &mut Extractor, old: &[u8], new: &[u8]) {
    let renamed = |path: &[u8]| -> Vec<u8> {
        match path.strip_prefix(old) {
            Some(rest) if rest.first() == Some(&b'/') => [new, rest].concat(),
            _ => path.to_vec(),
        }
    };
    extractor.folders =
        std::mem::take(&mut extractor.folders).into_iter().map(|(path, folder)| (renamed(&path), folder)).collect();
    extractor.opaque = extractor.opaque.iter().map(|path| renamed(path)).collect();
    extractor.whiteouts = extractor.whiteouts.iter().map(|path| renamed(path)).collect();
    extractor.links = extractor.links.iter().map(|(path, target)| (renamed(path), renamed(target))).collect();
}

/// Hard links whose target this layer does not hold: the target is copied up, as overlayfs would, and linked here.
fn link(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    let links = std::mem::take(&mut extractor.links);
    let form = extractor.form;
    let marks = |directory: BorrowedFd<'_>, name: &[u8]| form.is_whiteout(directory, name);
    // Where the target of each name has been put: at its own place, or, where the layer later removes or replaces that, at
    // the first name that linked to it.
    let mut placed: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (path, target) in &links {
        let (parent, name) = split(path);
        let parent = extractor.tree.directory(parent, &marks)?;
        let real = match placed.contains_key(target) {
            true => target.clone(),
            false => below.real_path(target, false)?,
        };
        if let Some(first) = placed.get(&real).cloned() {
            let (first_parent, first_name) = split(&first);
            let directory = extractor.tree.directory(first_parent, &marks)?;
            link_as(extractor, directory.as_fd(), first_name, (parent.as_fd(), name), path)?;
            placed.insert(path.clone(), first);
            continue;
        }
        let missing = || Error::new(Kind::Image, "it is a hard link to a file that no layer has").doing(named(path));
        let hit = below.find(&real)?.ok_or_else(missing)?;
        if hit.kind() == FileType::Directory {
            return Err(Error::new(Kind::Image, "it is a hard link to a directory").doing(named(path)));
        }
        let (real_parent, real_name) = split(&real);
        // Not there when the link was made, so if it is there now it came later, and so did what hides it.
        let replaced = links.iter().any(|(other, _)| real == *other || is_below(&real, other))
            || extractor
                .opaque
                .iter()
                .chain(&extractor.whiteouts)
                .any(|other| real == *other || is_below(&real, other))
            || open_below(root(extractor).as_fd(), real_parent)
                .is_ok_and(|directory| statat(&directory, real_name, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        let first = if replaced { path.clone() } else { real.clone() };
        if replaced {
            copy::node(hit.directory.as_fd(), &hit.name, &hit.stat, parent.as_fd(), name, form)?;
        } else {
            let onto = extractor.tree.directory(real_parent, &marks)?;
            copy::node(hit.directory.as_fd(), &hit.name, &hit.stat, onto.as_fd(), real_name, form)?;
            link_as(extractor, onto.as_fd(), real_name, (parent.as_fd(), name), path)?;
        }
        placed.insert(path.clone(), first.clone());
        placed.insert(real, first);
    }
    // Directories made for the copies inherit like all others.
    if extractor.tree.implicit.is_empty() { Ok(()) } else { inherit(extractor, below) }
}

/// Links; a whiteout in the way goes, a later entry of the same name stays.
fn link_as(
    extractor: &mut Extractor,
    target_parent: BorrowedFd<'_>,
    target_name: &[u8],
    (parent, name): (BorrowedFd<'_>, &[u8]),
    path: &[u8],
) -> Result<()> {
    match linkat(target_parent, target_name, parent, name, AtFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if extractor.form.is_whiteout(parent, name)? => {
            unlinkat(parent, name, AtFlags::empty()).map_err(made)?;
            extractor.whiteouts.remove(path);
            linkat(target_parent, target_name, parent, name, AtFlags::empty()).map_err(made)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(made(errno)),
    }
}

/// Whiteouts of names that nothing below has would show up in listings: overlayfs does not look for them in a directory
/// that only one layer has. And the root cannot be opaque (overlayfs stacks roots as they are): its names are removed
/// one by one.
fn hide(extractor: &mut Extractor, below: &Stack) -> Result<()> {
    for path in extractor.whiteouts.clone() {
        let hidden = extractor.opaque.iter().any(|other| is_below(&path, other));
        if hidden || below.find(&path)?.is_none() {
            let (parent, name) = split(&path);
            let parent = open_below(root(extractor).as_fd(), parent).failing(Kind::Store, || "open a directory")?;
            unlinkat(&parent, name, AtFlags::empty()).failing(Kind::Store, || "remove a whiteout")?;
            extractor.whiteouts.remove(&path);
        }
    }
    if !extractor.opaque.contains(&b""[..]) {
        return Ok(());
    }
    let top = extractor.tree.root();
    for name in below.root_names()?.into_keys() {
        match statat(&top, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                extractor.form.make_whiteout(top.as_fd(), &name)?;
                extractor.whiteouts.insert(name);
            }
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                let directory = open_below(top.as_fd(), &name).failing(Kind::Store, || "open a directory")?;
                extractor.form.set_opaque(directory.as_fd())?;
                extractor.opaque.insert(name);
            }
            Ok(_) => {}
            Err(errno) => return Err(errno).failing(Kind::Store, || "look at a layer's file"),
        }
    }
    Ok(())
}

/// Modes and times of directories, children before parents: setting a child's mode does not touch its parent's time, but
/// without privileges a closed parent could not be entered any more.
fn close(extractor: &Extractor) -> Result<()> {
    let root = root(extractor);
    for (path, folder) in extractor.folders.iter().rev() {
        let directory = match open_below(root.as_fd(), path) {
            Ok(directory) => directory,
            Err(errno) => {
                return Err(errno)
                    .failing(Kind::Store, || "open a directory")
                    .map_err(|error| error.doing(named(path)));
            }
        };
        attributes::set_mode(Held::Open(directory.as_fd()), folder.mode)?;
        attributes::set_times(directory.as_fd(), folder.mtime)?;
    }
    Ok(())
}
