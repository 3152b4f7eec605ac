//! Compares the target with the record and plans the writes. Reads only.
//!
//! An entry equal to its base is to do, one equal to the agent's result is done, any other is a conflict. A directory
//! is removed only with everything in it.

use super::applied::{Applied, Conflict, Difference, LeftOut, LeftOutReason, Options, left_out};
use super::copy;
use super::path::TreePath;
use super::record::{Base, Changes, Content, Entry, Node};
use super::tree;
use crate::error::{Context, Kind, Result};
use crate::files::Names;
use crate::host::is_off;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Each list is in the order of execution.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    /// Deepest first.
    pub(super) removals: Vec<Removal<'a>>,
    /// Outermost first.
    pub(super) directories: Vec<(&'a TreePath, u32)>,
    /// Files, then links.
    pub(super) contents: Vec<PlannedWrite<'a>>,
    /// Set last, deepest first.
    pub(super) modes: Vec<(&'a TreePath, u32)>,
    pub(super) applied: Applied,
}

/// `None` is a directory, which must be empty by then.
#[derive(Debug)]
pub(super) struct Removal<'a> {
    pub(super) path: &'a TreePath,
    pub(super) seen: Option<FileStamp>,
}

#[derive(Debug)]
pub(super) struct PlannedWrite<'a> {
    pub(super) path: &'a TreePath,
    pub(super) node: &'a Node,
    /// `None` if the name must be free.
    pub(super) replaces: Option<FileStamp>,
    /// Instead of the agent's.
    pub(super) mode: Option<u32>,
    pub(super) merged: Option<Merged>,
}

#[derive(Debug)]
pub(super) struct Merged {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// Identifies a checked file when it is moved away: a concurrent edit is moved back, not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    inode: u64,
    size: u64,
    modified: [i64; 2],
    pub(super) owner: (u32, u32),
}

impl FileStamp {
    pub(super) fn of(status: &Stat) -> FileStamp {
        FileStamp {
            inode: status.st_ino,
            size: tree::size(status),
            modified: tree::modified(status),
            owner: (status.st_uid, status.st_gid),
        }
    }
}

enum Found {
    Missing,
    Done,
    Base(Stat),
    Other(Stat),
    Blocked(Difference),
}

pub(super) fn check<'a>(changes: &'a Changes, target: BorrowedFd<'_>, options: Options) -> Result<Plan<'a>> {
    let mut check = Check { changes, target, options, plan: Plan::default(), going: HashSet::new() };
    for entry in &changes.entries {
        check.entry(entry)?;
    }
    check.directories_are_empty()?;
    let Check { mut plan, .. } = check;
    plan.removals.reverse();
    plan.modes.reverse();
    plan.contents.sort_by_key(|put| matches!(put.node, Node::Symlink { .. }));
    Ok(plan)
}

struct Check<'a, 'b> {
    changes: &'a Changes,
    target: BorrowedFd<'b>,
    options: Options,
    plan: Plan<'a>,
    going: HashSet<&'a TreePath>,
}

