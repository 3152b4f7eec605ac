//! Makes a record and plain copies from an overlay's upper directory, which is hostile in every respect.
//!
//! Writes `<into>/files/…` and `<into>/changes.json`. The agent's processes must be gone: a concurrent change results
//! in a wrong entry at worst.

mod skip;

use super::Limits;
use super::copy::{self, Digest};
use super::ignored::{Repository, Rules};
use super::index::{Above, Worktree};
use super::keep_bases;
use super::overlay::{Directory, Form};
use super::overlay::{HiddenNames, KeptFolders};
use super::path::{Raw, TreePath};
use super::record::{Base, Changes, Entry, Node, Reason};
use super::snapshot;
use super::store::{Store, is_full};
use super::tree;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Bounds, Names, Stop, WalkStep};
use crate::host::is_off;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Workspace<'a> {
    /// Without a base the whole workspace.
    pub(crate) upper: BorrowedFd<'a>,
    /// Submounts are left out, as an overlay leaves them out.
    pub(crate) lower: Option<BorrowedFd<'a>>,
    /// The repository above the base, if the base is a folder of one.
    pub(crate) above: Option<&'a Above>,
    /// The repository of the worktree that the base is, or that is above it.
    pub(crate) worktree: Option<&'a Worktree>,
    pub(crate) hidden: Option<HiddenNames<'a>>,
    pub(crate) form: Form,
    /// A base written later is marked, to protect the user's edit.
    pub(crate) started: Option<SystemTime>,
}

/// `into` has no `files` yet.
pub(crate) fn collect(workspace: Workspace<'_>, into: &Path, limits: &Limits) -> Result<Changes> {
    let step = || format!("collect the changes into `{}`", into.display());
    if workspace.form == Form::Trusted
        && !caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap_or(false)
    {
        // Without privilege the kernel hides these attributes, and every opaque directory would look merged.
        return Err(Error::os(Kind::Workspace, Errno::PERM).doing("read `trusted.overlay` attributes").doing(step()));
    }
    files::create_directories(into, 0o700)?;
    let store = Store::create(into).map_err(|error| error.doing(step()))?;
    let limits = &Limits { disk_bytes: limits.disk_bytes.min(store.room()), ..*limits };
    let mut walk = Walk {
        workspace,
        limits,
        store,
        copied: 0,
        stored: 0,
        links: HashMap::new(),
        end: Instant::now() + limits.time,
        paths_left: limits.path_bytes,
        skipped_left: limits.skipped_bytes,
        is_full: false,
        repository: Repository::default(),
        kept_folders: KeptFolders::default(),
        changes: Changes { complete: true, ..Changes::default() },
    };
    walk.run().map_err(|error| error.doing(step()))?;
    walk.kept_folders.leave_out(&mut walk.changes);
    walk.changes.entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    if let Some(lower) = walk.workspace.lower {
        let left = limits.base_bytes.min(limits.disk_bytes - walk.stored);
        keep_bases::keep(&walk.changes, lower, into, left, walk.end).map_err(|error| error.doing(step()))?;
    }
    walk.changes.save(&into.join("changes.json"))?;
    Ok(walk.changes)
}

const UPPER: usize = 0;
const LOWER: usize = 1;

type Trees = files::Walk<2, Frame>;

struct Frame {
    path: Option<TreePath>,
    /// Names of the base show through; otherwise they are deleted.
    base_shows: bool,
    rules: Option<Rc<Rules>>,
    /// git ignores all of it except tracked files.
    is_ignored: bool,
}

struct Subdirectory {
    path: Option<TreePath>,
    upper: Option<OwnedFd>,
    lower: Option<OwnedFd>,
    /// The parent's value.
    base_shows: bool,
    /// The parent's value.
    rules: Option<Rc<Rules>>,
    is_ignored: bool,
}

struct Place<'a> {
    trees: &'a Trees,
    frame: &'a Frame,
    name: &'a [u8],
    path: TreePath,
    base: Option<Stat>,
    is_ignored: bool,
}

