//! Copies a sandbox's checkout into the store, with permissions that brig chooses.

use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Bounds, DIRECTORY, Names, Walk, WalkStep, open_directory};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat, statat, symlinkat,
};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Refuses any other type: git makes only files, directories and symbolic links.
pub(crate) fn copy(from: BorrowedFd<'_>, name: &Path, target: &Path) -> Result<()> {
    let step = || format!("copy a checkout to `{}`", target.display());
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let source = openat2(from, name, DIRECTORY, Mode::empty(), resolve).failing(Kind::Workspace, step)?;
    std::fs::create_dir(target).failing(Kind::Store, step)?;
    let copy = rustix::fs::open(target, DIRECTORY, Mode::empty()).failing(Kind::Store, step)?;
    let mut walk = Walk::<2, ()>::new(Bounds::NONE);
    let names = Names::of(&source).failing(Kind::Workspace, step)?;
    walk.enter([Some(source), Some(copy)], names, ()).failing(Kind::Workspace, step)?;
    while let Some(next) = walk.next().failing(Kind::Workspace, step)? {
        let WalkStep::Entry(kind) = next else { continue };
        let sides = walk.side(0).and_then(|source| Ok((source, walk.side(1)?)));
        let (source, copy) = sides.failing(Kind::Internal, step)?;
        copy_entry(source, copy, walk.name(), kind)?;
        if kind == FileType::Directory {
            let inner = open_directory(source, walk.name()).failing(Kind::Workspace, step)?;
            let inner_copy = open_directory(copy, walk.name()).failing(Kind::Store, step)?;
            let names = Names::of(&inner).failing(Kind::Workspace, step)?;
            walk.enter([Some(inner), Some(inner_copy)], names, ()).failing(Kind::Workspace, step)?;
        }
    }
    Ok(())
}

fn copy_entry(source: BorrowedFd<'_>, target: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<()> {
    let step = || format!("copy `{}`", String::from_utf8_lossy(name.to_bytes()).escape_debug());
    let status = statat(source, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Workspace, step)?;
    // Set-id and sticky bits of a sandbox's user have no meaning outside.
    let mode = Mode::from_raw_mode(status.st_mode & 0o777 | 0o600);
    match kind {
        FileType::Directory => mkdirat(target, name, mode | Mode::RWXU).failing(Kind::Store, step),
        FileType::Symlink => {
            let to = readlinkat(source, name, Vec::new()).failing(Kind::Workspace, step)?;
            symlinkat(to.as_c_str(), target, name).failing(Kind::Store, step)
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let from = File::from(openat(source, name, flags, Mode::empty()).failing(Kind::Workspace, step)?);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = File::from(openat(target, name, flags, mode).failing(Kind::Store, step)?);
            files::copy_data(&from, &to, &status).failing(Kind::Store, step)
        }
        other => Err(Error::new(Kind::Workspace, format!("{other:?} is nothing that a repository has")).doing(step())),
    }
}
