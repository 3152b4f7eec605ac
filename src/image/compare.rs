//! Whether two trees of layers are the same in everything that an image can say, and in what they hide of the layers below.

use super::copy;
use super::layer::open_child;
use super::tree::names;
use crate::error::{Context, Kind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

/// The first difference, in words; `None` if there is none. The directories themselves are compared as what is in them is.
pub(crate) fn difference(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &str) -> Result<Option<String>> {
    let look = |directory| fstat(directory).failing(Kind::Store, || path.to_owned());
    // What is in them first: a name that came or went says more than the time that it left.
    if let Some(found) = inside(one, other, path)? {
        return Ok(Some(found));
    }
    Ok(metadata(&look(one)?, &look(other)?).map(|what| format!("`{path}` has another {what}")))
}

/// What differs of two files of one name, apart from their content.
fn metadata(one: &Stat, other: &Stat) -> Option<&'static str> {
    let same = [
        ("type or mode", one.st_mode == other.st_mode),
        ("owner", (one.st_uid, one.st_gid) == (other.st_uid, other.st_gid)),
        ("time", (one.st_mtime, one.st_mtime_nsec) == (other.st_mtime, other.st_mtime_nsec)),
        ("device number", one.st_rdev == other.st_rdev),
        ("links", one.st_mode & 0o170_000 == 0o040_000 || one.st_nlink == other.st_nlink),
    ];
    same.iter().find(|(_, same)| !same).map(|(what, _)| *what)
}

/// All attributes of a file or directory, those of overlayfs too.
fn all_attributes(file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = copy::listed(file)?;
    all.extend(copy::marks(file)?);
    Ok(all)
}

fn inside(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &str) -> Result<Option<String>> {
    let listed =
        |directory| -> Result<BTreeSet<Vec<u8>>> { Ok(names(directory)?.into_iter().map(|(name, _)| name).collect()) };
    let (left, right) = (listed(one)?, listed(other)?);
    let shown = |name: &[u8]| format!("{path}{}", String::from_utf8_lossy(name).escape_debug());
    if let Some(name) = left.symmetric_difference(&right).next() {
        let what = if left.contains(name) { "does not belong there" } else { "is missing" };
        return Ok(Some(format!("`{}` {what}", shown(name))));
    }
    if all_attributes(one)? != all_attributes(other)? {
        return Ok(Some(format!("`{path}` has other attributes")));
    }
    for name in &left {
        let look = |directory| {
            statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, || shown(name))
        };
        let (a, b) = (look(one)?, look(other)?);
        if let Some(what) = metadata(&a, &b) {
            return Ok(Some(format!("`{}` has another {what}", shown(name))));
        }
        let found = match FileType::from_raw_mode(a.st_mode) {
            FileType::Directory => {
                let open = |directory| open_child(directory, name).failing(Kind::Store, || shown(name));
                inside(open(one)?.as_fd(), open(other)?.as_fd(), &format!("{}/", shown(name)))?
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
                let attributes = all_attributes(one.as_fd())? != all_attributes(other.as_fd())?;
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