impl Place<'_> {
    fn subdirectory(self, upper: Option<OwnedFd>, lower: Option<OwnedFd>, base_shows: bool) -> Subdirectory {
        let rules = self.frame.rules.clone();
        Subdirectory { path: Some(self.path), upper, lower, base_shows, rules, is_ignored: self.is_ignored }
    }
}

struct Copied {
    path: TreePath,
    sha256: Digest,
    size: u64,
}

struct Walk<'a> {
    workspace: Workspace<'a>,
    limits: &'a Limits,
    store: Store,
    copied: u64,
    /// Bytes of the copies on the host's disk.
    stored: u64,
    /// The first copy of a file with several names, by device and inode.
    links: HashMap<(u64, u64), Copied>,
    end: Instant,
    paths_left: u64,
    skipped_left: u64,
    /// The record is full: the walk ends.
    is_full: bool,
    repository: Repository<'a>,
    kept_folders: KeptFolders,
    changes: Changes,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<()> {
        let open = |side: BorrowedFd<'_>| tree::directory(side, b".").failing(Kind::Workspace, || "open the workspace");
        let upper = open(self.workspace.upper)?;
        let lower = self.workspace.lower.map(open).transpose()?;
        let base = lower.as_ref().filter(|_| !self.limits.ignored).map(AsFd::as_fd);
        let Workspace { worktree, above, .. } = self.workspace;
        self.repository = base.map(|base| Repository::of(base, worktree, above)).unwrap_or_default();
        let rules = self.repository.rules.take();
        let bounds = Bounds { entries: self.limits.names, depth: self.limits.depth, end: Some(self.end) };
        let mut trees = Trees::new(bounds);
        let root = Subdirectory { path: None, upper: Some(upper), lower, base_shows: true, rules, is_ignored: false };
        self.enter(&mut trees, root)?;
        while !self.is_full {
            match trees.next() {
                Ok(None) => break,
                Ok(Some(WalkStep::End)) => {}
                Ok(Some(WalkStep::Entry(_))) => {
                    if let Some(subdirectory) = self.visit(&trees)? {
                        self.enter(&mut trees, subdirectory)?;
                    }
                }
                Err(stop) => {
                    self.end_early(trees.state(), stop);
                    break;
                }
            }
        }
        Ok(())
    }

    fn end_early(&mut self, frame: Option<&Frame>, stop: Stop) {
        let path = frame.and_then(|frame| frame.path.as_ref());
        let path = Raw(path.map_or_else(|| b".".to_vec(), |path| path.as_bytes().to_vec()));
        self.changes.complete = false;
        match stop {
            Stop::Time => self.skip(path, Reason::OutOfTime, None),
            Stop::System(errno) => self.skip(path, Reason::Unreadable, Some(errno)),
            Stop::Moved | Stop::Entries | Stop::Depth => self.skip(path, Reason::Changing, None),
        }
    }

    fn enter(&mut self, trees: &mut Trees, subdirectory: Subdirectory) -> Result<()> {
        let Subdirectory { path, upper, lower, .. } = subdirectory;
        let raw = || Raw(path.as_ref().map(|path| path.as_bytes().to_vec()).unwrap_or_else(|| b".".to_vec()));
        let mark = match &upper {
            Some(upper) => self.workspace.form.directory(upper),
            None => Ok(Directory::Opaque),
        };
        let base_shows = match mark {
            // Directories inside an opaque one are not merged either, even without a mark.
            Ok(Directory::Merged) => subdirectory.base_shows,
            Ok(Directory::Opaque) => false,
            Ok(Directory::Moved) => return Err(unsupported(&raw(), "redirect_dir")),
            Err(errno) => {
                self.skip(raw(), Reason::Unreadable, Some(errno));
                return Ok(());
            }
        };
        let mut names = Names::default();
        let deleted_side = if base_shows { None } else { lower.as_ref() };
        for side in [upper.as_ref(), deleted_side].into_iter().flatten() {
            match trees.list(side, &mut names) {
                Ok(false) => {}
                Ok(true) => {
                    self.changes.complete = false;
                    self.skip(raw(), Reason::TooMany, None);
                }
                Err(errno) => self.skip(raw(), Reason::Unreadable, Some(errno)),
            }
        }
        names.sort();
        let rules = match &lower {
            Some(lower) if !self.limits.ignored => {
                let depth = path.as_ref().map_or(0, |path| path.as_bytes().len() + 1);
                Rules::of(lower.as_fd(), self.repository.prefix.len() + depth, subdirectory.rules)
            }
            _ => subdirectory.rules,
        };
        let frame = Frame { path, base_shows, rules, is_ignored: subdirectory.is_ignored };
        if let Err(stop) = trees.enter([upper, lower], names, frame) {
            self.is_full = true;
            self.end_early(trees.state(), stop);
        }
        Ok(())
    }

    fn visit(&mut self, trees: &Trees) -> Result<Option<Subdirectory>> {
        let Some(frame) = trees.state() else { return Ok(None) };
        let name = trees.name().to_bytes();
        let Ok(path) = TreePath::join(frame.path.as_ref(), name) else {
            let above = frame.path.as_ref().map(|path| path.as_bytes().to_vec()).unwrap_or_default();
            self.changes.complete = false;
            self.skip(Raw(above), Reason::TooDeep, None);
            return Ok(None);
        };
        if !self.takes(&path, path.as_bytes()) {
            return Ok(None);
        }
        let status = |side| trees.get(side).map_or(Ok(None), |side| tree::status(side, name));
        let (now, base) = match (status(UPPER), status(LOWER)) {
            (Ok(now), Ok(base)) => (now, base),
            (Err(errno), _) | (_, Err(errno)) => return Ok(self.leave_out(&path, Reason::Unreadable, Some(errno))),
        };
        let is_directory = |status: &Stat| tree::file_type(status) == FileType::Directory;
        if self.hides(&path, [now.as_ref(), base.as_ref()]) {
            // A file of the agent's under a hidden name would be compared with the hidden one.
            self.kept_folders.keep(&path, base.as_ref());
            let is_new = now.is_some_and(|now| !self.workspace.form.is_whiteout(&now));
            return Ok(if is_new { self.leave_out(&path, Reason::Hidden, None) } else { None });
        }
        let shown = now.as_ref().filter(|now| !self.workspace.form.is_whiteout(now)).or(base.as_ref());
        let is_ignored = self.is_ignored(frame, &path, shown.is_some_and(is_directory));
        if is_ignored && !self.repository.tracked.as_ref().map_or(base.is_some(), |tracked| tracked.has(&path)) {
            self.kept_folders.keep(&path, base.as_ref());
            self.changes.ignore(path);
            return Ok(None);
        }
        let place = Place { trees, frame, name, path, base, is_ignored };
        let Some(now) = now else {
            return if frame.base_shows {
                Ok(self.leave_out(&place.path, Reason::Changing, None))
            } else {
                self.deleted(place)
            };
        };
        if self.workspace.form.is_whiteout(&now) {
            return self.deleted(place);
        }
        match tree::file_type(&now) {
            FileType::Directory => self.directory(place, &now),
            FileType::RegularFile => self.file(place),
            FileType::Symlink => self.link(place),
            FileType::Fifo => Ok(self.leave_out(&place.path, Reason::Fifo, None)),
            FileType::Socket => Ok(self.leave_out(&place.path, Reason::Socket, None)),
            _ => Ok(self.leave_out(&place.path, Reason::Device, None)),
        }
    }

    fn hides(&self, path: &TreePath, sides: [Option<&Stat>; 2]) -> bool {
        self.workspace.hidden.is_some_and(|hidden| hidden.has(path, sides)) && !is_off("hidden-changes")
    }

    /// git may still track the path.
    fn is_ignored(&self, frame: &Frame, path: &TreePath, is_directory: bool) -> bool {
        let rules = frame.rules.as_ref().filter(|_| !path.is_in_git());
        let in_repository = || [self.repository.prefix, path.as_bytes()].concat();
        frame.is_ignored || rules.is_some_and(|rules| rules.ignore(&in_repository(), is_directory))
    }

    fn directory(&mut self, place: Place<'_>, now: &Stat) -> Result<Option<Subdirectory>> {
        let mode = tree::permissions(now);
        let base_is_directory = place.base.as_ref().is_some_and(|base| tree::file_type(base) == FileType::Directory);
        // Overlayfs copies a directory up with the first change in it: the copy alone is not a change.
        let is_copied_up = base_is_directory && place.base.as_ref().is_some_and(|base| tree::permissions(base) == mode);
        if !is_copied_up {
            let Some((base, base_is_newer)) = self.base(&place) else { return Ok(None) };
            let now = Some(Node::Directory { mode });
            self.changes.entries.push(Entry { path: place.path.clone(), now, base, base_is_newer });
        }
        if place.trees.is_deepest() {
            return Ok(self.too_deep(&place.path));
        }
        let open = |side| place.trees.get(side).map(|side| tree::directory(side, place.name)).transpose();
        let lower = if base_is_directory { open(LOWER) } else { Ok(None) };
        match (open(UPPER), lower) {
            (Ok(upper), Ok(lower)) => {
                let base_shows = place.frame.base_shows;
                Ok(Some(place.subdirectory(upper, lower, base_shows)))
            }
            (Err(errno), _) | (_, Err(errno)) => Ok(self.leave_out(&place.path, Reason::Unreadable, Some(errno))),
        }
    }

    fn file(&mut self, place: Place<'_>) -> Result<Option<Subdirectory>> {
        let form = self.workspace.form;
        let opened = place.trees.side(UPPER).and_then(|upper| tree::file(upper, place.name));
        let looked = opened.and_then(|(file, status)| {
            Ok((form.is_file_whiteout(&file, &status)?, form.is_metadata_only(&file)?, file, status))
        });
        let (file, status) = match looked {
            Ok((true, ..)) => return self.deleted(place),
            Ok((_, true, ..)) => return Err(unsupported(&Raw(place.path.as_bytes().to_vec()), "metacopy")),
            Ok((_, _, file, status)) => (file, status),
            Err(errno) => return Ok(self.leave_out(&place.path, Reason::Unreadable, Some(errno))),
        };
        let (size, mode) = (tree::size(&status), tree::permissions(&status));
        if size > self.limits.file_bytes {
            return Ok(self.leave_out(&place.path, Reason::TooLarge, None));
        }
        if self.is_only_touched(&place, &file, &status) {
            return Ok(None);
        }
        let linked = self.linked(&place.path, &status);
        if linked.is_none() {
            if size > self.limits.total_bytes - self.copied {
                return Ok(self.leave_out(&place.path, Reason::OverTotal, None));
            }
            if tree::allocated(&status) > self.limits.disk_bytes - self.stored {
                return Ok(self.leave_out(&place.path, Reason::OverDisk, None));
            }
        }
        let Some((base, base_is_newer)) = self.base(&place) else {
            if linked.is_some() {
                self.store.remove(&place.path)?;
            }
            return Ok(None);
        };
        let (sha256, size) = match linked {
            Some(linked) => linked,
            None => match self.store.take(&place.path, &file, size, mode)? {
                Ok(stored) => {
                    self.count(&place.path, &status, stored);
                    stored
                }
                Err(cause) => {
                    let reason = if is_full(&cause) { Reason::OverDisk } else { Reason::Unreadable };
                    self.skip_because(Raw(place.path.as_bytes().to_vec()), reason, Some(cause.to_string()));
                    return Ok(None);
                }
            },
        };
        if status.st_mode & 0o6000 & !place.base.as_ref().map_or(0, |base| base.st_mode) != 0 {
            self.skip(Raw(place.path.as_bytes().to_vec()), Reason::SetIdBits, None);
        }
        let now = Some(Node::File { mode, size, sha256 });
        self.changes.entries.push(Entry { path: place.path.clone(), now, base, base_is_newer });
        self.below_deleted(place)
    }

    /// Links a further name of a stored file: 150 names of 100 MiB would be 15 GiB. `None` without a copy, or if the
    /// store's file system allows no further link.
    fn linked(&mut self, path: &TreePath, status: &Stat) -> Option<(Digest, u64)> {
        let first = self.links.get(&(status.st_dev, status.st_ino)).filter(|_| !is_off("changes-hard-links"))?;
        self.store.link(&first.path, path).ok()?;
        Some((first.sha256, first.size))
    }

    fn count(&mut self, path: &TreePath, status: &Stat, (sha256, size): (Digest, u64)) {
        self.copied = self.copied.saturating_add(size).min(self.limits.total_bytes);
        self.stored = self.stored.saturating_add(tree::allocated(status)).min(self.limits.disk_bytes);
        if status.st_nlink > 1 {
            self.links.insert((status.st_dev, status.st_ino), Copied { path: path.clone(), sha256, size });
        }
    }

    fn link(&mut self, place: Place<'_>) -> Result<Option<Subdirectory>> {
        let target = match place.trees.side(UPPER).and_then(|upper| tree::link_target(upper, place.name)) {
            Ok(target) => Raw(target),
            Err(errno) => return Ok(self.leave_out(&place.path, Reason::Unreadable, Some(errno))),
        };
        if !self.takes(&place.path, &target.0) {
            return Ok(None);
        }
        let Some((base, base_is_newer)) = self.base(&place) else { return Ok(None) };
        if base != Some(Base::Symlink { target: target.clone() }) {
            let now = Some(Node::Symlink { target });
            self.changes.entries.push(Entry { path: place.path.clone(), now, base, base_is_newer });
        }
        self.below_deleted(place)
    }

    fn deleted(&mut self, place: Place<'_>) -> Result<Option<Subdirectory>> {
        let Some((base, base_is_newer)) = self.base(&place) else { return Ok(None) };
        if base.is_some() {
            self.changes.entries.push(Entry { path: place.path.clone(), now: None, base, base_is_newer });
        }
        self.below_deleted(place)
    }

    fn below_deleted(&mut self, place: Place<'_>) -> Result<Option<Subdirectory>> {
        let lower = match (&place.base, place.trees.get(LOWER)) {
            (Some(base), Some(lower)) if tree::file_type(base) == FileType::Directory => lower,
            _ => return Ok(None),
        };
        if place.trees.is_deepest() {
            return Ok(self.too_deep(&place.path));
        }
        match tree::directory(lower, place.name) {
            Ok(lower) => Ok(Some(place.subdirectory(None, Some(lower), false))),
            Err(errno) => Ok(self.leave_out(&place.path, Reason::Unreadable, Some(errno))),
        }
    }

    /// `false` if the files cannot be compared.
    fn is_only_touched(&self, place: &Place<'_>, file: &File, status: &Stat) -> bool {
        let (Some(base), Some(lower)) = (&place.base, place.trees.get(LOWER)) else { return false };
        let may_be = tree::file_type(base) == FileType::RegularFile
            && base.st_size == status.st_size
            && tree::permissions(base) == tree::permissions(status);
        may_be
            && tree::file(lower, place.name)
                .is_ok_and(|(base, _)| copy::is_same(file, &base, tree::size(status)).unwrap_or(false))
    }

    /// `None` if the base cannot be read, which is noted.
    fn base(&mut self, place: &Place<'_>) -> Option<(Option<Base>, bool)> {
        let (Some(status), Some(lower)) = (&place.base, place.trees.get(LOWER)) else { return Some((None, false)) };
        match snapshot::read_base(lower, place.name, status, self.limits.file_bytes) {
            Ok(base) => {
                if let Base::Symlink { target } = &base
                    && !self.takes(&place.path, &target.0)
                {
                    return None;
                }
                let is_newer = self.workspace.started.is_some_and(|started| snapshot::is_newer(&base, status, started));
                Some((Some(base), is_newer))
            }
            Err(errno) => {
                self.skip(Raw(place.path.as_bytes().to_vec()), Reason::Unreadable, Some(errno));
                None
            }
        }
    }
}

/// For a mount option with an incomplete upper directory.
fn unsupported(path: &Raw, option: &str) -> Error {
    Error::new(
        Kind::Workspace,
        format!("the overlay was mounted with {option}=on, its files are not where their names are"),
    )
    .doing(format!("read {path:?} of the workspace"))
    .hint(format!("mount workspaces with {option}=off"))
}
