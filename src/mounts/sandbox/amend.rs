//! Changes files in place: a certificate bundle often is a link to another file.

use crate::error::{Context, Error, Kind, Result};
use crate::mounts::cover::existing;
use crate::mounts::resolve;
use crate::mounts::write::file;
use crate::spec::root::Change;
use crate::spec::root::Ids;
use rustix::fs::{FileType, OFlags};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
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
