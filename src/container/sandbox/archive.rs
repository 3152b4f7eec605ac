//! Copies files into and out of a sandbox as a tar stream. Each side takes the other for hostile.
//!
//! Files, folders and links only. Holes stay holes, and hard links copied together stay one file. The unpacking process
//! owns the files; set-id bits are dropped. Unpacking uses descriptors, one component at a time, and follows no link:
//! an archive with `a -> /etc` and `a/passwd` writes nothing outside of its target.
//!
//! The archive of a kept task, whose files were in memory, has the marks of overlayfs too ([`pack_kept`]).

use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{Bounds as FileBounds, DIRECTORY, Names, Patterns, Walk, WalkStep, next_data, open_directory};
use crate::image::tar::write::Writer;
use crate::image::tar::{Entry, EntryKind, MOST_EXTENTS, Reader};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, XattrFlags, chmodat, fgetxattr,
    fsetxattr, fstat, futimens, linkat, mkdirat, mknodat, openat, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, hash_map};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The most components of an unpacked path: deeper than real trees.
const DEEPEST: usize = 512;

/// The trees of the file system for all writes that a kept task goes on from: their directory, and their name in it.
const KEPT: [(&str, &str); 4] = [("", "home"), ("", "files"), ("workspace", "upper"), ("root", "upper")];
/// The directory of these trees in an archive, each under its number.
const TOP: &str = "kept";
/// The mark of a directory that hides the lower one (overlayfs, `userxattr`).
const OPAQUE: &CStr = c"user.overlay.opaque";

/// Packs what is kept of the file system for all writes. Its processes are gone, and its files are this user's.
pub(crate) fn pack_kept<W: Write>(scratch: BorrowedFd<'_>, sink: W) -> Result<()> {
    let mut pack = Pack { writer: Writer::new(sink), left_out: 0, first_names: HashMap::new(), is_kept: true };
    let step = || "read the files of the sandbox";
    let status = fstat(scratch).failing(Kind::Disk, step)?;
    pack.writer.entry(&entry(EntryKind::Directory, Path::new(TOP), &status))?;
    for (number, (directory, name)) in KEPT.iter().enumerate() {
        let top = match openat(scratch, Path::new(directory).join(name), DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            other => other.failing(Kind::Disk, step)?,
        };
        pack.tree(top, &Path::new(TOP).join(number.to_string()), Path::new(name), None)?;
    }
    pack.finish().map(|_| ())
}

/// Unpacks such an archive into the root of a new file system for all writes, which is empty.
pub(crate) fn restore_kept(archive: OwnedFd, scratch: BorrowedFd<'_>) -> Result<()> {
    let step = || "put the kept files back";
    let source = BufReader::new(File::from(archive));
    unpack_as(source, scratch, Path::new(TOP), Bounds::NONE, true).doing(step)?;
    let top = openat(scratch, TOP, DIRECTORY, Mode::empty()).failing(Kind::Disk, step)?;
    for (number, (directory, name)) in KEPT.iter().enumerate() {
        if !directory.is_empty() {
            match mkdirat(scratch, *directory, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).failing(Kind::Disk, step),
            }
        }
        match renameat(&top, number.to_string(), scratch, Path::new(directory).join(name)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, step),
        }
    }
    unlinkat(scratch, TOP, AtFlags::REMOVEDIR).failing(Kind::Disk, step)
}

/// Packs `path`, with everything below it, under the name `name`. Skips other types than files, directories and links,
/// and returns how many. Skips what `exclude` matches, by its path below `path`.
pub(crate) fn pack<W: Write>(path: &Path, top_name: &Path, exclude: &Patterns, sink: W) -> Result<u64> {
    let step = || format!("read `{}`", path.display());
    let mut pack = Pack { writer: Writer::new(sink), left_out: 0, first_names: HashMap::new(), is_kept: false };
    let status = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::NotFound, step)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        pack.entry(CWD, path, top_name, &status, &step)?;
        return pack.finish();
    }
    let top = openat(CWD, path, DIRECTORY, Mode::empty()).failing(Kind::Workspace, step)?;
    pack.tree(top, top_name, path, Some(exclude))?;
    pack.finish()
}

