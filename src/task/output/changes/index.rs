//! The index of a git repository (gitformat-index(5)), versions 2 to 4 with SHA-1.
//!
//! A split or a sparse index lacks files: an error at its end.

use super::path::TreePath;
use super::tree;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of an entry before its name.
const FIXED: usize = 62;

#[derive(Debug)]
pub(super) struct Malformed;

pub(super) struct Index {
    bytes: Vec<u8>,
    version: u32,
    at: usize,
    left: u32,
    name: Vec<u8>,
}

/// Stat data of a file when git read its content; numbers are cut to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// The inode's last change, in seconds and nanoseconds.
    pub(super) changed: [u32; 2],
    pub(super) modified: [u32; 2],
    pub(super) inode: u32,
    /// The type and the executable bit.
    pub(super) mode: u32,
    pub(super) size: u32,
    pub(super) blob: [u8; 20],
    /// The blob is the file's content: not in a conflict, and not `git add --intent-to-add`.
    pub(super) has_content: bool,
}

#[derive(Debug)]
pub(in crate::task) struct Worktree {
    /// The worktree's folder, with its index.
    pub(in crate::task) own: OwnedFd,
    /// The common folder.
    pub(in crate::task) repository: OwnedFd,
}

/// The repository of a folder below the top.
#[derive(Debug)]
pub(in crate::task) struct Above {
    /// From the top down to the one that holds the folder.
    pub(in crate::task) folders: Vec<OwnedFd>,
    /// The folder's path from the top, with a slash at the end.
    pub(in crate::task) prefix: Vec<u8>,
}

/// A worktree has its index in its repository.
pub(super) fn open(lower: BorrowedFd<'_>, worktree: Option<&Worktree>) -> Result<(File, Stat), Errno> {
    match worktree {
        Some(worktree) => tree::file(worktree.own.as_fd(), b"index"),
        None => tree::file(lower, b".git/index"),
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Malformed)?;
    Ok(u32::from_be_bytes(*four))
}

impl Index {
    pub(super) fn new(bytes: Vec<u8>) -> Result<Index, Malformed> {
        let (version, left) = (number(&bytes, 4)?, number(&bytes, 8)?);
        if !bytes.starts_with(b"DIRC") || !(2..=4).contains(&version) {
            return Err(Malformed);
        }
        Ok(Index { bytes, version, at: 12, left, name: Vec::new() })
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// `None` at the end of a complete index.
    pub(super) fn read_entry(&mut self) -> Result<Option<IndexEntry>, Malformed> {
        if self.left == 0 {
            return self.check_extensions().map(|()| None);
        }
        self.left -= 1;
        let fixed: &[u8; FIXED] = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        let is_extended = self.version > 2 && fixed[FIXED - 2] & 0x40 != 0;
        let head = FIXED + if is_extended { 2 } else { 0 };
        // Bit 2 of the extended flags: the index has no content yet.
        let is_intended = is_extended && self.bytes.get(self.at + FIXED).ok_or(Malformed)? & 0x20 != 0;
        let entry = IndexEntry {
            changed: [number(fixed, 0)?, number(fixed, 4)?],
            modified: [number(fixed, 8)?, number(fixed, 12)?],
            inode: number(fixed, 20)?,
            mode: number(fixed, 24)?,
            size: number(fixed, 36)?,
            blob: *fixed[40..].first_chunk().ok_or(Malformed)?,
            has_content: fixed[FIXED - 2] & 0x30 == 0 && !is_intended,
        };
        let mut text = self.bytes.get(self.at + head..).ok_or(Malformed)?;
        let mut name = Vec::new();
        if self.version == 4 {
            let (cut, after) = offset(text).ok_or(Malformed)?;
            name.extend_from_slice(&self.name[..self.name.len().checked_sub(cut).ok_or(Malformed)?]);
            text = after;
        }
        let end = text.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        name.extend_from_slice(&text[..end]);
        let after = self.bytes.len() - text.len() + end + 1;
        self.at = if self.version == 4 { after } else { self.at + ((head + end + 8) & !7) };
        // Detects other forms: names ascend, and only those of a conflict repeat.
        if TreePath::new(name.as_slice()).is_err() || self.name > name || self.at > self.bytes.len() {
            return Err(Malformed);
        }
        self.name = name;
        Ok(Some(entry))
    }

    /// A digest follows the extensions.
    fn check_extensions(&self) -> Result<(), Malformed> {
        let mut rest = self.bytes.get(self.at..).ok_or(Malformed)?;
        while rest.len() > 20 {
            let (signature, length) = (&rest[..4], number(rest, 4)?);
            if matches!(signature, b"link" | b"sdir") {
                return Err(Malformed);
            }
            rest = rest.get(8 + length as usize..).ok_or(Malformed)?;
        }
        Ok(())
    }
}

/// Version 4: seven bits a byte, highest first, each further byte counting from one.
fn offset(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        value = (value << 7) + usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
        value += 1;
    }
    None
}
