//! Merges a stack of layers into one tree for programs that do not mount.
//!
//! Layers of the store are copied, other layers moved: mostly one rename(2) for a whole subtree.

use super::copy;
use super::form::{Form, Owners, open_below, open_child, split};
use crate::error::{Context, Kind, Result};
use crate::files::{Bounds, LeftDirectory, Names, Walk, WalkStep, remove_entry};
use rustix::fs::{AtFlags, FileType, Mode, Stat, fchmod, fchown, linkat, mkdirat, renameat, statat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyMode {
    /// The layers belong to the store.
    Copy,
    Move,
}

const LAYER: usize = 0;
const TARGET: usize = 1;

struct Level {
    path: Vec<u8>,
    /// Taken before a move changes the time.
    status: Stat,
}

type Trees = Walk<2, Level>;

/// `removes`: the layer contains whiteouts or opaque directories.
pub(crate) fn apply(
    layer: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    form: Form,
    how: ApplyMode,
    removes: bool,
) -> Result<()> {
    let mut merge = Merge { form, how, removes, root: target, links: HashMap::new() };
    let mut trees = Trees::new(Bounds::NONE);
    let open = |directory| open_child(directory, b".").failing(Kind::Store, || "open a directory");
    merge.enter(&mut trees, open(layer)?, open(target)?, Vec::new())?;
    loop {
        let next = trees.next().failing(Kind::Store, || "walk a layer")?;
        match next {
            Some(WalkStep::Entry(_)) => {
                if let Some((inner, onto, path)) = merge.entry(&trees)? {
                    merge.enter(&mut trees, inner, onto, path)?;
                }
            }
            Some(WalkStep::End) => {
                let left = trees.leave().failing(Kind::Store, || "walk a layer")?;
                // Set modes on the way up: without privileges the walk cannot pass a directory with a closed mode.
                if let Some(LeftDirectory { directories: [Some(layer), Some(target)], state }) = left {
                    set_metadata(layer.as_fd(), target.as_fd(), &state.status, form)?;
                }
            }
            None => {
                let Some(level) = trees.state() else { return Ok(()) };
                let (layer, target) = sides(&trees)?;
                return set_metadata(layer, target, &level.status, form);
            }
        }
    }
}

struct Merge<'a> {
    form: Form,
    how: ApplyMode,
    removes: bool,
    root: BorrowedFd<'a>,
    /// Inode to the path of the first copy.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Merge<'_> {
    fn enter(&self, trees: &mut Trees, layer: OwnedFd, target: OwnedFd, path: Vec<u8>) -> Result<()> {
        let status = rustix::fs::fstat(&layer).failing(Kind::Store, || "look at a directory")?;
        if self.how == ApplyMode::Move && self.form.owners == Owners::Caller {
            // Without privileges the mode binds the owner too. The copy gets the original mode.
            fchmod(&layer, Mode::RWXU).failing(Kind::Store, || "open up a directory")?;
        }
        let names = Names::of(&layer).failing(Kind::Store, || "list a directory")?;
        let entered = trees.enter([Some(layer), Some(target)], names, Level { path, status });
        entered.failing(Kind::Store, || "walk a layer")
    }

    fn entry(&mut self, trees: &Trees) -> Result<Option<(OwnedFd, OwnedFd, Vec<u8>)>> {
        let name = trees.name().to_bytes();
        let (source, target) = sides(trees)?;
        let status = statat(source, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, || shown(name))?;
        let above = trees.state().map_or(&[][..], |level| &level.path);
        let path = if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() };
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            let directories = self.directory(source, target, name)?;
            return Ok(directories.map(|(inner, onto)| (inner, onto, path)));
        }
        if self.removes && self.form.is_whiteout(source, name)? {
            remove_entry(target, name)?;
        } else {
            self.file(source, target, name, &status, path)?;
        }
        Ok(None)
    }

    fn directory(
        &mut self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Option<(OwnedFd, OwnedFd)>> {
        let existing = match statat(target, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno).failing(Kind::Store, || shown(name)),
        };
        let inner = open_child(source, name).failing(Kind::Store, || shown(name))?;
        let opaque = self.removes && self.form.is_opaque(inner.as_fd())?;
        if existing.is_some() && (opaque || existing != Some(FileType::Directory)) {
            remove_entry(target, name)?;
        } else if existing.is_none() && self.how == ApplyMode::Move && !self.removes {
            match renameat(source, name, target, name) {
                // Not writable, so it cannot be moved as a whole.
                Err(Errno::ACCESS) if self.form.owners == Owners::Caller => {}
                other => return other.map(|()| None).map_err(|errno| failed(errno, name)),
            }
        }
        if existing != Some(FileType::Directory) || opaque {
            mkdirat(target, name, Mode::RWXU).map_err(|errno| failed(errno, name))?;
        }
        let onto = open_child(target, name).failing(Kind::Store, || shown(name))?;
        Ok(Some((inner, onto)))
    }

    fn file(
        &mut self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        path: Vec<u8>,
    ) -> Result<()> {
        let directory_there = statat(target, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if self.how == ApplyMode::Move {
            if directory_there {
                remove_entry(target, name)?;
            }
            return renameat(source, name, target, name).map_err(|errno| failed(errno, name));
        }
        remove_entry(target, name)?;
        if stat.st_nlink > 1 {
            let key = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&key) {
                let (parent, first_name) = split(first);
                let parent = open_below(self.root, parent).failing(Kind::Store, || shown(name))?;
                let linked = linkat(&parent, first_name, target, name, AtFlags::empty());
                return linked.map_err(|errno| failed(errno, name));
            }
            self.links.insert(key, path);
        }
        copy::node(source, name, stat, target, name, self.form)
    }
}

fn sides(trees: &Trees) -> Result<(BorrowedFd<'_>, BorrowedFd<'_>)> {
    let sides = trees.side(LAYER).and_then(|layer| Ok((layer, trees.side(TARGET)?)));
    sides.failing(Kind::Internal, || "walk a layer")
}

fn set_metadata(source: BorrowedFd<'_>, target: BorrowedFd<'_>, status: &Stat, form: Form) -> Result<()> {
    if form.owners == Owners::Image {
        let ids = (rustix::fs::Uid::from_raw(status.st_uid), rustix::fs::Gid::from_raw(status.st_gid));
        fchown(target, Some(ids.0), Some(ids.1)).failing(Kind::Store, || "give a directory its owner")?;
    }
    copy::attributes(source, target, form)?;
    let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
    fchmod(target, mode).failing(Kind::Store, || "give a directory its mode")?;
    rustix::fs::futimens(target, &crate::files::times(status)).failing(Kind::Store, || "give a directory its time")
}

fn failed(errno: Errno, name: &[u8]) -> crate::error::Error {
    crate::files::failed(errno.into(), shown(name))
}

fn shown(name: &[u8]) -> String {
    format!("put `{}` into the tree", String::from_utf8_lossy(name).escape_debug())
}
