//! Compares two layer trees, including the names that they hide in layers below.

use super::copy;
use super::form::open_child;
use crate::error::{Context, Kind, Result};
use crate::files::{Bounds, Names, Walk, WalkStep, open_directory};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The first difference in words.
pub(crate) fn difference(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &str) -> Result<Option<String>> {
    let look = |directory| fstat(directory).failing(Kind::Store, || path.to_owned());
    // An added or removed name explains more than the directory's time.
    if let Some(found) = inside(one, other, path)? {
        return Ok(Some(found));
    }
    Ok(metadata(&look(one)?, &look(other)?).map(|what| format!("`{path}` has another {what}")))
}

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

fn all_attributes(file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = copy::listed(file)?;
    all.extend(copy::marks(file)?);
    Ok(all)
}

/// The state is the directory's path, with a slash at the end.
type Trees = Walk<2, String>;

fn inside(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &str) -> Result<Option<String>> {
    let step = || "compare two trees";
    let open = |directory| open_child(directory, b".").failing(Kind::Store, step);
    let mut trees = Trees::new(Bounds::NONE);
    if let Some(found) = enter(&mut trees, open(one)?, open(other)?, path.to_owned())? {
        return Ok(Some(found));
    }
    while let Some(next) = trees.next().failing(Kind::Store, step)? {
        let (WalkStep::Entry(_), Some(path)) = (next, trees.state()) else { continue };
        let (one, other) = trees.side(0).and_then(|one| Ok((one, trees.side(1)?))).failing(Kind::Internal, step)?;
        let name = trees.name();
        let shown = || format!("{path}{}", String::from_utf8_lossy(name.to_bytes()).escape_debug());
        let look = |directory| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Store, shown);
        let (a, b) = (look(one)?, look(other)?);
        if let Some(what) = metadata(&a, &b) {
            return Ok(Some(format!("`{}` has another {what}", shown())));
        }
        let found = match FileType::from_raw_mode(a.st_mode) {
            FileType::Directory => {
                let open = |directory| open_directory(directory, name).failing(Kind::Store, shown);
                let (one, other, path) = (open(one)?, open(other)?, format!("{}/", shown()));
                enter(&mut trees, one, other, path)?
            }
            FileType::Symlink => {
                let read = |directory| readlinkat(directory, name, Vec::new()).failing(Kind::Store, shown);
                (read(one)? != read(other)?).then(|| format!("`{}` leads elsewhere", shown()))
            }
            FileType::RegularFile => {
                let open = |directory| -> Result<File> {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    openat(directory, name, flags, Mode::empty()).failing(Kind::Store, shown).map(File::from)
                };
                let (one, other) = (open(one)?, open(other)?);
                let attributes = all_attributes(one.as_fd())? != all_attributes(other.as_fd())?;
                let content = a.st_size != b.st_size || !same_content(one, other)?;
                (attributes || content).then(|| format!("`{}` has other content or attributes", shown()))
            }
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn enter(trees: &mut Trees, one: OwnedFd, other: OwnedFd, path: String) -> Result<Option<String>> {
    let listed = |directory| -> Result<Names> {
        let mut names = Names::of(directory).failing(Kind::Store, || "list a directory")?;
        names.sort();
        Ok(names)
    };
    let (left, right) = (listed(&one)?, listed(&other)?);
    if let Some((name, is_left)) = first_difference(&left, &right) {
        let what = if is_left { "does not belong there" } else { "is missing" };
        return Ok(Some(format!("`{path}{}` {what}", String::from_utf8_lossy(name).escape_debug())));
    }
    if all_attributes(one.as_fd())? != all_attributes(other.as_fd())? {
        return Ok(Some(format!("`{path}` has other attributes")));
    }
    trees.enter([Some(one), Some(other)], left, path).failing(Kind::Store, || "compare two trees")?;
    Ok(None)
}

/// The first name that only one sorted list has, and whether it is the left list.
fn first_difference<'a>(left: &'a Names, right: &'a Names) -> Option<(&'a [u8], bool)> {
    let (mut left, mut right) = (left.iter(), right.iter());
    loop {
        let names = (left.next().map(|(name, _)| name.to_bytes()), right.next().map(|(name, _)| name.to_bytes()));
        match names {
            (None, None) => return None,
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => return Some((one.min(other), one < other)),
            (Some(one), None) => return Some((one, true)),
            (None, Some(other)) => return Some((other, false)),
        }
    }
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