/// An archive in progress.
struct Pack<W: Write> {
    writer: Writer<W>,
    left_out: u64,
    /// The first name in the archive of each file with several, by device and inode.
    first_names: HashMap<(u64, u64), PathBuf>,
    /// Whether the tree is a kept task's: with marks of overlayfs, and with files that their owner may not read.
    is_kept: bool,
}

impl<W: Write> Pack<W> {
    /// Packs a directory with everything below it under the name `top_name`, without what `exclude` matches; errors show
    /// it as `shown`.
    fn tree(&mut self, top: OwnedFd, top_name: &Path, shown: &Path, exclude: Option<&Patterns>) -> Result<()> {
        let step = || format!("read `{}`", shown.display());
        let status = fstat(&top).failing(Kind::Workspace, step)?;
        self.directory(top.as_fd(), top_name, &status)?;
        let mut walk = Walk::<1, PathBuf>::new(FileBounds::NONE);
        let enter = |walk: &mut Walk<1, PathBuf>, directory: OwnedFd, name: PathBuf| {
            let mut names = Names::of(&directory)?;
            names.sort();
            walk.enter([Some(directory)], names, name)
        };
        enter(&mut walk, top, top_name.to_owned()).failing(Kind::Workspace, step)?;
        while let Some(next) = walk.next().failing(Kind::Workspace, step)? {
            let (WalkStep::Entry(_), Some(above)) = (next, walk.state()) else { continue };
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
            if self.is_kept {
                make_readable(directory, last, &status).failing(Kind::Workspace, step)?;
            }
            if !is_directory {
                self.entry(directory, last, &name, &status, &step)?;
                continue;
            }
            let inner = open_directory(directory, walk.name()).failing(Kind::Workspace, step)?;
            self.directory(inner.as_fd(), &name, &status)?;
            enter(&mut walk, inner, name.clone()).failing(Kind::Workspace, step)?;
        }
        Ok(())
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, name: &Path, status: &Stat) -> Result<()> {
        let mut entry = entry(EntryKind::Directory, name, status);
        let mut value = [0_u8; 16];
        if self.is_kept
            && let Ok(length) = fgetxattr(directory, OPAQUE, &mut value)
        {
            entry.xattrs.push((OPAQUE.to_bytes().to_vec(), value[..length].to_vec()));
        }
        self.writer.entry(&entry)
    }

    /// Writes the file or link `last` of `directory`.
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
                self.writer.entry(&Entry { link: link.into_bytes(), ..entry(EntryKind::Symlink, name, status) })
            }
            FileType::RegularFile => {
                if status.st_nlink > 1 {
                    match self.first_names.entry((status.st_dev, status.st_ino)) {
                        hash_map::Entry::Vacant(first) => drop(first.insert(name.to_owned())),
                        hash_map::Entry::Occupied(first) => {
                            let link = first.get().as_os_str().as_bytes().to_vec();
                            return self.writer.entry(&Entry { link, ..entry(EntryKind::HardLink, name, status) });
                        }
                    }
                }
                pack_file(&mut self.writer, directory, last, name, status.st_mode, step)
            }
            FileType::CharacterDevice if self.is_kept && status.st_rdev == 0 => {
                self.writer.entry(&entry(EntryKind::Character, name, status))
            }
            _ => {
                self.left_out += 1;
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<u64> {
        self.writer.finish()?;
        Ok(self.left_out)
    }
}

/// Lets the owner read what its mode denies; the archive has the mode as it was.
fn make_readable(directory: BorrowedFd<'_>, last: &Path, status: &Stat) -> Result<(), Errno> {
    let needed = match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => 0o700,
        FileType::RegularFile => 0o400,
        _ => return Ok(()),
    };
    let mode = status.st_mode & 0o7777;
    if mode & needed == needed {
        return Ok(());
    }
    chmodat(directory, last, Mode::from_raw_mode(mode | needed), AtFlags::empty())
}