impl<'a> Check<'a, '_> {
    fn entry(&mut self, entry: &'a Entry) -> Result<()> {
        if let Some(why) = left_out(entry, self.options) {
            self.plan.applied.left_out.push(LeftOut { path: entry.path.clone(), why });
            return Ok(());
        }
        let found = self.found(entry)?;
        let is_directory = |status: &Stat| tree::file_type(status) == FileType::Directory;
        match found {
            Found::Done => self.plan.applied.already += 1,
            Found::Missing if entry.now.is_none() => self.plan.applied.already += 1,
            Found::Missing => {
                if entry.base.is_some() {
                    self.conflict(entry, Difference::Missing);
                }
                self.write(entry, None);
            }
            Found::Base(status) => {
                if entry.base_is_newer {
                    self.conflict(entry, Difference::EditedMeanwhile);
                }
                self.write(entry, Some(&status));
            }
            Found::Other(status) if is_directory(&status) => {
                // A directory that existed differs in its mode at most. Any other is the user's whole directory.
                let was = matches!(entry.base, Some(Base::Directory { .. }));
                self.conflict(entry, if was { Difference::Changed } else { Difference::IsDirectory });
                self.write(entry, Some(&status));
            }
            Found::Other(status) => {
                self.conflict(
                    entry,
                    match entry.base {
                        None => Difference::Exists,
                        // The recorded base has a user's edit. A merge would take it for lines that the agent removed.
                        Some(_) if entry.base_is_newer => Difference::EditedMeanwhile,
                        Some(_) => Difference::Changed,
                    },
                );
                self.write(entry, Some(&status));
            }
            Found::Blocked(difference) => self.conflict(entry, difference),
        }
        Ok(())
    }

    fn conflict(&mut self, entry: &Entry, difference: Difference) {
        self.plan.applied.conflicts.push(Conflict { path: entry.path.clone(), difference });
    }

    fn write(&mut self, entry: &'a Entry, there: Option<&Stat>) {
        let path = &entry.path;
        let there_is_directory = there.is_some_and(|status| tree::file_type(status) == FileType::Directory);
        let seen = there.map(FileStamp::of);
        match &entry.now {
            None => self.remove(path, if there_is_directory { None } else { seen }),
            Some(Node::Directory { mode }) => {
                if !there_is_directory {
                    if seen.is_some() {
                        self.remove(path, seen);
                    }
                    self.plan.directories.push((path, *mode));
                }
                let merged = there.and_then(|status| self.merged_mode(entry, status));
                self.plan.modes.push((path, merged.unwrap_or(*mode)));
            }
            Some(node) => {
                if there_is_directory {
                    self.remove(path, None);
                }
                self.plan.contents.push(PlannedWrite {
                    path,
                    node,
                    replaces: if there_is_directory { None } else { seen },
                    mode: there.and_then(|status| self.merged_mode(entry, status)),
                    merged: None,
                });
            }
        }
        self.plan.applied.changed.push(path.clone());
    }

    /// The user's permissions with the bits that the agent changed.
    fn merged_mode(&self, entry: &Entry, there: &Stat) -> Option<u32> {
        let (mode, file_type) = match (&entry.base, &entry.now) {
            (Some(Base::File { .. }), Some(Node::File { mode, .. })) => (mode, FileType::RegularFile),
            (Some(Base::Directory { .. }), Some(Node::Directory { mode })) => (mode, FileType::Directory),
            _ => return None,
        };
        let bits = entry.changed_bits();
        let is_merged = self.options.git_modes && tree::file_type(there) == file_type;
        is_merged.then(|| tree::permissions(there) & !bits | mode & bits)
    }

    fn remove(&mut self, path: &'a TreePath, seen: Option<FileStamp>) {
        self.going.insert(path);
        self.plan.removals.push(Removal { path, seen });
    }

    fn directories_are_empty(&mut self) -> Result<()> {
        let mut kept = HashSet::new();
        // Deepest first: a directory that stays keeps its parents.
        for removal in self.plan.removals.iter().rev().filter(|removal| removal.seen.is_none()) {
            let step = || format!("read the directory `{}`", removal.path);
            let directory = tree::directory(self.target, removal.path.as_bytes()).failing(Kind::Workspace, step)?;
            let names = Names::of(&directory).failing(Kind::Workspace, step)?;
            let goes = |name: &[u8]| {
                TreePath::join(Some(removal.path), name)
                    .is_ok_and(|path| self.going.contains(&path) && !kept.contains(&path))
            };
            if !names.iter().all(|(name, _)| goes(name.to_bytes())) {
                kept.insert(removal.path.clone());
            }
        }
        for path in &kept {
            let stays_possible = self.options.force && self.changes.find(path).is_some_and(|entry| entry.now.is_none());
            if stays_possible {
                self.plan.removals.retain(|removal| removal.path != path);
                self.plan.applied.changed.retain(|changed| changed != path);
                self.plan.applied.left_out.push(LeftOut { path: path.clone(), why: LeftOutReason::NotEmpty });
            } else {
                self.plan.applied.conflicts.push(Conflict { path: path.clone(), difference: Difference::NotEmpty });
            }
        }
        Ok(())
    }

    fn found(&self, entry: &Entry) -> Result<Found> {
        let step = || format!("look at `{}` in the target", entry.path);
        let parent = match tree::parent(self.target, &entry.path) {
            Ok(parent) => parent,
            // The parent is new itself: the path cannot exist.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.parent_will_be_made(&entry.path) => {
                return Ok(Found::Missing);
            }
            Err(Errno::NOENT) if entry.now.is_none() => return Ok(Found::Missing),
            // The parent is already what the agent made of it, and the path went with it.
            Err(Errno::NOTDIR | Errno::LOOP) if self.parent_will_go(&entry.path) => return Ok(Found::Missing),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Found::Blocked(Difference::NoParent)),
            Err(Errno::XDEV) => return Ok(Found::Blocked(Difference::MountPoint)),
            Err(errno) => return Err(errno).failing(Kind::Workspace, step),
        };
        let Some(status) = tree::status(parent.as_fd(), entry.path.name()).failing(Kind::Workspace, step)? else {
            return Ok(Found::Missing);
        };
        let bits = if self.options.git_modes { 0o100 } else { 0o777 };
        let same_mode = |bits: u32, mode: u32| (tree::permissions(&status) ^ mode) & bits == 0;
        let same_as_now = |mode: u32| same_mode(bits | entry.changed_bits(), mode);
        if is_now(&parent, entry, &status, same_as_now).failing(Kind::Workspace, step)? {
            return Ok(Found::Done);
        }
        let verify = !is_off("changes-verify");
        let same_as_base = |mode: u32| same_mode(bits, mode);
        if !verify || is_base(&parent, entry, &status, same_as_base).failing(Kind::Workspace, step)? {
            return Ok(Found::Base(status));
        }
        Ok(Found::Other(status))
    }

    fn parent_will_be_made(&self, path: &TreePath) -> bool {
        self.is_above(path, |entry| {
            matches!(entry.now, Some(Node::Directory { .. })) && !matches!(entry.base, Some(Base::Directory { .. }))
        })
    }

    fn parent_will_go(&self, path: &TreePath) -> bool {
        self.is_above(path, Entry::removes_directory)
    }

    fn is_above(&self, path: &TreePath, question: impl Fn(&Entry) -> bool) -> bool {
        let above = std::iter::successors(path.parent(), TreePath::parent);
        above.filter_map(|directory| self.changes.find(&directory)).any(question)
    }
}

