//! Copies a courier's checkout into the store, with permissions that brig chooses. A file is written twice, so all
//! processors copy. Files keep their times, by which git knows that they are the ones of its index.

use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Bounds, DIRECTORY, Names, Walk, WalkStep, open_directory};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, futimens, mkdirat, openat, openat2, readlinkat, statat, symlinkat,
    utimensat,
};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Entries for one thread.
const BATCH: usize = 64;
/// Each waiting batch keeps two directories open.
const WAITING: usize = 32;

/// Some entries of one directory, no directories among them.
struct Batch {
    source: OwnedFd,
    copy: OwnedFd,
    entries: Vec<(CString, FileType)>,
}

/// Refuses any other type: git makes only files, directories and symbolic links.
pub(super) fn copy(from: BorrowedFd<'_>, name: &Path, target: &Path) -> Result<()> {
    let step = || format!("copy a checkout to `{}`", target.display());
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let source = openat2(from, name, DIRECTORY, Mode::empty(), resolve).failing(Kind::Workspace, step)?;
    std::fs::create_dir(target).failing(Kind::Store, step)?;
    let copy = rustix::fs::open(target, DIRECTORY, Mode::empty()).failing(Kind::Store, step)?;
    let (batches, waiting) = sync_channel(WAITING);
    let (walk, waiting) = (Mutex::new(Some((source, copy, batches))), Mutex::new(waiting));
    // The first thread walks, and then copies as the others do.
    files::in_parallel(usize::MAX, || {
        if let Some((source, copy, batches)) = walk.lock().ok().and_then(|mut walk| walk.take()) {
            walk_tree(source, copy, &batches)?;
        }
        while let Some(batch) = next(&waiting) {
            batch.copy()?;
        }
        Ok(())
    })
}

/// `None` when no batch is left and the walk is over.
fn next(waiting: &Mutex<Receiver<Batch>>) -> Option<Batch> {
    waiting.lock().ok()?.recv().ok()
}

/// Makes the directories, and gives everything else to whichever thread is free.
fn walk_tree(source: OwnedFd, copy: OwnedFd, batches: &SyncSender<Batch>) -> Result<()> {
    let step = || "copy a checkout";
    let mut walk = Walk::<2, ()>::new(Bounds::NONE);
    let names = Names::of(&source).failing(Kind::Workspace, step)?;
    walk.enter([Some(source), Some(copy)], names, ()).failing(Kind::Workspace, step)?;
    let mut batch: Option<Batch> = None;
    while let Some(next) = walk.next().failing(Kind::Workspace, step)? {
        let WalkStep::Entry(kind) = next else {
            give_batch(batch.take(), batches)?;
            continue;
        };
        let sides = walk.side(0).and_then(|source| Ok((source, walk.side(1)?)));
        let (source, copy) = sides.failing(Kind::Internal, step)?;
        if kind == FileType::Directory {
            give_batch(batch.take(), batches)?;
            copy_entry(source, copy, walk.name(), kind)?;
            let inner = open_directory(source, walk.name()).failing(Kind::Workspace, step)?;
            let inner_copy = open_directory(copy, walk.name()).failing(Kind::Store, step)?;
            let names = Names::of(&inner).failing(Kind::Workspace, step)?;
            walk.enter([Some(inner), Some(inner_copy)], names, ()).failing(Kind::Workspace, step)?;
            continue;
        }
        let mut open = match batch.take() {
            Some(open) => open,
            None => Batch::of(source, copy).failing(Kind::Workspace, step)?,
        };
        open.entries.push((walk.name().to_owned(), kind));
        if open.entries.len() < BATCH {
            batch = Some(open);
        } else {
            give_batch(Some(open), batches)?;
        }
    }
    give_batch(batch, batches)
}

/// Copies it in this thread if enough batches wait.
fn give_batch(batch: Option<Batch>, batches: &SyncSender<Batch>) -> Result<()> {
    match batch.map(|batch| batches.try_send(batch)) {
        Some(Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch))) => batch.copy(),
        _ => Ok(()),
    }
}

