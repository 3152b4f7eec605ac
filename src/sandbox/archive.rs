//! Files into and out of a sandbox, as a tar stream: packed on one side, unpacked on the other, and each side takes the other for hostile.
//!
//! Files, folders and symbolic links only. Owners are whoever unpacks; set-id bits do not travel. Unpacking goes by descriptors, one component at a
//! time, and follows no link: an archive that has `a -> /etc` and `a/passwd` writes nothing outside of its target.

use crate::error::{Context, Error, Kind, Result};
use crate::image::tar::write::Writer;
use crate::image::tar::{Entry, EntryKind, Reader};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, futimens, mkdirat, openat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Deeper than any tree that people work on; each level is an open descriptor while it is walked.
const DEEPEST: usize = 512;

/// Writes `path`, and all that is below it, under the name `name`. What is neither file, folder nor link is left out and counted.
pub(crate) fn pack<W: Write>(path: &Path, name: &Path, sink: W) -> Result<u64> {
    let mut writer = Writer::new(sink);
    let mut left_out = 0;
    let mut todo = vec![(path.to_owned(), name.to_owned())];
    while let Some((path, name)) = todo.pop() {
        let step = || format!("read `{}`", path.display());
        let status = std::fs::symlink_metadata(&path).failing(Kind::NotFound, step)?;
        let kind = status.file_type();
        if kind.is_dir() {
            writer.entry(&entry(EntryKind::Directory, &name, &status))?;
            let mut inside: Vec<_> = std::fs::read_dir(&path)
                .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
                .failing(Kind::Workspace, step)?;
            inside.sort_unstable_by(|one, other| other.cmp(one));
            todo.extend(inside.into_iter().map(|each| (path.join(&each), name.join(&each))));
        } else if kind.is_symlink() {
            let link = std::fs::read_link(&path).failing(Kind::Workspace, step)?.as_os_str().as_bytes().to_vec();
            writer.entry(&Entry { link, ..entry(EntryKind::Symlink, &name, &status) })?;
        } else if kind.is_file() {
            pack_file(&mut writer, &path, &name)?;
        } else {
            left_out += 1;
        }
    }
    writer.finish()?;
    Ok(left_out)
}

