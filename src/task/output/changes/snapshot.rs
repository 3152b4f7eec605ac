//! The contents of a folder's files at the agent's start: the base of a merge if the user edits a file meanwhile.
//!
//! The overlay shows the user's folder itself, so a user's edit destroys the base. A copy of the folder would delay
//! every start. Instead the supervisor compares git's index with the files in short steps while the command runs
//! ([`Snapshot::advance`]). An unchanged file has the content of its blob; other small tracked files are copied.
//! A wrong base would make a wrong merge: a file that may have been written after the start has no base. Never: git
//! itself, an untracked file.

use super::diff::{LARGEST_TEXT, is_text};
use super::index::{self, Index, IndexEntry, Worktree};
use super::path::{Raw, TreePath};
use super::record::{Base, Changes, Content, Node};
use super::{copy, tree};
use crate::files::hash::hexadecimal;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime};

/// In bytes: some 300,000 files.
const LONGEST_INDEX: u64 = 32 << 20;
/// Bytes of one copied file, and of all.
const LARGEST_COPY: u64 = 1 << 20;
const MOST_COPIED: u64 = 16 << 20;
const MOST_COPIES: usize = 2000;
/// Of a snapshot after its first step.
const MOST_TIME: Duration = Duration::from_secs(60);
/// The largest lag of a file system's clock behind the system's: two ticks of 10 ms.
const CLOCK: Duration = Duration::from_millis(20);

/// The source of a base, beside the file's permissions; none if it is unknown.
const BLOB: u16 = 0x8000;
const COPY: u16 = 0x4000;

pub(in crate::task) struct Snapshot {
    folder: OwnedFd,
    /// git replaces its index by a new file, so this descriptor keeps its content.
    index: File,
    index_status: Stat,
    latest: SystemTime,
    end: Instant,
    /// `None` when the snapshot is done.
    rest: Option<Index>,
    parent: Option<Parent>,
    known: Vec<u16>,
    copies: Copies,
}

struct Parent {
    path: Vec<u8>,
    directory: OwnedFd,
    /// It and its parents are unmoved since the start.
    is_in_place: Option<bool>,
}

/// One after the other in an unnamed file.
struct Copies {
    file: Option<File>,
    /// Offset and size by the entry's number.
    places: BTreeMap<usize, (u64, u64)>,
    bytes: u64,
}

#[derive(Debug)]
pub(in crate::task) struct KnownBase {
    pub(in crate::task) path: TreePath,
    pub(in crate::task) mode: u32,
    pub(in crate::task) size: u64,
    pub(in crate::task) content: KnownContent,
}

#[derive(Debug)]
pub(in crate::task) enum KnownContent {
    /// The name in git's object store.
    Blob(String),
    Copied(Vec<u8>),
}

impl Snapshot {
    /// `copies` is an empty file. `None` if the folder has no index.
    pub(in crate::task) fn begin(
        folder: OwnedFd,
        worktree: Option<&Worktree>,
        copies: Option<File>,
        started: SystemTime,
    ) -> Option<Snapshot> {
        let (index, index_status) = index::open(folder.as_fd(), worktree).ok()?;
        let rest = Index::new(read(&index, tree::size(&index_status), LONGEST_INDEX)?).ok()?;
        Some(Snapshot {
            folder,
            index,
            index_status,
            latest: started.checked_sub(CLOCK)?,
            end: Instant::now() + MOST_TIME,
            rest: Some(rest),
            parent: None,
            known: Vec::new(),
            copies: Copies { file: copies, places: BTreeMap::new(), bytes: 0 },
        })
    }

    pub(in crate::task) fn advance(&mut self, until: Instant) {
        let Some(mut index) = self.rest.take() else { return };
        while Instant::now() < until {
            let Ok(Some(entry)) = index.read_entry() else { return };
            let known = self.look_at(index.name(), &entry).unwrap_or(0);
            self.known.push(known);
        }
        self.rest = Some(index).filter(|_| Instant::now() < self.end);
    }

