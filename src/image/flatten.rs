//! A stack of layers as one tree: what `unpack` leaves in a directory, for runtimes and programs that do not mount.
//!
//! From the bottom up, each layer onto what is there. Either the layers are copied, or, when they were unpacked just
//! for this, moved: then most of it is one rename(2) for a whole subtree.

use super::copy;
use super::layer::{Form, Owners, open_below, open_child, split};
use super::tree::{names, remove_tree};
use crate::error::{Context, Kind, Result};
use rustix::fs::{
    AtFlags, FileType, Mode, Stat, Timespec, Timestamps, fchmod, fchown, linkat, mkdirat, renameat, statat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

/// What happens to the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// They belong to the store and stay.
    Copy,
    /// They are ours and go.
    Move,
}

/// Applies one layer's directory to `target`. `removes` says whether there are marks in it at all.
pub(crate) fn apply(layer: BorrowedFd<'_>, target: BorrowedFd<'_>, form: Form, how: How, removes: bool) -> Result<()> {
    let mut merge = Merge { form, how, removes, root: target, links: HashMap::new() };
    merge.directory(layer, target, b"")
}

struct Merge<'a> {
    form: Form,
    how: How,
    removes: bool,
    root: BorrowedFd<'a>,
    /// Files with several names: inode to the path of the first copy.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Merge<'_> {
    fn directory(&mut self, source: BorrowedFd<'_>, target: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
        // Before anything is moved out, which changes the time.
        let own = rustix::fs::fstat(source).failing(Kind::Store, || "look at a directory")?;
        if self.how == How::Move && self.form.owners == Owners::Caller {
            // Without privileges a closed directory gives nothing away; its copy gets the mode back.
            fchmod(source, Mode::RWXU).failing(Kind::Store, || "open up a directory")?;
        }
        for (name, _) in names(source)? {
            let stat =
                statat(source, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, || shown(&name))?;
            let inner = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.subdirectory(source, target, &name, &inner)?;
            } else if self.removes && self.form.is_whiteout(source, &name)? {
                remove_tree(target, &name)?;
            } else {
                self.file(source, target, &name, &stat, inner)?;
            }
        }
        metadata(source, &own, target, self.form)
    }

    fn subdirectory(&mut self, source: BorrowedFd<'_>, target: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        let existing = match statat(target, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno).failing(Kind::Store, || shown(name)),
        };
        let inner = open_child(source, name).failing(Kind::Store, || shown(name))?;
        let opaque = self.removes && self.form.is_opaque(inner.as_fd())?;
        if existing.is_some() && (opaque || existing != Some(FileType::Directory)) {
            remove_tree(target, name)?;
        } else if existing.is_none() && self.how == How::Move && !self.removes {
            match renameat(source, name, target, name) {
                // Not writable to us, so that it cannot be moved as a whole.
                Err(Errno::ACCESS) if self.form.owners == Owners::Caller => {}
                other => return other.map_err(|errno| failed(errno, name)),
            }
        }
        if existing != Some(FileType::Directory) || opaque {
            mkdirat(target, name, Mode::RWXU).map_err(|errno| failed(errno, name))?;
        }
        let onto = open_child(target, name).failing(Kind::Store, || shown(name))?;
        self.directory(inner.as_fd(), onto.as_fd(), path)
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
        if self.how == How::Move {
            if directory_there {
                remove_tree(target, name)?;
            }
            return renameat(source, name, target, name).map_err(|errno| failed(errno, name));
        }
        remove_tree(target, name)?;
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

/// A directory's own owner, attributes, mode and times, when everything is in it.
fn metadata(source: BorrowedFd<'_>, stat: &Stat, target: BorrowedFd<'_>, form: Form) -> Result<()> {
    if form.owners == Owners::Image {
        let ids = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
        fchown(target, Some(ids.0), Some(ids.1)).failing(Kind::Store, || "give a directory its owner")?;
    }
    copy::attributes(source, target, form)?;
    fchmod(target, Mode::from_raw_mode(stat.st_mode & 0o7777)).failing(Kind::Store, || "give a directory its mode")?;
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::futimens(target, &times).failing(Kind::Store, || "give a directory its time")
}

fn failed(errno: Errno, name: &[u8]) -> crate::error::Error {
    crate::files::failed(errno.into(), shown(name))
}

fn shown(name: &[u8]) -> String {
    format!("put `{}` into the tree", String::from_utf8_lossy(name).escape_debug())
}
