//! Packs trees that an agent may have written.

use super::{Form, OPAQUE};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{
    Bounds as FileBounds, DIRECTORY, LeftDirectory, Names, Patterns, Walk, WalkStep, next_data, open_directory,
};
use crate::image::tar::write::Writer;
use crate::image::tar::{Entry, EntryKind, MOST_EXTENTS};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fchmod, fgetxattr, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;
use std::collections::{HashMap, hash_map};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Without set-id bits, which would have effect where the archive is unpacked.
pub(super) const VOLUME_MODES: u32 = 0o1777;

/// In bytes, four times that of a system call (PATH_MAX).
const MOST_PATH: usize = 16 << 10;
/// In bytes, of all entries.
const MOST_PATHS: u64 = 512 << 20;

/// `exclude` matches paths below `path`. Returns the number of skipped files, of other types than files, directories
/// and links.
pub(crate) fn pack<W: Write>(path: &Path, top_name: &Path, exclude: &Patterns, sink: W) -> Result<u64> {
    let step = || format!("read `{}`", path.display());
    let mut pack = Pack::new(sink, Form::Copy);
    let status = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::NotFound, step)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        pack.entry(CWD, path, top_name, &status, &step)?;
        return pack.finish();
    }
    let top = openat(CWD, path, DIRECTORY, Mode::empty()).failing(Kind::Workspace, step)?;
    pack.tree(top, top_name, path, Some(exclude))?;
    pack.finish()
}

/// Returns the number of skipped FIFOs, sockets and devices.
pub(crate) fn pack_volume<W: Write>(top: OwnedFd, sink: W) -> Result<u64> {
    pack_all(top, Form::Volume, sink)
}

/// All files are this user's; in the archive they are `user`'s.
pub(crate) fn pack_own_volume<W: Write>(top: OwnedFd, user: (u32, u32), sink: W) -> Result<u64> {
    pack_all(top, Form::OwnVolume(user.0, user.1), sink)
}

fn pack_all<W: Write>(top: OwnedFd, form: Form, sink: W) -> Result<u64> {
    let mut pack = Pack::new(sink, form);
    pack.tree(top, Path::new("."), Path::new("the volume"), None)?;
    pack.finish()
}

pub(super) struct Pack<W: Write> {
    pub writer: Writer<W>,
    pub left_out: u64,
    /// Of each file with several, by device and inode.
    pub first_names: HashMap<(u64, u64), PathBuf>,
    /// Bytes of all paths so far.
    paths: u64,
    pub form: Form,
}

impl<W: Write> Pack<W> {
    pub fn new(sink: W, form: Form) -> Pack<W> {
        Pack { writer: Writer::new(sink), left_out: 0, first_names: HashMap::new(), paths: 0, form }
    }

    /// Errors show the directory as `shown`.
    pub fn tree(&mut self, top: OwnedFd, top_name: &Path, shown: &Path, exclude: Option<&Patterns>) -> Result<()> {
        let mut walk = Walk::<1, Level>::new(FileBounds::NONE);
        let packed = self.walk(&mut walk, top, top_name, shown, exclude);
        // After an error, open directories may still have a changed mode.
        while let Ok(Some(left)) = walk.leave() {
            close(left).failing(Kind::Workspace, || format!("read `{}`", shown.display()))?;
        }
        packed
    }