    fn look_at(&mut self, path: &[u8], entry: &IndexEntry) -> Option<u16> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        if self.parent.as_ref().is_none_or(|parent| parent.path != above) {
            let directory = tree::directory(self.folder.as_fd(), above).ok();
            self.parent = directory.map(|directory| Parent { path: above.to_vec(), directory, is_in_place: None });
        }
        let directory = self.parent.as_ref()?.directory.as_fd();
        let status = tree::status(directory, name).ok()??;
        if tree::file_type(&status) != FileType::RegularFile || !self.is_old(&status) {
            return None;
        }
        let mode = u16::try_from(tree::permissions(&status)).ok()?;
        if entry.has_content && is_as_git_saw(&status, entry, &self.index_status) {
            return (tree::size(&status) <= LARGEST_TEXT).then_some(BLOB | mode);
        }
        self.copy(name, &status).map(|()| COPY | mode)
    }

    /// Whether the file is unchanged since the start.
    fn is_old(&self, status: &Stat) -> bool {
        changed(status).is_some_and(|changed| changed <= self.latest)
    }

    /// If the directory was swapped, its own time shows it.
    fn copy(&mut self, name: &[u8], seen: &Stat) -> Option<()> {
        let size = tree::size(seen);
        if size > LARGEST_COPY.min(MOST_COPIED - self.copies.bytes) || self.copies.places.len() >= MOST_COPIES {
            return None;
        }
        let is_in_place = match self.parent.as_ref()?.is_in_place {
            Some(known) => known,
            None => self.is_in_place(&self.parent.as_ref()?.path),
        };
        let parent = self.parent.as_mut()?;
        parent.is_in_place = Some(is_in_place);
        let (file, status) = tree::file(parent.directory.as_fd(), name).ok()?;
        if !is_in_place || status.st_ino != seen.st_ino {
            return None;
        }
        let bytes = read(&file, size, LARGEST_COPY)?;
        // Not written during the read.
        let status = fstat(&file).ok().filter(|status| self.is_old(status) && tree::size(status) == size)?;
        if tree::permissions(&status) != tree::permissions(seen) || !is_text(&bytes) {
            return None;
        }
        let copies = &mut self.copies;
        copies.file.as_ref()?.write_all_at(&bytes, copies.bytes).ok()?;
        copies.places.insert(self.known.len(), (copies.bytes, size));
        copies.bytes += size;
        Some(())
    }

    fn is_in_place(&self, directory: &[u8]) -> bool {
        let ends = (1..=directory.len()).filter(|&end| directory.get(end).is_none_or(|byte| *byte == b'/'));
        let opened = |path| tree::directory(self.folder.as_fd(), path).and_then(|directory| fstat(&directory));
        let mut folders = ends.map(|end| &directory[..end]).chain([&b"."[..]]);
        folders.all(|path| opened(path).is_ok_and(|status| self.is_old(&status)))
    }

    /// For files that the user wrote or removed while the agent ran.
    pub(in crate::task) fn find(&self, changes: &Changes) -> Vec<KnownBase> {
        let mut found = Vec::new();
        if !changes.entries.iter().any(lacks_base) {
            return found;
        }
        let is_same = |status: &Stat| {
            let of = |status: &Stat| (tree::modified(status), tree::size(status));
            of(status) == of(&self.index_status)
        };
        let size = tree::size(&self.index_status);
        let Some(bytes) =
            read(&self.index, size, LONGEST_INDEX).filter(|_| fstat(&self.index).is_ok_and(|now| is_same(&now)))
        else {
            return found;
        };
        let Ok(mut index) = Index::new(bytes) else { return found };
        for number in 0.. {
            let entry = match index.read_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => return found,
                Err(_) => return Vec::new(),
            };
            let Some(&known) = self.known.get(number).filter(|known| **known != 0) else { continue };
            let Ok(path) = TreePath::new(index.name()) else { continue };
            if changes.find(&path).is_some_and(lacks_base)
                && let Some((size, content)) = self.content(number, known, &entry)
            {
                found.push(KnownBase { path, mode: u32::from(known & 0o777), size, content });
            }
        }
        found
    }

    fn content(&self, number: usize, known: u16, entry: &IndexEntry) -> Option<(u64, KnownContent)> {
        if known & BLOB != 0 {
            return Some((u64::from(entry.size), KnownContent::Blob(hexadecimal(&entry.blob))));
        }
        let (offset, size) = *self.copies.places.get(&number)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        self.copies.file.as_ref()?.read_exact_at(&mut bytes, offset).ok()?;
        Some((size, KnownContent::Copied(bytes)))
    }
}