fn pack_file<W: Write>(
    writer: &mut Writer<W>,
    directory: BorrowedFd<'_>,
    last: &Path,
    name: &Path,
    mode: u32,
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
    writer.entry(&Entry { sparse, mode: mode & 0o777, ..entry(EntryKind::File, name, &status) })?;
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

/// The data extents of a file with holes. With more extents than an archive takes, small holes become data.
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

/// Adds an extent, joined with the one before if the hole between them is at most `gap` bytes.
fn push(map: &mut Vec<(u64, u64)>, (start, length): (u64, u64), gap: u64) {
    match map.last_mut() {
        Some((first, before)) if start - (*first + *before) <= gap => *before = start + length - *first,
        _ => map.push((start, length)),
    }
}

fn entry(kind: EntryKind, name: &Path, status: &Stat) -> Entry {
    Entry {
        kind,
        path: name.as_os_str().as_bytes().to_vec(),
        link: Vec::new(),
        mode: status.st_mode & 0o777,
        uid: 0,
        gid: 0,
        mtime: (status.st_mtime, u32::try_from(status.st_mtime_nsec).unwrap_or(0)),
        size: if kind == EntryKind::File { u64::try_from(status.st_size).unwrap_or(0) } else { 0 },
        sparse: None,
        device: (0, 0),
        xattrs: Vec::new(),
    }
}

/// Bounds of an archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes of data of all files together, without holes.
    pub bytes: u64,
    /// Files, folders and links.
    pub names: u64,
}

impl Bounds {
    /// For unpacking in the sandbox, whose own limits hold.
    pub(crate) const NONE: Bounds = Bounds { bytes: u64::MAX, names: u64::MAX };

    fn take(left: &mut u64, count: u64, what: &str) -> Result<()> {
        // A test shows the attack without this guard.
        if cfg!(feature = "weakened") && std::env::var("BRIG_WEAKEN").is_ok_and(|names| names.contains("copy-bounds")) {
            return Ok(());
        }
        *left = left.checked_sub(count).ok_or_else(|| {
            Error::new(Kind::Disk, format!("the copy has more {what} than the task's disk limit allows"))
                .hint("copy a part of it, or take it as a stream: brig task cp ID:PATH - | tar x")
        })?;
        Ok(())
    }
}

/// Unpacks the archive below `target`; its only top name must be `name`. Replaces existing files, keeps folders.
pub(crate) fn unpack<R: BufRead>(source: R, target: BorrowedFd<'_>, name: &Path, bounds: Bounds) -> Result<()> {
    unpack_as(source, target, name, bounds, false)
}

/// The same; `is_kept` also takes the marks of overlayfs, and any depth.
fn unpack_as<R: BufRead>(source: R, target: BorrowedFd<'_>, name: &Path, bounds: Bounds, is_kept: bool) -> Result<()> {
    let deepest = if is_kept { usize::MAX } else { DEEPEST };
    let mut reader = Reader::new(source);
    let mut left = bounds;
    // The files of this archive.
    let mut files = HashSet::new();
    while let Some(entry) = reader.next()? {
        Bounds::take(&mut left.names, 1, "names")?;
        let shown = String::from_utf8_lossy(&entry.path).escape_debug().to_string();
        let step = || format!("write `{shown}`");
        let parts = parts(&entry.path, name, deepest).map_err(|error| error.doing(step()))?;
        let Some((last, above)) = parts.split_last() else { continue };
        let mut folder = target.try_clone_to_owned().failing(Kind::Internal, step)?;
        for part in above {
            folder = open_folder(&folder, part).failing(Kind::Workspace, step)?;
        }
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        match entry.kind {
            EntryKind::Directory => match mkdirat(&folder, last.as_path(), mode | Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {
                    let made = open_folder(&folder, last).failing(Kind::Workspace, step)?;
                    if is_kept {
                        rustix::fs::fchmod(&made, mode | Mode::RWXU).failing(Kind::Workspace, step)?;
                    }
                    let mark = entry.xattrs.iter().find(|(name, _)| is_kept && name == OPAQUE.to_bytes());
                    if let Some((_, value)) = mark {
                        fsetxattr(&made, OPAQUE, value, XattrFlags::empty()).failing(Kind::Workspace, step)?;
                    }
                }
                Err(errno) => return Err(errno).failing(Kind::Workspace, step),
            },
            // A whiteout, which any user may make (mknod(2)).
            EntryKind::Character if is_kept && entry.device == (0, 0) => {
                clear(&folder, last).failing(Kind::Workspace, step)?;
                mknodat(&folder, last.as_path(), FileType::CharacterDevice, mode, 0).failing(Kind::Workspace, step)?;
            }
            EntryKind::Symlink => {
                files.remove(&parts);
                clear(&folder, last).failing(Kind::Workspace, step)?;
                let link = std::ffi::OsStr::from_bytes(&entry.link);
                symlinkat(link, &folder, last.as_path()).failing(Kind::Workspace, step)?;
            }
            EntryKind::File => {
                clear(&folder, last).failing(Kind::Workspace, step)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(&folder, last.as_path(), flags, mode | Mode::WUSR).failing(Kind::Workspace, step)?;
                let file = File::from(made);
                reader.data(&entry, |offset, bytes| {
                    Bounds::take(&mut left.bytes, bytes.len() as u64, "bytes").doing(step)?;
                    file.write_all_at(bytes, offset).failing(Kind::Workspace, step)
                })?;
                file.set_len(entry.size).failing(Kind::Workspace, step)?;
                rustix::fs::fchmod(&file, mode).failing(Kind::Workspace, step)?;
                let (seconds, nanoseconds) = entry.mtime;
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
                };
                futimens(&file, &times).failing(Kind::Workspace, step)?;
                files.insert(parts);
            }
            EntryKind::HardLink => {
                // Link only to a file of this archive, never to a user's existing one.
                let first = self::parts(&entry.link, name, deepest).map_err(|error| error.doing(step()))?;
                if !files.contains(&first) {
                    return Err(Error::new(Kind::Workspace, "it is a link to a file that was not copied").doing(step()));
                }
                let Some((first, above)) = first.split_last() else { continue };
                let mut from = target.try_clone_to_owned().failing(Kind::Internal, step)?;
                for part in above {
                    from = open_folder(&from, part).failing(Kind::Workspace, step)?;
                }
                clear(&folder, last).failing(Kind::Workspace, step)?;
                linkat(&from, first.as_path(), &folder, last.as_path(), AtFlags::empty())
                    .failing(Kind::Workspace, step)?;
            }
            _ => {
                return Err(Error::new(Kind::Workspace, "it is neither file, folder nor symbolic link").doing(step()));
            }
        }
    }
    Ok(())
}

