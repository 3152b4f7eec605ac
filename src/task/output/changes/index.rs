//! The index of a git repository (gitformat-index(5)), versions 2 to 4 with SHA-1: the files that git tracks, and what git saw of each.
//!
//! In: the index file. Out: its entries, in the order of the file. A split or a sparse index does not have all files: its end is an error.

use super::path::TreePath;
use super::tree;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The bytes of an entry before its name.
const FIXED: usize = 62;

/// The index is not one that is understood.
#[derive(Debug)]
pub(super) struct Malformed;

/// An index that is read entry by entry.
pub(super) struct Index {
    bytes: Vec<u8>,
    version: u32,
    /// Where the next entry begins.
    at: usize,
    /// How many entries follow.
    left: u32,
    name: Vec<u8>,
}

/// What git saw of a file when it read its content; numbers are cut to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// The time of the last change of the inode, in seconds and nanoseconds.
    pub(super) changed: [u32; 2],
    /// The time of the last write.
    pub(super) modified: [u32; 2],
    pub(super) inode: u32,
    /// The type and the permission to execute.
    pub(super) mode: u32,
    pub(super) size: u32,
    /// The name of the blob.
    pub(super) blob: [u8; 20],
    /// Whether the blob is the content of the file: not in a conflict, and not `git add --intent-to-add`.
    pub(super) has_content: bool,
}

/// The folders of a worktree's repository (git-worktree(1)).
#[derive(Debug)]
pub(in crate::task) struct Worktree {
    /// That of the worktree, with its index.
    pub(in crate::task) own: OwnedFd,
    /// The common one.
    pub(in crate::task) repository: OwnedFd,
}

/// The repository of a folder that is below the top of one.
#[derive(Debug)]
pub(in crate::task) struct Above {
    /// The folders from the top of the repository down to the one that holds the folder.
    pub(in crate::task) folders: Vec<OwnedFd>,
    /// The path of the folder from the top, with a slash at the end.
    pub(in crate::task) prefix: Vec<u8>,
}

/// Opens the index of the folder `lower`. A worktree has its index in its repository.
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

    /// The path of the entry that was read last.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Reads the next entry; `None` at the end of an index that has all files.
    pub(super) fn read_entry(&mut self) -> Result<Option<IndexEntry>, Malformed> {
        if self.left == 0 {
            return self.check_extensions().map(|()| None);
        }
        self.left -= 1;
        let fixed: &[u8; FIXED] = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        let is_extended = self.version > 2 && fixed[FIXED - 2] & 0x40 != 0;
        let head = FIXED + if is_extended { 2 } else { 0 };
        // The second bit of the further flags: the content is not in the index yet.
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
        // Also what shows that this is another form: names rise, and only those of a conflict are there twice.
        if TreePath::new(name.as_slice()).is_err() || self.name > name || self.at > self.bytes.len() {
            return Err(Malformed);
        }
        self.name = name;
        Ok(Some(entry))
    }

    /// Looks through the extensions, which a digest follows.
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

/// A number of version 4: seven bits a byte, the highest first, each further one counting from one.
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
