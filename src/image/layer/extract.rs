//! Entries into a directory: one layer's tar becomes one directory in overlayfs's form.
//!
//! In: a tar reader and an empty directory that nobody else can reach. Out: the tree, and what `settle` must finish once
//! the layers below are known: directories that were only implied, hard links to files below, times of directories.
//! Every name is one component in an open directory; no path of the archive is ever given to the host to resolve.

use super::attributes::{self, Held, Skipped};
use super::known::Folder;
use super::limits::Budget;
use super::place::{Place, Tree, normalise};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Names};
use crate::image::form::{Form, made, open_below, open_child, split};
use crate::image::tar::{Entry, EntryKind, Reader, named};
use crate::sys::weaken;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chmodat, fstat, linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// AUFS's own files, which old images carry.
const AUFS: &[u8] = b".wh..wh.";

/// A tree that is being filled from an archive, and what is left to do with it.
pub(crate) struct Extractor {
    pub(super) tree: Tree,
    pub(super) form: Form,
    pub(super) budget: Arc<Budget>,
    pub(super) skipped: Skipped,
    pub(super) entries: u64,
}

impl Extractor {
    /// Fills `root`, which must be empty. `budget` is the image's.
    pub(crate) fn new(root: OwnedFd, form: Form, budget: &Arc<Budget>) -> Extractor {
        Extractor {
            tree: Tree::new(root, form, budget),
            form,
            budget: Arc::clone(budget),
            skipped: Skipped::default(),
            entries: 0,
        }
    }