    fn walk(
        &mut self,
        walk: &mut Walk<1, Level>,
        top: OwnedFd,
        top_name: &Path,
        shown: &Path,
        exclude: Option<&Patterns>,
    ) -> Result<()> {
        let step = || format!("read `{}`", shown.display());
        let status = fstat(&top).failing(Kind::Workspace, step)?;
        self.directory(top.as_fd(), top_name, &status)?;
        let enter = |walk: &mut Walk<1, Level>, directory: OwnedFd, level: Level| {
            let mut names = Names::of(&directory)?;
            names.sort();
            walk.enter([Some(directory)], names, level)
        };
        let level = Level { name: top_name.to_owned(), closed: None };
        enter(walk, top, level).failing(Kind::Workspace, step)?;
        while let Some(next) = walk.next().failing(Kind::Workspace, step)? {
            if next == WalkStep::End {
                if let Some(left) = walk.leave().failing(Kind::Workspace, step)? {
                    close(left).failing(Kind::Workspace, step)?;
                }
                continue;
            }
            let Some(Level { name: above, .. }) = walk.state() else { continue };
            let last = Path::new(OsStr::from_bytes(walk.name().to_bytes()));
            let name = above.join(last);
            let step = || format!("read `{}`", shown.join(name.strip_prefix(top_name).unwrap_or(&name)).display());
            let directory = walk.side(0).failing(Kind::Internal, step)?;
            let status = statat(directory, last, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::NotFound, step)?;
            let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
            let below = name.strip_prefix(top_name).unwrap_or(&name);
            if exclude.is_some_and(|exclude| exclude.matches(below, is_directory)) {
                continue;
            }
            self.bound(&name)?;
            let closed = match self.form {
                Form::Kept | Form::OwnVolume(..) => {
                    make_readable(directory, last, &status).failing(Kind::Workspace, step)?
                }
                Form::Copy | Form::Volume => None,
            };
            if !is_directory {
                let packed = self.entry(directory, last, &name, &status, &step);
                let set = |mode| chmodat(directory, last, mode, AtFlags::empty());
                closed.map_or(Ok(()), set).failing(Kind::Workspace, step)?;
                packed?;
                continue;
            }
            let inner = open_directory(directory, walk.name()).failing(Kind::Workspace, step)?;
            self.directory(inner.as_fd(), &name, &status)?;
            enter(walk, inner, Level { name: name.clone(), closed }).failing(Kind::Workspace, step)?;
        }
        Ok(())
    }

    /// Each entry has its whole path: without a bound, a deep tree would cost the supervisor the square of its depth.
    fn bound(&mut self, name: &Path) -> Result<()> {
        let length = name.as_os_str().len();
        self.paths += length as u64;
        if length > MOST_PATH || self.paths > MOST_PATHS {
            let words = format!("a path has more than {MOST_PATH} bytes, or all have more than {MOST_PATHS}");
            return Err(Error::new(Kind::Workspace, words)
                .doing("pack files")
                .hint("remove the deepest folders, or do not keep the workspace"));
        }
        Ok(())
    }

    fn described(&self, kind: EntryKind, name: &Path, status: &Stat) -> Entry {
        let plain = entry(kind, name, status);
        match self.form {
            Form::Copy | Form::Kept => plain,
            Form::OwnVolume(uid, gid) => Entry { uid, gid, mode: status.st_mode & VOLUME_MODES, ..plain },
            Form::Volume => {
                Entry { uid: status.st_uid, gid: status.st_gid, mode: status.st_mode & VOLUME_MODES, ..plain }
            }
        }
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, name: &Path, status: &Stat) -> Result<()> {
        let mut entry = self.described(EntryKind::Directory, name, status);
        let mut value = [0_u8; 16];
        if self.form == Form::Kept
            && let Ok(length) = fgetxattr(directory, OPAQUE, &mut value)
        {
            entry.xattrs.push((OPAQUE.to_bytes().to_vec(), value[..length].to_vec()));
        }
        self.writer.entry(&entry)
    }

    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        last: &Path,
        name: &Path,
        status: &Stat,
        step: &dyn Fn() -> String,
    ) -> Result<()> {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Symlink => {
                let link = readlinkat(directory, last, Vec::new()).failing(Kind::Workspace, step)?;
                self.writer
                    .entry(&Entry { link: link.into_bytes(), ..self.described(EntryKind::Symlink, name, status) })
            }
            FileType::RegularFile => {
                if status.st_nlink > 1 {
                    match self.first_names.entry((status.st_dev, status.st_ino)) {
                        hash_map::Entry::Vacant(first) => drop(first.insert(name.to_owned())),
                        hash_map::Entry::Occupied(first) => {
                            let link = first.get().as_os_str().as_bytes().to_vec();
                            return self
                                .writer
                                .entry(&Entry { link, ..self.described(EntryKind::HardLink, name, status) });
                        }
                    }
                }
                let described = self.described(EntryKind::File, name, status);
                pack_file(&mut self.writer, directory, last, described, step)
            }
            FileType::CharacterDevice if self.form == Form::Kept && status.st_rdev == 0 => {
                self.writer.entry(&entry(EntryKind::Character, name, status))
            }
            _ => {
                self.left_out += 1;
                Ok(())
            }
        }
    }

    pub fn finish(self) -> Result<u64> {
        self.writer.finish()?;
        Ok(self.left_out)
    }
}