/// Whether the record may not have the content at the start: the user wrote the file meanwhile, or removed it. Without a
/// base it is like a new file.
pub(in crate::task) fn lacks_base(entry: &super::Entry) -> bool {
    let is_written = match (&entry.base, &entry.now) {
        (Some(Base::File { .. }), None | Some(Node::File { .. })) => entry.base_is_newer,
        (None, Some(Node::File { .. })) => true,
        _ => false,
    };
    is_written && !entry.path.is_in_git()
}

/// Compares times, inode, size and mode. A file written in the second of the index's own write may have been written
/// again (git's "racy" entries), and counts as changed.
fn is_as_git_saw(status: &Stat, entry: &IndexEntry, index: &Stat) -> bool {
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    let changed = changed(status).and_then(since);
    let is_executable = |mode: u32| mode & 0o100 != 0;
    changed.is_some_and(|time| entry.changed == [cut(time.as_secs()), time.subsec_nanos()])
        && entry.modified == tree::modified(status).map(|part| cut(part.unsigned_abs()))
        && entry.inode == cut(status.st_ino)
        && entry.size == cut(tree::size(status))
        && FileType::from_raw_mode(entry.mode) == FileType::RegularFile
        && is_executable(entry.mode) == is_executable(status.st_mode)
        && tree::modified(status)[0] < tree::modified(index)[0]
}

/// As git stores numbers.
#[allow(clippy::cast_possible_truncation, reason = "the rest is what git leaves out")]
fn cut(number: u64) -> u32 {
    number as u32
}

/// `None` if the file is larger than `most` or its size has changed.
fn read(file: &File, size: u64, most: u64) -> Option<Vec<u8>> {
    if size > most {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    (copy::read_at(file, &mut bytes, 0).ok()? == bytes.len()).then_some(bytes)
}

/// Returns only the time of a file over `limit`, or of an unreadable one.
pub(super) fn read_base(directory: BorrowedFd<'_>, name: &[u8], status: &Stat, limit: u64) -> Result<Base, Errno> {
    let mode = tree::permissions(status);
    Ok(match tree::file_type(status) {
        FileType::Directory => Base::Directory { mode },
        FileType::RegularFile => {
            let digest = digest(directory, name, status, limit);
            let content = digest.map_or(Content::Unread(tree::modified(status)), Content::Sha256);
            Base::File { mode, size: tree::size(status), content }
        }
        FileType::Symlink => Base::Symlink { target: Raw(tree::link_target(directory, name)?) },
        _ => Base::Other,
    })
}

fn digest(directory: BorrowedFd<'_>, name: &[u8], status: &Stat, limit: u64) -> Option<copy::Digest> {
    let size = tree::size(status);
    if size > limit {
        return None;
    }
    let (file, _) = tree::file(directory, name).ok()?;
    let (digest, read) = copy::digest(&file, size).ok()?;
    (read == size).then_some(digest)
}

/// Never for a directory: each new name changes its time, and has its own.
pub(super) fn is_newer(base: &Base, status: &Stat, started: SystemTime) -> bool {
    !matches!(base, Base::Directory { .. }) && changed(status).is_some_and(|changed| changed > started)
}

#[allow(clippy::useless_conversion, reason = "the types of these fields differ between architectures")]
pub(super) fn changed(status: &Stat) -> Option<SystemTime> {
    let seconds = Duration::from_secs(u64::try_from(status.st_ctime).ok()?);
    let rest = Duration::from_nanos(u64::try_from(status.st_ctime_nsec).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds + rest)
}
