//! Copies of what changed text files were made from: the user may edit them before the changes are looked at.

use super::copy;
use super::diff::{LARGEST_TEXT, is_text};
use super::record::{Base, Changes, Content};
use super::store::{BASES, Store};
use super::tree;
use crate::error::Result;
use crate::files;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

/// Copies the bases of `changes` from `lower` to `<into>/bases`, at most `left` bytes and until `end`.
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
        // What was edited since is no base; what is no text is never merged, and the patch has only a note of it.
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