fn pack_file<W: Write>(writer: &mut Writer<W>, path: &Path, name: &Path) -> Result<()> {
    let step = || format!("read `{}`", path.display());
    // Without waiting: it may have become a FIFO since we looked.
    let opened = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let mut file = opened.failing(Kind::Workspace, step)?;
    let status = file.metadata().failing(Kind::Workspace, step)?;
    if !status.is_file() {
        return Err(Error::new(Kind::Workspace, "it is no longer a file").doing(step()));
    }
    let mut left = status.len();
    writer.entry(&entry(EntryKind::File, name, &status))?;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(&mut buffer[..wanted]).failing(Kind::Workspace, step)?;
        // It became shorter while it was read: what its header says must follow all the same.
        let count = if count == 0 {
            buffer[..wanted].fill(0);
            wanted
        } else {
            count
        };
        writer.data(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn entry(kind: EntryKind, name: &Path, status: &std::fs::Metadata) -> Entry {
    Entry {
        kind,
        path: name.as_os_str().as_bytes().to_vec(),
        link: Vec::new(),
        mode: status.mode() & 0o777,
        uid: 0,
        gid: 0,
        mtime: (status.mtime(), status.mtime_nsec() as u32),
        size: if kind == EntryKind::File { status.len() } else { 0 },
        sparse: None,
        device: (0, 0),
        xattrs: Vec::new(),
    }
}

/// Makes what the archive holds below `target`, where its one top name is to be `name`. Files that are there are replaced, folders kept.
pub(super) fn unpack<R: BufRead>(source: R, target: BorrowedFd<'_>, name: &Path) -> Result<()> {
    let mut reader = Reader::new(source);
    while let Some(entry) = reader.next()? {
        let shown = String::from_utf8_lossy(&entry.path).escape_debug().to_string();
        let step = || format!("write `{shown}`");
        let parts = parts(&entry.path, name).map_err(|error| error.doing(step()))?;
        let Some((last, above)) = parts.split_last() else { continue };
        let mut folder = target.try_clone_to_owned().failing(Kind::Internal, step)?;
        for part in above {
            folder = open_directory(&folder, part).failing(Kind::Workspace, step)?;
        }
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        match entry.kind {
            EntryKind::Directory => match mkdirat(&folder, last.as_path(), mode | Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => drop(open_directory(&folder, last).failing(Kind::Workspace, step)?),
                Err(errno) => return Err(errno).failing(Kind::Workspace, step),
            },
            EntryKind::Symlink => {
                clear(&folder, last).failing(Kind::Workspace, step)?;
                let link = std::ffi::OsStr::from_bytes(&entry.link);
                symlinkat(link, &folder, last.as_path()).failing(Kind::Workspace, step)?;
            }
            EntryKind::File => {
                clear(&folder, last).failing(Kind::Workspace, step)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(&folder, last.as_path(), flags, mode | Mode::WUSR).failing(Kind::Workspace, step)?;
                let file = File::from(made);
                reader.data(&entry, |offset, bytes| file.write_all_at(bytes, offset).failing(Kind::Workspace, step))?;
                file.set_len(entry.size).failing(Kind::Workspace, step)?;
                rustix::fs::fchmod(&file, mode).failing(Kind::Workspace, step)?;
                let (seconds, nanoseconds) = entry.mtime;
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
                };
                futimens(&file, &times).failing(Kind::Workspace, step)?;
            }
            _ => {
                return Err(Error::new(Kind::Workspace, "it is neither file, folder nor symbolic link").doing(step()));
            }
        }
    }
    Ok(())
}

/// The components of a path that must begin with `name` and stay below it.
fn parts(path: &[u8], name: &Path) -> Result<Vec<PathBuf>> {
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
    if parts.first().map(PathBuf::as_path) != Some(name) || parts.len() > DEEPEST {
        return Err(Error::new(Kind::Workspace, "it is not part of what was asked for"));
    }
    Ok(parts)
}

fn open_directory(folder: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    openat(folder, name, DIRECTORY, Mode::empty())
}

/// Makes room for a new file or link; a folder stays in the way.
fn clear(folder: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
        Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Directory => Err(Errno::ISDIR),
        Ok(_) => unlinkat(folder, name, AtFlags::empty()),
    }
}

/// Opens a folder that is a target of ours.
pub(super) fn open_target(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::NotFound, || format!("open `{}`", path.display()))
}

/// [`unpack`] into a folder that is named.
pub(crate) fn unpack_at<R: BufRead>(source: R, target: &Path, name: &Path) -> Result<()> {
    unpack(source, open_target(target)?.as_fd(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_tree_arrives_as_it_was() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(from.path().join("a/b")).unwrap();
        std::fs::write(from.path().join("a/b/file"), vec![7; 100_000]).unwrap();
        symlink("/etc", from.path().join("a/link")).unwrap();
        let mut bytes = Vec::new();
        pack(&from.path().join("a"), Path::new("new"), &mut bytes).unwrap();
        for _ in 0..2 {
            unpack_at(&bytes[..], to.path(), Path::new("new")).unwrap();
        }
        assert_eq!(std::fs::read(to.path().join("new/b/file")).unwrap(), vec![7; 100_000]);
        assert_eq!(std::fs::read_link(to.path().join("new/link")).unwrap(), Path::new("/etc"));
    }

    #[test]
    fn an_archive_writes_nowhere_but_into_its_target() {
        let check = |entries: &[(EntryKind, &str, &str)]| {
            let around = tempfile::tempdir().unwrap();
            std::fs::create_dir(around.path().join("target")).unwrap();
            std::fs::write(around.path().join("secret"), "mine").unwrap();
            let mut writer = Writer::new(Vec::new());
            let status = around.path().metadata().unwrap();
            for (kind, path, link) in entries {
                let made = Entry { link: link.as_bytes().to_vec(), size: 0, ..entry(*kind, Path::new(path), &status) };
                writer.entry(&made).unwrap();
            }
            let bytes = writer.finish().unwrap();
            let done = unpack_at(&bytes[..], &around.path().join("target"), Path::new("x"));
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
    }
}
