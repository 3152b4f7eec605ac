//! Whether two trees are the same in everything that an image can say.

use super::copy;
use super::layer::open_child;
use super::tree::names;
use crate::error::{Context, Kind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, readlinkat, statat};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

/// The first difference, in words; `None` if there is none.
pub(crate) fn difference(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &str) -> Result<Option<String>> {
    let listed =
        |directory| -> Result<BTreeSet<Vec<u8>>> { Ok(names(directory)?.into_iter().map(|(name, _)| name).collect()) };
    let (left, right) = (listed(one)?, listed(other)?);
    let shown = |name: &[u8]| format!("{path}{}", String::from_utf8_lossy(name).escape_debug());
    if let Some(name) = left.symmetric_difference(&right).next() {
        let what = if left.contains(name) { "does not belong there" } else { "is missing" };
        return Ok(Some(format!("`{}` {what}", shown(name))));
    }
    if copy::listed(one)? != copy::listed(other)? {
        return Ok(Some(format!("`{path}` has other attributes")));
    }
    for name in &left {
        let look = |directory| {
            statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, || shown(name))
        };
        let (a, b) = (look(one)?, look(other)?);
        let same = [
            ("type or mode", a.st_mode == b.st_mode),
            ("owner", (a.st_uid, a.st_gid) == (b.st_uid, b.st_gid)),
            ("time", (a.st_mtime, a.st_mtime_nsec) == (b.st_mtime, b.st_mtime_nsec)),
            ("device number", a.st_rdev == b.st_rdev),
            ("links", a.st_mode & 0o170_000 == 0o040_000 || a.st_nlink == b.st_nlink),
        ];
        if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
            return Ok(Some(format!("`{}` has another {what}", shown(name))));
        }
        let found = match FileType::from_raw_mode(a.st_mode) {
            FileType::Directory => {
                let open = |directory| open_child(directory, name).failing(Kind::Store, || shown(name));
                difference(open(one)?.as_fd(), open(other)?.as_fd(), &format!("{}/", shown(name)))?
            }
            FileType::Symlink => {
                let read =
                    |directory| readlinkat(directory, name.as_slice(), Vec::new()).failing(Kind::Store, || shown(name));
                (read(one)? != read(other)?).then(|| format!("`{}` leads elsewhere", shown(name)))
            }
            FileType::RegularFile => {
                let open = |directory| -> Result<File> {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    Ok(File::from(
                        openat(directory, name.as_slice(), flags, Mode::empty())
                            .failing(Kind::Store, || shown(name))?,
                    ))
                };
                let (one, other) = (open(one)?, open(other)?);
                let attributes = copy::listed(one.as_fd())? != copy::listed(other.as_fd())?;
                let content = a.st_size != b.st_size || !same_content(one, other)?;
                (attributes || content).then(|| format!("`{}` has other content or attributes", shown(name)))
            }
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn same_content(mut one: File, mut other: File) -> Result<bool> {
    let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let failed = |cause| crate::files::failed(cause, "read a layer's file".into());
    loop {
        let count = one.read(&mut left).map_err(failed)?;
        if count == 0 {
            return Ok(other.read(&mut right).map_err(failed)? == 0);
        }
        match other.read_exact(&mut right[..count]) {
            Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other.map_err(failed)?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}