    /// Applies every entry of an archive.
    pub(crate) fn apply<R: BufRead>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        attributes::claim(self.tree.root().as_fd())?;
        while let Some(entry) = reader.next()? {
            self.entries += 1;
            self.budget.take_entries(1, entry.size)?;
            self.entry(&entry, reader).map_err(|error| error.doing(named(&entry.path)))?;
        }
        Ok(())
    }

    fn entry<R: BufRead>(&mut self, entry: &Entry, reader: &mut Reader<R>) -> Result<()> {
        let path = normalise(&entry.path, &self.budget.limits)?;
        if path.is_empty() {
            return self.root(entry);
        }
        let (parent, name) = split(&path);
        let parent = self.tree.directory(parent)?;
        if let Some(removed) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(&parent, name, removed);
        }
        match entry.kind {
            EntryKind::Directory => self.directory(&parent, name, entry),
            EntryKind::File => self.file(&parent, name, entry, reader),
            EntryKind::HardLink => self.hard_link(&parent, name, entry),
            EntryKind::Symlink => {
                self.clear_for(&parent, name, || symlinkat(entry.link.as_slice(), &parent, name))?;
                self.finish_unopened(&parent, name, entry)
            }
            EntryKind::Fifo => {
                self.clear_for(&parent, name, || mknodat(&parent, name, FileType::Fifo, Mode::RUSR, 0))?;
                self.finish_unopened(&parent, name, entry)
            }
            EntryKind::Character if entry.device == (0, 0) => self.removed(&parent, name),
            EntryKind::Character | EntryKind::Block => self.device(&parent, name, entry),
        }
    }

    /// An entry for the root itself gives its metadata and never replaces it (CVE-2021-29136).
    fn root(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != EntryKind::Directory {
            if weaken::is_off("image-root-entry") {
                // What umoci did: everything that follows lies where the link leads.
                let elsewhere =
                    openat(rustix::fs::CWD, entry.link.as_slice(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                self.tree = Tree::new(elsewhere.map_err(made)?, self.form, &self.budget);
                return Ok(());
            }
            return Err(Error::new(Kind::Image, "the root of the image must be a directory"));
        }
        let root = self.tree.root();
        self.folder(&root, Vec::new(), entry)
    }

    fn directory(&mut self, parent: &Place, name: &[u8], entry: &Entry) -> Result<()> {
        let path = parent.child(name);
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => {
                if self.tree.known.forget_name(&path) {
                    self.tree.known.hide_below(&path)?;
                }
            }
            Err(Errno::EXIST) => {
                let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
                    .failing(Kind::Store, || "look at a layer's file")?;
                if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
                    // Something else was here, and it hid what is below; so must the directory.
                    self.clear(parent, name)?;
                    mkdirat(parent, name, Mode::RWXU).map_err(made)?;
                    self.tree.known.hide_below(&path)?;
                }
            }
            Err(errno) => return Err(made(errno)),
        }
        let directory = open_child(parent.as_fd(), name).failing(Kind::Store, || "open a directory just made")?;
        if self.tree.known.is_opaque(&path) {
            self.form.set_opaque(directory.as_fd())?;
        }
        let here = Place { directory: std::sync::Arc::new(directory), path: std::sync::Arc::from(path.as_slice()) };
        self.folder(&here, path, entry)
    }

    fn folder(&mut self, here: &Place, path: Vec<u8>, entry: &Entry) -> Result<()> {
        let held = Held::Open(here.as_fd());
        attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        attributes::set_attributes(held, entry, &mut self.skipped)?;
        self.tree.known.set_folder(path, Folder { mode: entry.mode, mtime: entry.mtime })
    }

    fn file<R: BufRead>(&mut self, parent: &Place, name: &[u8], entry: &Entry, reader: &mut Reader<R>) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.clear_for(parent, name, || openat(parent, name, flags, Mode::RUSR | Mode::WUSR))?;
        let mut written = 0;
        reader.data(entry, |offset, mut bytes| {
            while !bytes.is_empty() {
                let at = offset + written;
                let count = match &entry.sparse {
                    None => rustix::io::write(&file, bytes),
                    Some(_) => rustix::io::pwrite(&file, bytes, at),
                };
                let count = count.map_err(made)?;
                bytes = &bytes[count..];
                written += count as u64;
            }
            written = 0;
            Ok(())
        })?;
        if entry.sparse.is_some() {
            rustix::fs::ftruncate(&file, entry.size).map_err(made)?;
        }
        let held = Held::Open(file.as_fd());
        // A file that we made is ours already, but for its group where the directory hands on its own (inode(7), S_ISGID).
        let made_as = fstat(&file).failing(Kind::Store, || "look at a file just made")?;
        if (made_as.st_uid, made_as.st_gid) != (entry.uid, entry.gid) {
            attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        }
        attributes::set_attributes(held, entry, &mut self.skipped)?;
        attributes::set_mode(held, entry.mode)?;
        attributes::set_capabilities(held, entry, &mut self.skipped)?;
        attributes::set_times(file.as_fd(), entry.mtime)
    }

    /// The target is a name of the same tree, linked as it is: a symlink is linked, not followed (CVE-2018-20990).
    fn hard_link(&mut self, parent: &Place, name: &[u8], entry: &Entry) -> Result<()> {
        let target =
            normalise(&entry.link, &self.budget.limits).map_err(|error| error.doing("find what it links to"))?;
        if target.is_empty() {
            return Err(Error::new(Kind::Image, "it is a hard link to the root"));
        }
        let (target_parent, target_name) = split(&target);
        // Only looked up: making its directories would say that this layer has something there.
        let target_parent = match open_below(self.tree.root().as_fd(), target_parent) {
            Ok(directory) => {
                Place { directory: std::sync::Arc::new(directory), path: std::sync::Arc::from(target_parent) }
            }
            Err(Errno::NOENT) => return self.link_later(parent, name, target),
            Err(_) => self.tree.directory(target_parent)?,
        };
        let found = match statat(&target_parent, target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return self.link_later(parent, name, target_parent.child(target_name)),
            Err(errno) => return Err(errno).failing(Kind::Store, || "look at a layer's file"),
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(Error::new(Kind::Image, "it is a hard link to a directory"));
        }
        if self.form.is_whiteout(target_parent.as_fd(), target_name)? {
            return Err(Error::new(Kind::Image, "it is a hard link to a file that this layer removes"));
        }
        if target_parent.child(target_name) == parent.child(name) {
            return Ok(());
        }
        self.clear_for(parent, name, || linkat(&target_parent, target_name, parent, name, AtFlags::empty()))
    }

    /// The target may be in a layer below, unless this layer has removed it already: settle knows.
    fn link_later(&mut self, parent: &Place, name: &[u8], target: Vec<u8>) -> Result<()> {
        let known = &mut self.tree.known;
        let target = match known.linked_to(&target) {
            // Before the name is cleared, which may be the target itself or have it inside.
            Some(first) => first.to_vec(),
            None if known.is_removed(&target) => {
                return Err(Error::new(Kind::Image, "it is a hard link to a file that this layer removes"));
            }
            None => target,
        };
        self.clear(parent, name)?;
        self.tree.known.add_link(&parent.child(name), target)
    }

    fn device(&mut self, parent: &Place, name: &[u8], entry: &Entry) -> Result<()> {
        let kind = if entry.kind == EntryKind::Character { FileType::CharacterDevice } else { FileType::BlockDevice };
        let number = rustix::fs::makedev(entry.device.0, entry.device.1);
        self.clear(parent, name)?;
        match mknodat(parent, name, kind, Mode::RUSR | Mode::WUSR, number) {
            Ok(()) => self.finish_unopened(parent, name, entry),
            // Without privileges there are no devices; the sandbox makes those it allows by itself.
            Err(Errno::PERM) => {
                self.skipped.devices += 1;
                Ok(())
            }
            Err(errno) => Err(made(errno)),
        }
    }

    /// Everything that must not be opened: symlinks, FIFOs, devices.
    fn finish_unopened(&mut self, parent: &Place, name: &[u8], entry: &Entry) -> Result<()> {
        let file = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file = file.failing(Kind::Store, || "hold a file just made")?;
        let held = Held::Path(file.as_fd());
        attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        attributes::set_attributes(held, entry, &mut self.skipped)?;
        if entry.kind != EntryKind::Symlink {
            attributes::set_mode(held, entry.mode)?;
        } else if weaken::is_off("image-mode-of-link") {
            // What containerd did: chmod(2) follows.
            chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty()).map_err(made)?;
        }
        attributes::set_capabilities(held, entry, &mut self.skipped)?;
        utimensat(parent, name, &attributes::times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(made)
    }

    /// `.wh.…`: something below is removed, or all of it.
    fn whiteout(&mut self, parent: &Place, name: &[u8], removed: &[u8]) -> Result<()> {
        if name == OPAQUE {
            // Once is enough: an archive may say it a hundred thousand times (CVE-2026-95838).
            if self.tree.known.hide_below(&parent.path)? {
                self.form.set_opaque(parent.as_fd())?;
            } else if weaken::is_off("image-opaque-once") {
                // What containerd did: it went through all that the layer had put there, each time.
                Names::of(parent).failing(Kind::Store, || "list a directory")?;
            }
            return Ok(());
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        if removed.is_empty() || removed == b"." || removed == b".." {
            return Err(Error::new(Kind::Image, "it is a whiteout of no name"));
        }
        self.removed(parent, removed)
    }

    /// Removes `name` of the layers below; what this layer itself has put there stays.
    fn removed(&mut self, parent: &Place, name: &[u8]) -> Result<()> {
        let path = parent.child(name);
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            // A link of this layer that is only not made yet.
            Err(Errno::NOENT) if self.tree.known.is_link(&path) => Ok(()),
            Err(Errno::NOENT) => {
                self.form.make_whiteout(parent.as_fd(), name)?;
                self.tree.known.add_whiteout(&path)
            }
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                let directory = open_child(parent.as_fd(), name).failing(Kind::Store, || "open a layer's directory")?;
                self.tree.known.replace_below(&path)?;
                self.form.set_opaque(directory.as_fd())
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(errno).failing(Kind::Store, || "look at a layer's file"),
        }
    }

    /// Makes something at a name; what was there, goes first. The last entry of a name wins.
    fn clear_for<T>(&mut self, parent: &Place, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T> {
        match make() {
            Err(Errno::EXIST) => {
                self.clear(parent, name)?;
                make().map_err(made)
            }
            Err(errno) => Err(made(errno)),
            Ok(it) => {
                if self.tree.known.has_links() {
                    self.tree.known.forget_name(&parent.child(name));
                }
                Ok(it)
            }
        }
    }

    /// Removes what this layer has put at a name, with all that is known about it.
    fn clear(&mut self, parent: &Place, name: &[u8]) -> Result<()> {
        let path = parent.child(name);
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {
                self.tree.known.forget_name(&path);
                Ok(())
            }
            Err(Errno::ISDIR) => {
                files::remove_entry(parent.as_fd(), name)?;
                self.tree.forget();
                self.tree.known.forget_tree(&path);
                Ok(())
            }
            Err(errno) => Err(errno).failing(Kind::Store, || "remove a layer's file"),
        }
    }
}
