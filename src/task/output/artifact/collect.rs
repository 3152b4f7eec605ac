//! Copies from a hostile tree, which is read through `changes::tree` only, on descriptors.

use super::pattern::{Patterns, Progress};
use super::{Artifact, ArtifactOptions, Artifacts, RefusedArtifact, RefusedBecause};
use crate::error::{Context, Kind, Result};
use crate::files::hash::Hasher;
use crate::files::{self, Bounds, Names, Pinned, Stop, WalkStep};
use crate::task::output::changes::Form;
use crate::task::output::changes::copy::{self, Digest};
use crate::task::output::changes::path::{TreePath, escape, json_length, written};
use crate::task::output::changes::store::{Store, is_full};
use crate::task::output::changes::tree;
use crate::task::redact::{Redactor, Stream};
use rustix::fs::{FileType, Mode, Stat, fchmod};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// 256 MiB at 1 MB a second; the rest is not taken.
const MOST_TIME: Duration = Duration::from_secs(300);
/// A tree of millions of empty files is not a result.
pub(super) const MOST_FILES: usize = 10_000;
/// Bytes of the files' paths, as in the receipt.
pub(super) const MOST_PATH_BYTES: u64 = 8 << 20;
const MOST_NAMES: usize = 500_000;
/// Each level holds a descriptor.
const DEEPEST: usize = 200;
pub(super) const MOST_REFUSED: usize = 1000;
/// Bytes of the refused files' paths.
pub(super) const MOST_REFUSED_BYTES: u64 = 1 << 20;
/// As in git: a NUL byte in this many first bytes makes a file binary.
const BEGINNING: usize = 8000;

#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub upper: BorrowedFd<'a>,
    pub form: Form,
}

pub(in crate::task) fn collect(
    source: Option<Source<'_>>,
    (options, pinned): (&ArtifactOptions, &Pinned),
    task: &Path,
    disk_bytes: u64,
    redactor: &Redactor,
) -> Result<Artifacts> {
    collect_until(Instant::now() + MOST_TIME, source, (options, pinned), task, disk_bytes, redactor)
}

fn collect_until(
    end: Instant,
    source: Option<Source<'_>>,
    (options, pinned): (&ArtifactOptions, &Pinned),
    task: &Path,
    disk_bytes: u64,
    redactor: &Redactor,
) -> Result<Artifacts> {
    let patterns = options.parsed()?;
    let Some(source) = source else {
        return Ok(Artifacts { unmatched: options.patterns.clone(), ..Artifacts::default() });
    };
    let mut walk = Walk {
        form: source.form,
        place: options.place(task),
        pinned,
        store: None,
        refused_inodes: HashMap::new(),
        left: options.bytes,
        disk_left: disk_bytes,
        paths_left: MOST_PATH_BYTES,
        refused_left: MOST_REFUSED_BYTES,
        matched: vec![false; options.patterns.len()],
        redactor,
        found: Artifacts::default(),
    };
    let root = tree::directory(source.upper, b".").failing(Kind::Workspace, || "open the workspace's changes")?;
    walk.run(&patterns, root, end)?;
    let mut found = walk.found;
    found.files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    found.unmatched =
        options.patterns.iter().zip(walk.matched).filter(|(_, is)| !is).map(|(text, _)| text.clone()).collect();
    found.path = walk.store.map(|_| walk.place);
    Ok(found)
}

struct Frame {
    path: Option<TreePath>,
    progress: Progress,
    /// The directory as a whole matches a pattern.
    is_taken: bool,
}

type Tree = files::Walk<1, Frame>;

struct Walk<'a> {
    form: Form,
    place: PathBuf,
    pinned: &'a Pinned,
    store: Option<Store>,
    /// By device and inode: further names are not read again.
    refused_inodes: HashMap<(u64, u64), RefusedBecause>,
    left: u64,
    /// Bytes of the host's disk for copies.
    disk_left: u64,
    /// Bytes of paths for the list.
    paths_left: u64,
    refused_left: u64,
    matched: Vec<bool>,
    redactor: &'a Redactor,
    found: Artifacts,
}

