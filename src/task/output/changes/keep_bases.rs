//! Keeps the bases of changed text files, which the user may edit before the review.
//!
//! [`keep`] copies them from the folder after the agent's end, with a user's earlier edits. [`BaseWriter`] replaces
//! such a copy by the content at the start, if that is known.

use super::binary;
use super::copy;
use super::diff::{LARGEST_TEXT, is_text};
use super::path::TreePath;
use super::record::{Base, Changes, Content, Entry, Node};
use super::snapshot::{KnownBase, KnownContent};
use super::store::{BASES, Store};
use super::tree;
use crate::error::Result;
use crate::files;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

const RECORD: &str = "changes.json";

/// Copies bases from `lower` to `<into>/bases`, at most `left` bytes and until `end`.
pub(super) fn keep(changes: &Changes, lower: BorrowedFd<'_>, into: &Path, mut left: u64, end: Instant) -> Result<()> {
    let mut store = None;
    for entry in changes.entries.iter().filter(|entry| !entry.path.is_in_git()) {
        let Some(Base::File { size, content: Content::Sha256(sha256), .. }) = &entry.base else { continue };
        if *size > left.min(LARGEST_TEXT) || Instant::now() >= end {
            continue;
        }
        let opened = tree::parent(lower, &entry.path).and_then(|parent| tree::file(parent.as_fd(), entry.path.name()));
        let mut bytes = Vec::new();
        let is_read = opened.is_ok_and(|(file, _)| file.take(*size).read_to_end(&mut bytes).is_ok());
        // An edited file is not the base. A binary file is never merged, and a patch only notes it.
        if !is_read || copy::digest_of(&bytes) != *sha256 || !is_text(&bytes) {
            continue;
        }
        let store = match &store {
            Some(store) => store,
            None => store.insert(Store::create_at(into, BASES)?),
        };
        let failed = |cause| files::failed(cause, format!("copy what `{}` was", entry.path));
        store.make(&entry.path)?.write_all(&bytes).map_err(failed)?;
        left -= size;
    }
    Ok(())
}

/// Unmarks each base that an earlier record of the workspace has as its base or as the agent's result. It is not an
/// edit of the user.
pub(in crate::task) fn unmark_known(into: &Path, earlier: impl Iterator<Item = PathBuf>) -> Result<()> {
    let mut changes = Changes::load(&into.join(RECORD))?;
    let marked = |changes: &Changes| changes.entries.iter().filter(|entry| entry.base_is_newer).count();
    let before = marked(&changes);
    for directory in earlier {
        if marked(&changes) == 0 {
            break;
        }
        // A task that changed nothing has no record, nor one that died.
        let Ok(known) = Changes::load(&directory.join(RECORD)) else { continue };
        for entry in changes.entries.iter_mut().filter(|entry| entry.base_is_newer) {
            let is_known = |known: &Entry| {
                let is_base = !known.base_is_newer && known.base == entry.base;
                is_base || known.now.clone().map(Base::from) == entry.base
            };
            entry.base_is_newer = !known.find(&entry.path).is_some_and(is_known);
        }
    }
    if marked(&changes) < before { changes.save(&into.join(RECORD)) } else { Ok(()) }
}

pub(in crate::task) struct BaseWriter<'a> {
    changes: Changes,
    into: &'a Path,
    store: Option<Store>,
    left: u64,
    is_changed: bool,
    untouched: Vec<TreePath>,
}

impl<'a> BaseWriter<'a> {
    /// The bases take at most `most` bytes.
    pub(in crate::task) fn open(into: &'a Path, most: u64) -> Result<BaseWriter<'a>> {
        let changes = Changes::load(&into.join(RECORD))?;
        let left = most.min(super::Limits::default().base_bytes);
        Ok(BaseWriter { changes, into, store: None, left, is_changed: false, untouched: Vec::new() })
    }

    pub(in crate::task) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Makes `bytes` a base if they match what is known of it. Skips binary content.
    pub(in crate::task) fn put(&mut self, known: &KnownBase, bytes: &[u8]) -> Result<()> {
        let is_known = match &known.content {
            KnownContent::Blob(name) => bytes.len() as u64 == known.size && binary::blob(Some(bytes)) == *name,
            KnownContent::Copied(copied) => copied == bytes,
        };
        let index = self.changes.entries.binary_search_by(|entry| entry.path.cmp(&known.path));
        let (Ok(index), true, Some(left)) = (index, is_known && is_text(bytes), self.left.checked_sub(known.size))
        else {
            return Ok(());
        };
        let (path, sha256) = (&known.path, copy::digest_of(bytes));
        let now = Some(Node::File { mode: known.mode, size: known.size, sha256 });
        if self.changes.entries[index].now == now {
            // The agent only opened the file for writing.
            self.changes.entries.remove(index);
            self.untouched.push(path.clone());
        } else {
            let store = match &self.store {
                Some(store) => store,
                // `keep` makes it if it copies anything.
                None => {
                    self.store.insert(Store::open_at(self.into, BASES).or_else(|_| Store::create_at(self.into, BASES))?)
                }
            };
            if store.file(path).is_ok() {
                store.remove(path)?;
            }
            let failed = |cause| files::failed(cause, format!("copy what `{path}` was"));
            store.make(path)?.write_all(bytes).map_err(failed)?;
            self.left = left;
            let entry = &mut self.changes.entries[index];
            let (mode, size) = (known.mode, known.size);
            entry.base = Some(Base::File { mode, size, content: Content::Sha256(sha256) });
            entry.base_is_newer = false;
        }
        self.is_changed = true;
        Ok(())
    }

    /// Returns the record, and the files unchanged since the start, which left it.
    pub(in crate::task) fn finish(self) -> Result<(Changes, Vec<TreePath>)> {
        if self.is_changed {
            self.changes.save(&self.into.join(RECORD))?;
        }
        let copies = Store::open(self.into)?;
        self.untouched.iter().try_for_each(|path| copies.remove(path))?;
        Ok((self.changes, self.untouched))
    }
}