impl Batch {
    fn of(source: BorrowedFd<'_>, copy: BorrowedFd<'_>) -> std::io::Result<Batch> {
        Ok(Batch { source: source.try_clone_to_owned()?, copy: copy.try_clone_to_owned()?, entries: Vec::new() })
    }

    fn copy(&self) -> Result<()> {
        let (source, copy) = (self.source.as_fd(), self.copy.as_fd());
        self.entries.iter().try_for_each(|(name, kind)| copy_entry(source, copy, name, *kind))
    }
}

fn copy_entry(source: BorrowedFd<'_>, target: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<()> {
    let step = || format!("copy `{}`", String::from_utf8_lossy(name.to_bytes()).escape_debug());
    let status = statat(source, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Workspace, step)?;
    // Set-id and sticky bits of a sandbox's user have no meaning outside.
    let mode = Mode::from_raw_mode(status.st_mode & 0o777 | 0o600);
    let times = files::times(&status);
    match kind {
        FileType::Directory => mkdirat(target, name, mode | Mode::RWXU).failing(Kind::Store, step),
        FileType::Symlink => {
            let to = readlinkat(source, name, Vec::new()).failing(Kind::Workspace, step)?;
            symlinkat(to.as_c_str(), target, name).failing(Kind::Store, step)?;
            utimensat(target, name, &times, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, step)
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let from = File::from(openat(source, name, flags, Mode::empty()).failing(Kind::Workspace, step)?);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = File::from(openat(target, name, flags, mode).failing(Kind::Store, step)?);
            files::copy_data(&from, &to, &status).failing(Kind::Store, step)?;
            futimens(&to, &times).failing(Kind::Store, step)
        }
        other => Err(Error::new(Kind::Workspace, format!("{other:?} is nothing that a repository has")).doing(step())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// More files than a batch has, and more directories than batches may wait.
    fn checkout(scratch: &Path) {
        for folder in 0..200 {
            let folder = scratch.join(format!("files/{folder}/inner"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("file"), folder.to_str().unwrap()).unwrap();
        }
        for number in 0..3 * BATCH {
            std::fs::write(scratch.join(format!("files/{number}.txt")), number.to_string()).unwrap();
        }
        symlink("../../etc/passwd", scratch.join("files/link")).unwrap();
        std::fs::set_permissions(scratch.join("files/1.txt"), PermissionsExt::from_mode(0o4755)).unwrap();
    }

    fn copied(scratch: &Path) -> Result<()> {
        let from = rustix::fs::open(scratch, DIRECTORY, Mode::empty()).unwrap();
        copy(from.as_fd(), Path::new("files"), &scratch.join("copy"))
    }

    #[test]
    fn a_copy_has_each_file_link_time_and_mode_but_no_set_id_bit() {
        let scratch = tempfile::tempdir().unwrap();
        checkout(scratch.path());
        copied(scratch.path()).unwrap();
        let listed = |top: &str| {
            let list = r#"cd "$0" && find . -printf '%P %y %l\n' | sort && find . -type f -exec sha256sum {} + | sort"#;
            let ran =
                std::process::Command::new("sh").args(["-c", list]).arg(scratch.path().join(top)).output().unwrap();
            assert!(ran.status.success());
            String::from_utf8(ran.stdout).unwrap()
        };
        assert_eq!(listed("files"), listed("copy"));
        assert!(listed("copy").lines().count() > 2 * 3 * BATCH);
        let mode = std::fs::metadata(scratch.path().join("copy/1.txt")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        for name in ["1.txt", "link", "7/inner/file"] {
            let modified =
                |top: &str| scratch.path().join(top).join(name).symlink_metadata().unwrap().modified().unwrap();
            assert_eq!(modified("files"), modified("copy"), "{name}");
        }
    }

    #[test]
    fn a_file_of_another_type_is_refused_with_its_name() {
        let scratch = tempfile::tempdir().unwrap();
        checkout(scratch.path());
        let _socket = std::os::unix::net::UnixListener::bind(scratch.path().join("files/7/inner/socket")).unwrap();
        let error = copied(scratch.path()).unwrap_err().to_string();
        assert!(error.contains("copy `socket`") && error.contains("nothing that a repository has"), "{error}");
    }
}