impl Walk<'_> {
    fn run(&mut self, patterns: &Patterns, root: OwnedFd, end: Instant) -> Result<()> {
        let mut tree = Tree::new(Bounds { entries: MOST_NAMES, depth: DEEPEST, end: Some(end) });
        let root_frame = Frame { path: None, progress: patterns.root(), is_taken: false };
        self.enter(&mut tree, root, root_frame);
        loop {
            match tree.next() {
                Ok(None) => return Ok(()),
                Ok(Some(WalkStep::End)) => {}
                Ok(Some(WalkStep::Entry(_))) => {
                    if let Some((directory, frame)) = self.visit(patterns, &tree)? {
                        self.enter(&mut tree, directory, frame);
                    }
                }
                // The time is over, or another process changes the tree: leave out the rest.
                Err(stop) => {
                    let why = if stop == Stop::Time { RefusedBecause::OutOfTime } else { RefusedBecause::Unreadable };
                    self.refuse(tree.state().and_then(|frame| frame.path.as_ref()), why);
                    return Ok(());
                }
            }
        }
    }

    fn enter(&mut self, tree: &mut Tree, directory: OwnedFd, frame: Frame) {
        let mut names = Names::default();
        let path = frame.path.clone();
        let listed = tree.list(&directory, &mut names);
        if matches!(listed, Ok(true)) {
            self.refuse(path.as_ref(), RefusedBecause::TooMany);
        }
        names.sort();
        let entered = listed.map_err(Stop::from).and_then(|_| tree.enter([Some(directory)], names, frame));
        if entered.is_err() {
            self.refuse(path.as_ref(), RefusedBecause::Unreadable);
        }
    }

    fn visit(&mut self, patterns: &Patterns, tree: &Tree) -> Result<Option<(OwnedFd, Frame)>> {
        let (Some(frame), Some(directory)) = (tree.state(), tree.get(0)) else { return Ok(None) };
        let name = tree.name().to_bytes();
        let look = patterns.match_name(&frame.progress, name);
        let is_taken = frame.is_taken || !look.matches.is_empty();
        if !is_taken && look.below.is_over() {
            return Ok(None);
        }
        let Ok(path) = TreePath::join(frame.path.as_ref(), name) else {
            self.refuse(frame.path.as_ref(), RefusedBecause::TooDeep);
            return Ok(None);
        };
        let status = match tree::status(directory, name) {
            Ok(Some(status)) if !self.form.is_whiteout(&status) => status,
            Ok(_) => return Ok(None), // a whiteout of overlayfs: the name is deleted
            Err(_) => return Ok(self.refused(&path, RefusedBecause::Unreadable)),
        };
        look.matches.iter().for_each(|&index| self.matched[index] = true);
        let kind = tree::file_type(&status);
        if path.is_in_git() {
            // Refuse only what matches: a link or file on the way to nothing needs no report.
            return Ok(if is_taken { self.refused(&path, RefusedBecause::Git) } else { None });
        }
        match kind {
            FileType::Directory if tree.is_deepest() => Ok(self.refused(&path, RefusedBecause::TooDeep)),
            FileType::Directory => match tree::directory(directory, name) {
                Ok(inner) => Ok(Some((inner, Frame { path: Some(path), progress: look.below, is_taken }))),
                Err(_) => Ok(self.refused(&path, RefusedBecause::Unreadable)),
            },
            // Refuse a link on the way too: the pattern's path led through it.
            FileType::Symlink => Ok(self.refused(&path, RefusedBecause::Link)),
            _ if !is_taken => Ok(None),
            FileType::RegularFile => self.file(directory, &path, name).map(|()| None),
            FileType::Fifo => Ok(self.refused(&path, RefusedBecause::Fifo)),
            FileType::Socket => Ok(self.refused(&path, RefusedBecause::Socket)),
            _ => Ok(self.refused(&path, RefusedBecause::Device)),
        }
    }

    fn file(&mut self, directory: BorrowedFd<'_>, path: &TreePath, name: &[u8]) -> Result<()> {
        let looked = tree::file(directory, name).and_then(|(file, status)| {
            // A metadata-only file has its content elsewhere. brig's mounts never make one: do not read it.
            let is_elsewhere = self.form.is_metadata_only(&file)?;
            Ok((self.form.is_file_whiteout(&file, &status)?, is_elsewhere, file, status))
        });
        let (file, status) = match looked {
            Ok((true, ..)) => return Ok(()),
            Ok((_, false, file, status)) => (file, status),
            Ok((_, true, ..)) | Err(_) => return self.no(path, RefusedBecause::Unreadable),
        };
        // Each name of a hard link is a copy and counts.
        if tree::size(&status) > self.left || tree::allocated(&status) > self.disk_left {
            return self.no(path, RefusedBecause::TooLarge);
        }
        let length = written(path.as_bytes());
        if self.found.files.len() >= MOST_FILES || length > self.paths_left {
            return self.no(path, RefusedBecause::TooMany);
        }
        // The copy's name would contain the secret.
        if self.redactor.finds_value(path.as_bytes()).unwrap_or(true) {
            return self.no(path, RefusedBecause::Secret);
        }
        let inode = (status.st_dev, status.st_ino);
        if let Some(&why) = self.refused_inodes.get(&inode) {
            return self.no(path, why);
        }
        match self.take(path, file, &status)? {
            Ok(artifact) => {
                self.paths_left -= length;
                self.left -= artifact.size.min(self.left);
                self.found.files.push(artifact);
                Ok(())
            }
            Err(why) => {
                if status.st_nlink > 1 {
                    self.refused_inodes.insert(inode, why);
                }
                self.no(path, why)
            }
        }
    }

    /// An error of the store is an error, one of the agent's file a refusal.
    fn take(&mut self, path: &TreePath, mut file: File, status: &Stat) -> Result<Result<Artifact, RefusedBecause>> {
        let size = tree::size(status);
        let is_text = match is_text(&mut file) {
            Ok(is_text) => is_text,
            Err(_) => return Ok(Err(RefusedBecause::Unreadable)),
        };
        if !is_text {
            match self.redactor.finds_value((&file).take(size)) {
                Ok(false) => {}
                Ok(true) => return Ok(Err(RefusedBecause::Secret)),
                Err(_) => return Ok(Err(RefusedBecause::Unreadable)),
            }
        }
        self.store()?;
        if tree::allocated(status) > self.disk_left {
            return Ok(Err(RefusedBecause::TooLarge)); // the folder's disk has less room
        }
        let to = self.store()?.make(path)?;
        let before = self.redactor.count();
        let copied = if is_text { self.redacted(file, size, &to) } else { copy::copy(&file, size, &to).map(Ok) };
        let failed = |cause: std::io::Error| files::failed(cause, format!("copy the artifact `{path}`"));
        let (digest, size) = match copied {
            Ok(Ok(copied)) => copied,
            Ok(Err(why)) => {
                self.store()?.remove(path)?;
                return Ok(Err(why));
            }
            Err(copy::Failure::Read(_)) => {
                self.store()?.remove(path)?;
                return Ok(Err(RefusedBecause::Unreadable));
            }
            Err(copy::Failure::Write(cause)) if is_full(&cause) => {
                self.store()?.remove(path)?;
                return Ok(Err(RefusedBecause::TooLarge));
            }
            Err(copy::Failure::Write(cause)) => return Err(failed(cause)),
        };
        // Never set-id, never writable for others.
        let mode = Mode::from_raw_mode(tree::permissions(status) & 0o755 | 0o600);
        fchmod(&to, mode).map_err(|errno| failed(errno.into()))?;
        let stored = rustix::fs::fstat(&to).map_err(|errno| failed(errno.into()))?;
        self.disk_left = self.disk_left.saturating_sub(tree::allocated(&stored));
        let redactions = self.redactor.count() - before;
        Ok(Ok(Artifact { path: path.to_string(), size, sha256: digest.to_string(), redactions }))
    }

    fn redacted(
        &self,
        file: File,
        size: u64,
        mut to: &File,
    ) -> Result<Result<(Digest, u64), RefusedBecause>, copy::Failure> {
        let (mut from, mut stream) = (file.take(size), Stream::default());
        let (mut hasher, mut written) = (Hasher::sha256(), 0_u64);
        let (mut buffer, mut out) = (vec![0; 256 << 10], Vec::new());
        loop {
            let count = match from.read(&mut buffer) {
                Ok(count) => count,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(copy::Failure::Read(cause)),
            };
            match count {
                0 => self.redactor.finish(&mut stream, &mut out),
                _ => self.redactor.push(&mut stream, &buffer[..count], &mut out),
            }
            written += out.len() as u64;
            if written > self.left.min(self.disk_left) {
                return Ok(Err(RefusedBecause::TooLarge)); // a redaction's name may be longer than the value
            }
            hasher.update(&out);
            to.write_all(&out).map_err(copy::Failure::Write)?;
            out.clear();
            if count == 0 {
                return Ok(Ok((Digest(hasher.finish()), written)));
            }
        }
    }

    fn store(&mut self) -> Result<&Store> {
        if self.store.is_none() {
            let store = Store::at(self.pinned.make_directories(&self.place, 0o755)?);
            self.disk_left = self.disk_left.min(store.room());
            self.store = Some(store);
        }
        self.store.as_ref().ok_or_else(|| crate::error::Error::new(Kind::Internal, "no folder for artifacts"))
    }

    fn refuse(&mut self, path: Option<&TreePath>, why: RefusedBecause) {
        let path = self.redactor.text(&path.map_or_else(|| escape(b"."), ToString::to_string));
        let Some(left) =
            self.refused_left.checked_sub(json_length(&path)).filter(|_| self.found.refused.len() < MOST_REFUSED)
        else {
            self.found.refused_more += 1;
            return;
        };
        self.refused_left = left;
        self.found.refused.push(RefusedArtifact { path, why });
    }

    fn refused<T>(&mut self, path: &TreePath, why: RefusedBecause) -> Option<T> {
        self.refuse(Some(path), why);
        None
    }

    fn no(&mut self, path: &TreePath, why: RefusedBecause) -> Result<()> {
        self.refuse(Some(path), why);
        Ok(())
    }
}

/// Seeks back to the start.
fn is_text(file: &mut File) -> Result<bool, Errno> {
    let mut beginning = Vec::with_capacity(BEGINNING);
    let read = (&*file).take(BEGINNING as u64).read_to_end(&mut beginning).and_then(|_| file.seek(SeekFrom::Start(0)));
    read.map_err(|cause| cause.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
    Ok(!beginning.contains(&0))
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