struct Level {
    name: PathBuf,
    /// Its mode, if it was made readable.
    closed: Option<Mode>,
}

fn close(left: LeftDirectory<1, Level>) -> Result<(), Errno> {
    match (left.state.closed, &left.directories) {
        (Some(mode), [Some(directory)]) => fchmod(directory, mode),
        _ => Ok(()),
    }
}

/// Returns the mode, which the archive has, for the caller to restore: the sandbox may go on after a checkpoint.
fn make_readable(directory: BorrowedFd<'_>, last: &Path, status: &Stat) -> Result<Option<Mode>, Errno> {
    let needed = match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => 0o700,
        FileType::RegularFile => 0o400,
        _ => return Ok(None),
    };
    let mode = status.st_mode & 0o7777;
    if mode & needed == needed {
        return Ok(None);
    }
    chmodat(directory, last, Mode::from_raw_mode(mode | needed), AtFlags::empty())?;
    Ok(Some(Mode::from_raw_mode(mode)))
}

fn pack_file<W: Write>(
    writer: &mut Writer<W>,
    directory: BorrowedFd<'_>,
    last: &Path,
    described: Entry,
    step: &dyn Fn() -> String,
) -> Result<()> {
    // NONBLOCK: a FIFO may have replaced it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, last, flags, Mode::empty()).failing(Kind::Workspace, step)?);
    let status = fstat(&file).failing(Kind::Workspace, step)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(Error::new(Kind::Workspace, "it is no longer a file").doing(step()));
    }
    let size = u64::try_from(status.st_size).unwrap_or(0);
    let sparse = extents(&file, size).failing(Kind::Workspace, step)?;
    let whole = [(0, size)];
    let map = sparse.clone();
    writer.entry(&Entry { sparse, size, ..described })?;
    let mut buffer = vec![0; 64 << 10];
    for &(mut offset, mut left) in map.as_deref().unwrap_or(&whole) {
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = file.read_at(&mut buffer[..wanted], offset).failing(Kind::Workspace, step)?;
            // It became shorter during the read: fill up to the size in its header.
            let count = if count == 0 {
                buffer[..wanted].fill(0);
                wanted
            } else {
                count
            };
            writer.data(&buffer[..count])?;
            offset += count as u64;
            left -= count as u64;
        }
    }
    Ok(())
}

/// `None` without holes. With more extents than an archive takes, small holes become data.
fn extents(file: &File, size: u64) -> Result<Option<Vec<(u64, u64)>>, Errno> {
    let (mut map, mut offset, mut gap) = (Vec::<(u64, u64)>::new(), 0, 0);
    while offset < size {
        let (start, end) = next_data(file, offset, size)?;
        if start == size {
            break;
        }
        offset = end;
        push(&mut map, (start, offset - start), gap);
        while map.len() > MOST_EXTENTS {
            gap = (2 * gap).max(4096);
            for extent in std::mem::take(&mut map) {
                push(&mut map, extent, gap);
            }
        }
    }
    Ok((map != [(0, size)] && size > 0).then_some(map))
}

/// Joins extents with a hole of at most `gap` bytes.
fn push(map: &mut Vec<(u64, u64)>, (start, length): (u64, u64), gap: u64) {
    match map.last_mut() {
        Some((first, before)) if start - (*first + *before) <= gap => *before = start + length - *first,
        _ => map.push((start, length)),
    }
}

pub(super) fn entry(kind: EntryKind, name: &Path, status: &Stat) -> Entry {
    Entry {
        mode: status.st_mode & 0o777,
        mtime: (status.st_mtime, u32::try_from(status.st_mtime_nsec).unwrap_or(0)),
        size: if kind == EntryKind::File { u64::try_from(status.st_size).unwrap_or(0) } else { 0 },
        ..Entry::new(kind, name.as_os_str().as_bytes())
    }
}
