//! Extracts a layer's tar into one private directory in overlayfs's form.
//!
//! Each name is one component in an open directory; the host never resolves a path of the archive. `finish` does what
//! depends on the layers below.

use super::attributes::{self, FileDescriptor, Skipped};
use super::limits::Budget;
use super::path_records::Folder;
use super::tree::{Tree, TreeDirectory, normalise};
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
/// AUFS's metadata.
const AUFS: &[u8] = b".wh..wh.";

pub(crate) struct Extractor {
    pub(super) tree: Tree,
    pub(super) form: Form,
    pub(super) budget: Arc<Budget>,
    pub(super) skipped: Skipped,
    pub(super) entries: u64,
}

impl Extractor {
    /// `root` must be empty. `budget` belongs to the image.
    pub(crate) fn new(root: OwnedFd, form: Form, budget: &Arc<Budget>) -> Extractor {
        Extractor {
            tree: Tree::new(root, form, budget),
            form,
            budget: Arc::clone(budget),
            skipped: Skipped::default(),
            entries: 0,
        }
    }

    pub(crate) fn apply<R: BufRead>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        attributes::claim(self.tree.root().as_fd())?;
        while let Some(entry) = reader.next()? {
            self.entries += 1;
            self.budget.take_entries(1, entry.size)?;
            self.entry(&entry, reader).map_err(|error| error.doing(named(&entry.path)))?;
        }
        // Hundreds of layers may wait for those below, each with its descriptors.
        self.tree.forget();
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