/// The components of a path, which must begin with `name` and stay below it.
fn parts(path: &[u8], name: &Path, deepest: usize) -> Result<Vec<PathBuf>> {
    use std::path::Component;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(PathBuf::from(part)),
            Component::CurDir => {}
            _ => return Err(Error::new(Kind::Workspace, "its path leads out of the archive")),
        }
    }
    if parts.first().map(PathBuf::as_path) != Some(name) || parts.len() > deepest {
        return Err(Error::new(Kind::Workspace, "it is not part of what was asked for"));
    }
    Ok(parts)
}

fn open_folder(folder: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    openat(folder, name, DIRECTORY, Mode::empty())
}

/// Removes a file or link in the way; a folder stays.
fn clear(folder: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
        Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Directory => Err(Errno::ISDIR),
        Ok(_) => unlinkat(folder, name, AtFlags::empty()),
    }
}

/// Opens a target folder.
pub(crate) fn open_target(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::NotFound, || format!("open `{}`", path.display()))
}

/// [`unpack`] into a folder by its path.
pub(crate) fn unpack_at<R: BufRead>(source: R, target: &Path, name: &Path, bounds: Bounds) -> Result<()> {
    unpack(source, open_target(target)?.as_fd(), name, bounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_tree_arrives_as_it_was() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(from.path().join("a/b")).unwrap();
        std::fs::write(from.path().join("a/b/file"), vec![7; 100_000]).unwrap();
        symlink("/etc", from.path().join("a/link")).unwrap();
        let mut bytes = Vec::new();
        pack(&from.path().join("a"), Path::new("new"), &Patterns::none(), &mut bytes).unwrap();
        for _ in 0..2 {
            unpack_at(&bytes[..], to.path(), Path::new("new"), Bounds::NONE).unwrap();
        }
        assert_eq!(std::fs::read(to.path().join("new/b/file")).unwrap(), vec![7; 100_000]);
        assert_eq!(std::fs::read_link(to.path().join("new/link")).unwrap(), Path::new("/etc"));
    }

    #[test]
    fn holes_and_hard_links_arrive_as_they_were_and_data_has_a_bound() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("a")).unwrap();
        let file = File::create(from.path().join("a/holes")).unwrap();
        file.set_len(8 << 40).unwrap();
        file.write_all_at(b"one", 5 << 30).unwrap();
        file.write_all_at(b"two", (8 << 40) - 3).unwrap();
        File::create(from.path().join("a/empty")).unwrap().set_len(3 << 30).unwrap();
        std::fs::write(from.path().join("a/first"), vec![7; 50_000]).unwrap();
        std::fs::hard_link(from.path().join("a/first"), from.path().join("a/second")).unwrap();
        let mut bytes = Vec::new();
        pack(&from.path().join("a"), Path::new("a"), &Patterns::none(), &mut bytes).unwrap();
        assert!(bytes.len() < 200_000, "{} bytes", bytes.len());
        let unpack = |bytes_allowed, names| {
            unpack_at(&bytes[..], to.path(), Path::new("a"), Bounds { bytes: bytes_allowed, names })
        };
        unpack(100_000, 5).unwrap();
        let status = |name: &str| to.path().join("a").join(name).metadata().unwrap();
        assert!(status("holes").len() == 8 << 40 && status("holes").blocks() < 100);
        assert!(status("empty").len() == 3 << 30 && status("empty").blocks() == 0);
        assert_eq!((status("first").ino(), status("first").nlink()), (status("second").ino(), 2));
        let mut end = [0; 3];
        File::open(to.path().join("a/holes")).unwrap().read_exact_at(&mut end, (8 << 40) - 3).unwrap();
        assert_eq!(&end, b"two");
        for (bytes_allowed, names) in [(40_000, 5), (100_000, 4)] {
            let error = unpack(bytes_allowed, names).unwrap_err();
            assert!(error.to_string().contains("than the task's disk limit allows"), "{error}");
        }
        // Other tar programs can read it.
        std::fs::write(to.path().join("archive"), &bytes).unwrap();
        let words = ["-xf", "archive", "--one-top-level=tar"];
        let status_of_tar = std::process::Command::new("tar").args(words).current_dir(to.path()).status().unwrap();
        let there = to.path().join("tar/a/holes").metadata().unwrap();
        assert!(status_of_tar.success() && there.len() == 8 << 40 && there.blocks() < 100);
    }

    #[test]
    fn an_archive_writes_nowhere_but_into_its_target() {
        let check = |entries: &[(EntryKind, &str, &str)]| {
            let around = tempfile::tempdir().unwrap();
            std::fs::create_dir(around.path().join("target")).unwrap();
            std::fs::write(around.path().join("secret"), "mine").unwrap();
            let mut writer = Writer::new(Vec::new());
            let status = rustix::fs::stat(around.path()).unwrap();
            for (kind, path, link) in entries {
                let made = Entry { link: link.as_bytes().to_vec(), size: 0, ..entry(*kind, Path::new(path), &status) };
                writer.entry(&made).unwrap();
            }
            let bytes = writer.finish().unwrap();
            let done = unpack_at(&bytes[..], &around.path().join("target"), Path::new("x"), Bounds::NONE);
            assert!(done.is_err(), "{entries:?}");
            assert_eq!(std::fs::read_to_string(around.path().join("secret")).unwrap(), "mine", "{entries:?}");
            assert_eq!(std::fs::read_dir(around.path()).unwrap().count(), 2, "{entries:?}");
        };
        let (file, link, folder) = (EntryKind::File, EntryKind::Symlink, EntryKind::Directory);
        check(&[(folder, "x", ""), (link, "x/a", "../.."), (file, "x/a/secret", "")]);
        check(&[(link, "x", ".."), (file, "x/secret", "")]);
        check(&[(file, "x/../../secret", "")]);
        check(&[(file, "/secret", "")]);
        check(&[(file, "y", "")]);
        check(&[(folder, "x", ""), (EntryKind::Fifo, "x/fifo", "")]);
        check(&[(folder, "x", ""), (link, "x/s", "../../secret"), (EntryKind::HardLink, "x/h", "x/s")]);
        let hard = EntryKind::HardLink;
        check(&[(folder, "x", ""), (hard, "x/h", "../secret")]);
        check(&[(file, "x", ""), (link, "x", "secret"), (hard, "x/h", "x")]);
        check(&[(folder, "x", ""), (file, "x/f", ""), (link, "x/f", "../../secret"), (hard, "x/h", "x/f")]);
    }
}
