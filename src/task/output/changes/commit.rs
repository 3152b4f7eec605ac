//! The writing half of applying: stages all content, moves it into place, and undoes all steps after a failure.
//!
//! All new content is in one directory of the target before the first visible change: a full disk or a bad copy fails
//! early. That directory keeps replaced files until the end, so that every step can be undone. After a crash it has the
//! old files and a list of their paths.

use super::applied::STAGING;
use super::check::{FileStamp, Plan, PlannedWrite, Removal};
use super::copy::{self, Digest, Failure};
use super::path::TreePath;
use super::record::Node;
use super::store::Store;
use super::tree::{self, name_path};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::Names;
use crate::sandbox::Signals;
use nix::sys::signal::SigSet;
use rustix::fs::{
    AtFlags, Mode, RenameFlags, fchmod, fchown, fstat, linkat, mkdirat, renameat_with, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const LIST: &str = "list";

enum Undo<'a> {
    /// Moved into the staging directory.
    Restore { staged: String, path: &'a TreePath },
    /// Exchanged with a staged file.
    Exchange { staged: String, path: &'a TreePath },
    /// Moved out of the staging directory.
    Withdraw { staged: String, path: &'a TreePath },
    /// A removed empty directory.
    Remake { path: &'a TreePath, mode: u32, owner: (u32, u32) },
    /// A new directory.
    Unmake { path: &'a TreePath },
    /// A directory with a changed mode.
    Mode { path: &'a TreePath, mode: u32 },
}

/// Carries out the plan, or leaves the target as it was, also after a signal.
pub(super) fn commit<'a>(plan: &Plan<'a>, store: &Store, target: BorrowedFd<'_>) -> Result<()> {
    let step = || "watch for signals";
    let mask = SigSet::thread_get_mask().failing(Kind::Internal, step)?;
    let done = Signals::take().and_then(|signals| commit_watched(plan, store, target, &signals));
    mask.thread_set_mask().failing(Kind::Internal, step)?;
    done
}

fn commit_watched<'a>(plan: &Plan<'a>, store: &Store, target: BorrowedFd<'_>, signals: &Signals) -> Result<()> {
    let root = fstat(target).failing(Kind::Workspace, || "read the owner of the target")?;
    let step = || format!("make `{STAGING}` in the target");
    match mkdirat(target, STAGING, Mode::RWXU) {
        Err(Errno::EXIST) => {
            return Err(Error::new(Kind::Exists, "another apply is running, or one was killed half-way")
                .doing(step())
                .hint(format!("if none runs, put back what `{STAGING}/{LIST}` lists, then remove that directory")));
        }
        made => made.failing(Kind::Workspace, step)?,
    }
    let opened = tree::directory(target, STAGING.as_bytes()).failing(Kind::Workspace, step).and_then(|staging| {
        let list = tree::create(staging.as_fd(), LIST.as_bytes(), 0o600).failing(Kind::Disk, || "make the list")?;
        Ok((staging, list))
    });
    let outcome = opened.and_then(|(staging, list)| {
        let owner = (root.st_uid, root.st_gid);
        let mut work = Work { target, staging, signals, undo: Vec::new(), list, links: HashMap::new(), owner };
        let done = work.stage(plan, store).and_then(|()| work.carry_out(plan));
        done.map_err(|error| work.take_back(error)).and_then(|()| work.clear())
    });
    outcome.inspect_err(|_| {
        // Not empty only if an undo failed; then its error names the directory, which must stay.
        let _ = unlinkat(target, STAGING, AtFlags::REMOVEDIR);
    })
}

struct Work<'a, 'b> {
    target: BorrowedFd<'b>,
    staging: OwnedFd,
    signals: &'b Signals,
    undo: Vec<Undo<'a>>,
    /// The open file [`LIST`].
    list: File,
    /// The staged name of each copy with several names.
    links: HashMap<Linked, String>,
    /// As root, the target's owner owns new files.
    owner: (u32, u32),
}

/// Device and inode of the copy, its recorded content, mode and owner.
type Linked = ((u64, u64), (Digest, u64), u32, (u32, u32));

fn new_name(index: usize) -> String {
    format!("new-{index}")
}

fn old_name(index: usize) -> String {
    format!("old-{index}")
}

impl<'a> Work<'a, '_> {
    /// Also lists the files to be removed.
    fn stage(&mut self, plan: &Plan<'a>, store: &Store) -> Result<()> {
        for (index, put) in plan.contents.iter().enumerate() {
            self.check_signals()?;
            self.stage_one(&new_name(index), put, store).doing(|| format!("write `{}`", put.path))?;
        }
        for (index, removal) in plan.removals.iter().enumerate() {
            self.add_to_list(&old_name(index), "was", removal.path)?;
        }
        if plan.contents.is_empty() {
            return Ok(());
        }
        // After a power cut a name must not lead to an empty file, whose old content is gone.
        syncfs(&self.staging).failing(Kind::Disk, || "write the new files out")
    }

    fn check_signals(&self) -> Result<()> {
        match self.signals.wants_end() {
            true => Err(Error::new(Kind::State, "a signal ended it").hint("run the same command again")),
            false => Ok(()),
        }
    }

    fn add_to_list(&mut self, staged: &str, word: &str, path: &TreePath) -> Result<()> {
        self.list.write_all(format!("{staged} {word} {path}\n").as_bytes()).failing(Kind::Disk, || "write the list")
    }

    fn stage_one(&mut self, name: &str, put: &PlannedWrite<'_>, store: &Store) -> Result<()> {
        let owner = put.replaces.map_or(self.owner, |seen| seen.owner);
        if let Some(merged) = &put.merged {
            let mut to =
                tree::create(self.staging.as_fd(), name.as_bytes(), 0o600).failing(Kind::Disk, || "make the file")?;
            to.write_all(&merged.bytes).failing(Kind::Disk, || "write the merged file")?;
            set_owner(&to, owner).failing(Kind::Workspace, || "set the owner")?;
            return fchmod(&to, Mode::from_raw_mode(merged.mode & 0o777)).failing(Kind::Workspace, || "set the mode");
        }
        match put.node {
            Node::File { mode, size, sha256 } => {
                let mode = &put.mode.unwrap_or(*mode);
                let from = store.file(put.path).failing(Kind::Store, || "open the copy")?;
                let status = fstat(&from).failing(Kind::Store, || "read the copy")?;
                let linked = ((status.st_dev, status.st_ino), (*sha256, *size), *mode, owner);
                // Link a further name of a staged file, as the agent had it.
                if let Some(first) = self.links.get(&linked)
                    && linkat(&self.staging, first.as_str(), &self.staging, name, AtFlags::empty()).is_ok()
                {
                    return Ok(());
                }
                let to = tree::create(self.staging.as_fd(), name.as_bytes(), 0o600)
                    .failing(Kind::Disk, || "make the file")?;
                let copied = copy::copy(&from, *size, &to).map_err(|failure| match failure {
                    Failure::Read(cause) => Error::os(Kind::Store, cause).doing("read the copy"),
                    Failure::Write(cause) => Error::os(Kind::Disk, cause),
                })?;
                if copied != (*sha256, *size) {
                    return Err(Error::new(Kind::Store, "the copy differs from the record"));
                }
                set_owner(&to, owner).failing(Kind::Workspace, || "set the owner")?;
                fchmod(&to, Mode::from_raw_mode(mode & 0o777)).failing(Kind::Workspace, || "set the mode")?;
                if status.st_nlink > 1 {
                    self.links.insert(linked, name.to_owned());
                }
                Ok(())
            }
            Node::Symlink { target } => {
                symlinkat(name_path(&target.0), &self.staging, name).failing(Kind::Workspace, || "make the link")?;
                if !rustix::process::geteuid().is_root() {
                    return Ok(());
                }
                let (uid, gid) = (Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
                rustix::fs::chownat(&self.staging, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                    .failing(Kind::Workspace, || "set the owner")
            }
            Node::Directory { .. } => Err(Error::new(Kind::Internal, "a directory has no content")),
        }
    }

    fn carry_out(&mut self, plan: &Plan<'a>) -> Result<()> {
        for (index, removal) in plan.removals.iter().enumerate() {
            self.check_signals()?;
            self.remove(&old_name(index), removal).doing(|| format!("remove `{}`", removal.path))?;
        }
        for (path, mode) in &plan.directories {
            self.make(path, *mode).doing(|| format!("make the directory `{path}`"))?;
        }
        for (index, put) in plan.contents.iter().enumerate() {
            self.check_signals()?;
            self.put(new_name(index), put).doing(|| format!("put `{}` in place", put.path))?;
        }
        for (path, mode) in &plan.modes {
            self.set_mode(path, *mode).doing(|| format!("set the mode of `{path}`"))?;
        }
        Ok(())
    }

    fn parent(&self, path: &TreePath) -> Result<OwnedFd> {
        tree::parent(self.target, path).failing(Kind::State, || "open the directory that holds it")
    }

    fn remove(&mut self, old: &str, removal: &Removal<'a>) -> Result<()> {
        let path = removal.path;
        let parent = self.parent(path)?;
        let Some(seen) = removal.seen else {
            let status = tree::status(parent.as_fd(), path.name()).failing(Kind::Workspace, || "read its mode")?;
            unlinkat(&parent, name_path(path.name()), AtFlags::REMOVEDIR)
                .failing(Kind::State, || "remove the directory")?;
            if let Some(status) = status {
                let owner = (status.st_uid, status.st_gid);
                self.undo.push(Undo::Remake { path, mode: tree::permissions(&status), owner });
            }
            return Ok(());
        };
        move_to(parent.as_fd(), path.name(), self.staging.as_fd(), old.as_bytes())
            .failing(Kind::State, || "move it away")?;
        self.undo.push(Undo::Restore { staged: old.to_owned(), path });
        self.is_as_seen(old, seen)
    }

    fn make(&mut self, path: &'a TreePath, mode: u32) -> Result<()> {
        let parent = self.parent(path)?;
        // Writable until its content is in it; the recorded mode is set last.
        mkdirat(&parent, name_path(path.name()), Mode::from_raw_mode(mode & 0o777 | 0o700))
            .failing(Kind::State, || "make it")?;
        self.undo.push(Undo::Unmake { path });
        let made = tree::directory(parent.as_fd(), path.name()).failing(Kind::State, || "open it")?;
        set_owner(&made, self.owner).failing(Kind::Workspace, || "set the owner")
    }

    fn put(&mut self, new: String, put: &PlannedWrite<'a>) -> Result<()> {
        let path = put.path;
        let parent = self.parent(path)?;
        let Some(seen) = put.replaces else {
            move_to(self.staging.as_fd(), new.as_bytes(), parent.as_fd(), path.name())
                .failing(Kind::State, || "move it there")?;
            self.undo.push(Undo::Withdraw { staged: new, path });
            return Ok(());
        };
        // Until the second line it can be either file.
        self.add_to_list(&new, "is exchanged with", path)?;
        match renameat_with(&self.staging, &new, &parent, name_path(path.name()), RenameFlags::EXCHANGE) {
            Ok(()) => {
                self.undo.push(Undo::Exchange { staged: new.clone(), path });
                self.add_to_list(&new, "was", path)?;
                self.is_as_seen(&new, seen)
            }
            // Without RENAME_EXCHANGE: two steps, and for a moment the file is missing.
            Err(Errno::INVAL) => {
                let old = format!("{new}-old");
                move_to(parent.as_fd(), path.name(), self.staging.as_fd(), old.as_bytes())
                    .failing(Kind::State, || "move it away")?;
                self.undo.push(Undo::Restore { staged: old.clone(), path });
                self.add_to_list(&old, "was", path)?;
                self.is_as_seen(&old, seen)?;
                move_to(self.staging.as_fd(), new.as_bytes(), parent.as_fd(), path.name())
                    .failing(Kind::State, || "move it there")?;
                self.undo.push(Undo::Withdraw { staged: new, path });
                Ok(())
            }
            Err(errno) => Err(errno).failing(Kind::State, || "exchange it"),
        }
    }

    /// The replaced file must be the checked one: a concurrent edit is not lost.
    fn is_as_seen(&self, staged: &str, seen: FileStamp) -> Result<()> {
        let status =
            tree::status(self.staging.as_fd(), staged.as_bytes()).failing(Kind::Workspace, || "read what was there")?;
        if status.map(|status| FileStamp::of(&status)) == Some(seen) {
            return Ok(());
        }
        Err(Error::new(Kind::State, "it was changed at this moment")
            .hint("apply again when nothing else writes to the tree"))
    }

    fn set_mode(&mut self, path: &'a TreePath, mode: u32) -> Result<()> {
        let directory = tree::directory(self.target, path.as_bytes()).failing(Kind::State, || "open it")?;
        let before = rustix::fs::fstat(&directory).failing(Kind::Workspace, || "read it")?;
        fchmod(&directory, Mode::from_raw_mode(mode & 0o777)).failing(Kind::Workspace, || "set it")?;
        self.undo.push(Undo::Mode { path, mode: tree::permissions(&before) });
        Ok(())
    }

    /// Undoes all steps, last first, and adds failures to the error.
    fn take_back(&mut self, error: Error) -> Error {
        let mut failed = Vec::new();
        while let Some(undo) = self.undo.pop() {
            if let Err((path, errno)) = self.take_back_one(&undo) {
                failed.push(format!("`{path}` ({})", std::io::Error::from(errno)));
            }
        }
        if failed.is_empty() {
            return match self.clear() {
                Ok(()) => error,
                Err(second) => error.doing(format!("the tree is as before, but {second}")),
            };
        }
        error.doing(format!("these could not be put back, what they were is in `{STAGING}`: {}", failed.join(", ")))
    }

    fn take_back_one(&self, undo: &Undo<'a>) -> std::result::Result<(), (&'a TreePath, Errno)> {
        let staging = self.staging.as_fd();
        let in_parent = |path: &'a TreePath, act: &dyn Fn(BorrowedFd<'_>, &[u8]) -> rustix::io::Result<()>| {
            let parent = tree::parent(self.target, path);
            parent.and_then(|parent| act(parent.as_fd(), path.name())).map_err(|errno| (path, errno))
        };
        match undo {
            Undo::Restore { staged, path } => {
                in_parent(path, &|parent, name| move_to(staging, staged.as_bytes(), parent, name))
            }
            Undo::Withdraw { staged, path } => {
                in_parent(path, &|parent, name| move_to(parent, name, staging, staged.as_bytes()))
            }
            Undo::Exchange { staged, path } => in_parent(path, &|parent, name| {
                renameat_with(staging, staged.as_str(), parent, name_path(name), RenameFlags::EXCHANGE)
            }),
            Undo::Unmake { path } => {
                in_parent(path, &|parent, name| unlinkat(parent, name_path(name), AtFlags::REMOVEDIR))
            }
            Undo::Remake { path, mode, owner } => in_parent(path, &|parent, name| {
                mkdirat(parent, name_path(name), Mode::RWXU)?;
                let made = tree::directory(parent, name)?;
                set_owner(&made, *owner)?;
                fchmod(&made, Mode::from_raw_mode(*mode))
            }),
            Undo::Mode { path, mode } => {
                in_parent(path, &|parent, name| fchmod(tree::directory(parent, name)?, Mode::from_raw_mode(*mode)))
            }
        }
    }

    fn clear(&self) -> Result<()> {
        let step = || format!("remove `{STAGING}`");
        let names = Names::of(&self.staging).failing(Kind::Workspace, step)?;
        for (name, _) in names.iter() {
            unlinkat(&self.staging, name, AtFlags::empty()).failing(Kind::Workspace, step)?;
        }
        unlinkat(self.target, STAGING, AtFlags::REMOVEDIR).failing(Kind::Workspace, step)
    }
}

/// Root's files would be a burden in a user's project.
fn set_owner(descriptor: impl AsFd, owner: (u32, u32)) -> std::result::Result<(), Errno> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    fchown(descriptor, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))
}

/// rename(2) that never replaces.
fn move_to(from: BorrowedFd<'_>, name: &[u8], to: BorrowedFd<'_>, new_name: &[u8]) -> std::result::Result<(), Errno> {
    match renameat_with(from, name_path(name), to, name_path(new_name), RenameFlags::NOREPLACE) {
        // Some network file systems lack this flag: check first.
        Err(Errno::INVAL) if tree::status(to, new_name)?.is_none() => {
            renameat_with(from, name_path(name), to, name_path(new_name), RenameFlags::empty())
        }
        Err(Errno::INVAL) => Err(Errno::EXIST),
        other => other,
    }
}