    /// Never replaces the root (CVE-2021-29136).
    fn root(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != EntryKind::Directory {
            if weaken::is_off("image-root-entry") {
                // Weakened, as in umoci: later entries go where the link leads.
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

    fn directory(&mut self, parent: &TreeDirectory, name: &[u8], entry: &Entry) -> Result<()> {
        let path = parent.child(name);
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => {
                if self.tree.records.forget_name(&path) {
                    self.tree.records.hide_below(&path)?;
                }
            }
            Err(Errno::EXIST) => {
                let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
                    .failing(Kind::Store, || "look at a layer's file")?;
                if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
                    // The former entry hid the names below, so the directory must, too.
                    self.clear(parent, name)?;
                    mkdirat(parent, name, Mode::RWXU).map_err(made)?;
                    self.tree.records.hide_below(&path)?;
                }
            }
            Err(errno) => return Err(made(errno)),
        }
        let directory = open_child(parent.as_fd(), name).failing(Kind::Store, || "open a directory just made")?;
        if self.tree.records.is_opaque(&path) {
            self.form.set_opaque(directory.as_fd())?;
        }
        let here =
            TreeDirectory { directory: std::sync::Arc::new(directory), path: std::sync::Arc::from(path.as_slice()) };
        self.folder(&here, path, entry)
    }

    fn folder(&mut self, here: &TreeDirectory, path: Vec<u8>, entry: &Entry) -> Result<()> {
        let held = FileDescriptor::Open(here.as_fd());
        attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        attributes::set_attributes(held, entry, self.form, &mut self.skipped)?;
        self.tree.records.set_folder(path, Folder { mode: entry.mode, mtime: entry.mtime })
    }

    fn file<R: BufRead>(
        &mut self,
        parent: &TreeDirectory,
        name: &[u8],
        entry: &Entry,
        reader: &mut Reader<R>,
    ) -> Result<()> {
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
        let held = FileDescriptor::Open(file.as_fd());
        // A new file belongs to this process, except for its group in a directory with S_ISGID (inode(7)).
        let made_as = fstat(&file).failing(Kind::Store, || "look at a file just made")?;
        if (made_as.st_uid, made_as.st_gid) != (entry.uid, entry.gid) {
            attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        }
        attributes::set_attributes(held, entry, self.form, &mut self.skipped)?;
        attributes::set_mode(held, entry.mode)?;
        attributes::set_capabilities(held, entry, &mut self.skipped)?;
        attributes::set_times(file.as_fd(), entry.mtime)
    }

    /// Links a symlink itself, not its target (CVE-2018-20990).
    fn hard_link(&mut self, parent: &TreeDirectory, name: &[u8], entry: &Entry) -> Result<()> {
        let target =
            normalise(&entry.link, &self.budget.limits).map_err(|error| error.doing("find what it links to"))?;
        if target.is_empty() {
            return Err(Error::new(Kind::Image, "it is a hard link to the root"));
        }
        let (target_parent, target_name) = split(&target);
        // Making its directories would add them to this layer.
        let target_parent = match open_below(self.tree.root().as_fd(), target_parent) {
            Ok(directory) => {
                TreeDirectory { directory: std::sync::Arc::new(directory), path: std::sync::Arc::from(target_parent) }
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

    /// The target may be in a layer below: `finish` decides.
    fn link_later(&mut self, parent: &TreeDirectory, name: &[u8], target: Vec<u8>) -> Result<()> {
        let records = &mut self.tree.records;
        let target = match records.linked_to(&target) {
            // Before the name is cleared: it may be the target, or contain it.
            Some(first) => first.to_vec(),
            None if records.is_removed(&target) => {
                return Err(Error::new(Kind::Image, "it is a hard link to a file that this layer removes"));
            }
            None => target,
        };
        self.clear(parent, name)?;
        self.tree.records.add_link(&parent.child(name), target)
    }

    fn device(&mut self, parent: &TreeDirectory, name: &[u8], entry: &Entry) -> Result<()> {
        let kind = if entry.kind == EntryKind::Character { FileType::CharacterDevice } else { FileType::BlockDevice };
        let number = rustix::fs::makedev(entry.device.0, entry.device.1);
        self.clear(parent, name)?;
        match mknodat(parent, name, kind, Mode::RUSR | Mode::WUSR, number) {
            Ok(()) => self.finish_unopened(parent, name, entry),
            // The sandbox makes the permitted devices.
            Err(Errno::PERM) => {
                self.skipped.devices += 1;
                Ok(())
            }
            Err(errno) => Err(made(errno)),
        }
    }

    /// For files that must not be opened.
    fn finish_unopened(&mut self, parent: &TreeDirectory, name: &[u8], entry: &Entry) -> Result<()> {
        let file = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file = file.failing(Kind::Store, || "hold a file just made")?;
        let held = FileDescriptor::Path(file.as_fd());
        attributes::set_owner(held, entry.uid, entry.gid, self.form)?;
        attributes::set_attributes(held, entry, self.form, &mut self.skipped)?;
        if entry.kind != EntryKind::Symlink {
            attributes::set_mode(held, entry.mode)?;
        } else if weaken::is_off("image-mode-of-link") {
            // Weakened, as in containerd: chmod(2) follows symlinks.
            chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty()).map_err(made)?;
        }
        attributes::set_capabilities(held, entry, &mut self.skipped)?;
        utimensat(parent, name, &attributes::times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(made)
    }

    /// `.wh.…`: removes a name below, or all of them.
    fn whiteout(&mut self, parent: &TreeDirectory, name: &[u8], removed: &[u8]) -> Result<()> {
        if name == OPAQUE {
            // Once is enough: an archive may repeat it a hundred thousand times (CVE-2026-95838).
            if self.tree.records.hide_below(&parent.path)? {
                self.form.set_opaque(parent.as_fd())?;
            } else if weaken::is_off("image-opaque-once") {
                // Weakened, as in containerd: it read all entries of the layer each time.
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

    /// This layer's own entry at `name` stays.
    fn removed(&mut self, parent: &TreeDirectory, name: &[u8]) -> Result<()> {
        let path = parent.child(name);
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            // This layer's link is not made yet.
            Err(Errno::NOENT) if self.tree.records.is_link(&path) => Ok(()),
            Err(Errno::NOENT) => {
                self.form.make_whiteout(parent.as_fd(), name)?;
                self.tree.records.add_whiteout(&path)
            }
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                let directory = open_child(parent.as_fd(), name).failing(Kind::Store, || "open a layer's directory")?;
                self.tree.records.replace_below(&path)?;
                self.form.set_opaque(directory.as_fd())
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(errno).failing(Kind::Store, || "look at a layer's file"),
        }
    }

    /// The last entry of a name wins.
    fn clear_for<T>(&mut self, parent: &TreeDirectory, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T> {
        match make() {
            Err(Errno::EXIST) => {
                self.clear(parent, name)?;
                make().map_err(made)
            }
            Err(errno) => Err(made(errno)),
            Ok(it) => {
                if self.tree.records.has_links() {
                    self.tree.records.forget_name(&parent.child(name));
                }
                Ok(it)
            }
        }
    }

    fn clear(&mut self, parent: &TreeDirectory, name: &[u8]) -> Result<()> {
        let path = parent.child(name);
        match unlinkat(parent, name, AtFlags::empty()) {
            removed @ (Ok(()) | Err(Errno::NOENT)) => {
                if removed.is_ok() {
                    self.tree.forget(); // a symlink may be part of a cached path
                }
                self.tree.records.forget_name(&path);
                Ok(())
            }
            Err(Errno::ISDIR) => {
                files::remove_entry(parent.as_fd(), name)?;
                self.tree.forget();
                self.tree.records.forget_tree(&path);
                Ok(())
            }
            Err(errno) => Err(errno).failing(Kind::Store, || "remove a layer's file"),
        }
    }
}
