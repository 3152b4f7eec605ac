//! A copy of one host file on the scratch file system, as copy-on-write is for a folder.

use crate::error::{Context, Kind, Result};
use crate::files;
use crate::mounts::write::own;
use crate::spec::root::Ids;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstat, openat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const NAME: &str = "file";

/// No process of the sandbox reaches `directory`. The copy keeps the file's permissions.
pub(super) fn make(from: &Path, directory: BorrowedFd<'_>, owner: Ids) -> Result<OwnedFd> {
    let step = || format!("copy `{}`", from.display());
    let source = openat(CWD, from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Mount, step)?;
    let status = fstat(&source).failing(Kind::Mount, step)?;
    match unlinkat(directory, NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, step),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let copy = openat(directory, NAME, flags, Mode::RUSR | Mode::WUSR).failing(Kind::Mount, step)?;
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