fn is_now(
    parent: &OwnedFd,
    entry: &Entry,
    status: &Stat,
    same_mode: impl Fn(u32) -> bool,
) -> std::result::Result<bool, Errno> {
    Ok(match (&entry.now, tree::file_type(status)) {
        // An existing directory matches one that the agent made, in any mode.
        (Some(Node::Directory { mode }), FileType::Directory) => entry.base.is_none() || same_mode(*mode),
        (Some(Node::File { mode, size, sha256 }), FileType::RegularFile) => {
            same_mode(*mode) && has_digest(parent, entry, *size, status, sha256)?
        }
        (Some(Node::Symlink { target }), FileType::Symlink) => {
            tree::link_target(parent.as_fd(), entry.path.name())? == target.0
        }
        _ => false,
    })
}

fn is_base(
    parent: &OwnedFd,
    entry: &Entry,
    status: &Stat,
    same_mode: impl Fn(u32) -> bool,
) -> std::result::Result<bool, Errno> {
    let file_type = tree::file_type(status);
    Ok(match (&entry.base, file_type) {
        (Some(Base::Directory { mode }), FileType::Directory) => same_mode(*mode),
        (Some(Base::File { mode, size, content: Content::Sha256(sha256) }), FileType::RegularFile) => {
            same_mode(*mode) && has_digest(parent, entry, *size, status, sha256)?
        }
        (Some(Base::File { mode, size, content: Content::Unread(time) }), FileType::RegularFile) => {
            same_mode(*mode) && tree::size(status) == *size && FileStamp::of(status).modified == *time
        }
        (Some(Base::Symlink { target }), FileType::Symlink) => {
            tree::link_target(parent.as_fd(), entry.path.name())? == target.0
        }
        (Some(Base::Other), other) => !matches!(other, FileType::Directory | FileType::RegularFile | FileType::Symlink),
        _ => false,
    })
}

fn has_digest(
    parent: &OwnedFd,
    entry: &Entry,
    size: u64,
    status: &Stat,
    sha256: &copy::Digest,
) -> std::result::Result<bool, Errno> {
    if tree::size(status) != size {
        return Ok(false);
    }
    let (file, _) = match tree::file(parent.as_fd(), entry.path.name()) {
        Ok(opened) => opened,
        // Unreadable: it cannot be compared.
        Err(Errno::ACCESS) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    let (digest, read) =
        copy::digest(&file, size).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(read == size && digest == *sha256)
}
