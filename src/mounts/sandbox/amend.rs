//! Files that a sandbox has instead of the root's: changed in place, copied or in memory.

use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::files;
use crate::mounts::cover::existing;
use crate::mounts::mount::{attach, clone_tree, restrict, tmpfs};
use crate::mounts::resolve;
use crate::mounts::write::{file, own};
use crate::spec::root::{Attributes, Change, Hidden, Ids};
use crate::sys::mount as bits;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Owner and mode stay; `mode` and `owner` are for a new file.
pub(super) fn amend(
    root: BorrowedFd<'_>,
    at: &Path,
    change: &Change,
    missing: Option<&[u8]>,
    mode: u32,
    owner: Ids,
) -> Result<()> {
    let step = || format!("change `{}` in the root", at.display());
    let (Change::Append(content) | Change::Replace(content)) = change;
    let make = |before: &[u8]| file(root, at, &[before, content].concat(), mode, owner);
    let Some(found) = existing(root, at)? else { return missing.map_or(Ok(()), make) };
    let status = rustix::fs::fstat(found.as_fd()).failing(Kind::Mount, step)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        let error = Error::new(Kind::Mount, format!("`{}` of the root is not a file", at.display()));
        return Err(error.hint("the root file system must have a file of certificates there, or nothing"));
    }
    if status.st_size == 0 {
        return missing.map_or(Ok(()), make);
    }
    let how = if matches!(change, Change::Replace(_)) { OFlags::TRUNC } else { OFlags::APPEND };
    // No process inside runs yet that could replace the file.
    let opened = resolve::open_as(root, at, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | how)?;
    let mut opened = std::fs::File::from(opened);
    if matches!(change, Change::Append(_)) {
        let mut last = [0_u8; 1];
        opened.read_exact_at(&mut last, status.st_size as u64 - 1).failing(Kind::Mount, step)?;
        if last != *b"\n" {
            opened.write_all(b"\n").failing(Kind::Mount, step)?;
        }
    }
    opened.write_all(content).failing(Kind::Mount, step)
}

const COPY_NAME: &str = "file";

/// A copy of one host file on the scratch file system, as copy-on-write is for a folder. No process of the sandbox
/// reaches `directory`. The copy keeps the file's permissions.
pub(super) fn copy_file(from: &Path, directory: BorrowedFd<'_>, owner: Ids) -> Result<OwnedFd> {
    let step = || format!("copy `{}`", from.display());
    let source = openat(CWD, from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Mount, step)?;
    let status = fstat(&source).failing(Kind::Mount, step)?;
    match unlinkat(directory, COPY_NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, step),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let copy = openat(directory, COPY_NAME, flags, Mode::RUSR | Mode::WUSR).failing(Kind::Mount, step)?;
    let copy = File::from(copy);
    files::copy_data(&File::from(source), &copy, &status).failing(Kind::Mount, step).map_err(|error| {
        match error.errno() {
            Some(libc::ENOSPC) => error.hint("it counts against the task's disk: raise --disk"),
            _ => error,
        }
    })?;
    own(copy.as_fd(), "", owner)?;
    fchmod(&copy, Mode::from_raw_mode(status.st_mode & 0o777)).failing(Kind::Mount, step)?;
    Ok(copy.into())
}

/// Room for values that longer ones replace.
const ROOM: u64 = 1 << 20;
/// A new file is beside the old one for a moment; one is the directory itself.
const MORE_INODES: u64 = 16;
/// No program runs there, and this view is read-only.
const SHOWN: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::NOEXEC | bits::RDONLY);

/// Secrets as files in memory, read-only inside, and writable for the supervisor outside. Returns the directory,
/// writable.
pub(super) fn mount_secrets(
    stage: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    at: &Path,
    files: &[(String, Hidden)],
    user: Ids,
) -> Result<OwnedFd> {
    let step = || "make the files of the secrets";
    let bytes = files.iter().map(|(_, value)| value.0.len() as u64 * 2).sum::<u64>() + ROOM;
    let writable = tmpfs(bytes, files.len() as u64 * 2 + MORE_INODES, 0o700, user, Attributes::KERNEL)?;
    // Before Linux 6.15 only an attached tree can be copied, so it gets a name on the stage, which is invisible inside.
    let place = resolve::directory(stage, Path::new("/secrets"), 0o700)?.0;
    attach(&writable, place.as_fd()).doing(step)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(&writable, ".", flags, Mode::empty()).failing(Kind::Mount, step)?;
    for (name, value) in files {
        let file = openat(&directory, name.as_str(), resolve::NEW_FILE, Mode::from_raw_mode(0o400))
            .failing(Kind::Mount, step)?;
        own(file.as_fd(), "", user)?;
        std::fs::File::from(file).write_all(&value.0).failing(Kind::Mount, step)?;
    }
    let shown = clone_tree(stage, Path::new("secrets"))?;
    restrict(&shown, SHOWN)?;
    attach(&shown, resolve::directory(root, at, 0o755)?.0.as_fd()).doing(step)?;
    Ok(directory)
}
