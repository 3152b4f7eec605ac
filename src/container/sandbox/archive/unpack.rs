//! Unpacks archives that an agent may have made.

use super::pack::VOLUME_MODES;
use super::{Form, OPAQUE};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::DIRECTORY;
use crate::image::tar::{Entry, EntryKind, Reader};
use crate::ns::Range;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown,
    fsetxattr, futimens, linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::BufRead;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Components of a path: deeper than real trees.
const DEEPEST: usize = 512;

/// From a disk limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Of data, without holes.
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
        *left = left
            .checked_sub(count)
            .ok_or_else(|| Error::new(Kind::Disk, format!("it has more {what} than the disk limit allows")))?;
        Ok(())
    }
}

/// The only top name must be `name`. Replaces existing files, keeps folders.
fn unpack<R: BufRead>(source: R, target: BorrowedFd<'_>, name: &Path, bounds: Bounds) -> Result<()> {
    unpack_as(source, target, name, bounds, Form::Copy)
}

/// With the archive's owners. Its names may begin in any way.
pub(crate) fn unpack_volume<R: BufRead>(source: R, top: BorrowedFd<'_>) -> Result<()> {
    unpack_as(source, top, Path::new(""), Bounds::NONE, Form::Volume)
}

/// All files become this user's, within `bounds`.
pub(crate) fn unpack_own_volume<R: BufRead>(source: R, top: BorrowedFd<'_>, bounds: Bounds) -> Result<()> {
    unpack_as(source, top, Path::new(""), bounds, Form::OwnVolume(0, 0))
}

/// [`Form::Kept`] also takes the marks of overlayfs. It and [`Form::OwnVolume`] take any depth.
pub(super) fn unpack_as<R: BufRead>(
    source: R,
    target: BorrowedFd<'_>,
    name: &Path,
    bounds: Bounds,
    form: Form,
) -> Result<()> {
    let is_kept = form == Form::Kept;
    // A sandbox may write its own files to any depth.
    let is_own = is_kept || matches!(form, Form::OwnVolume(..));
    let deepest = if is_own { usize::MAX } else { DEEPEST };
    let mut reader = Reader::new(source);
    let mut left = bounds;
    let mut files = HashSet::new();
    while let Some(entry) = reader.next()? {
        Bounds::take(&mut left.names, 1, "names")?;
        let shown = String::from_utf8_lossy(&entry.path).escape_debug().to_string();
        let step = || format!("write `{shown}`");
        let parts = parts(&entry.path, name, deepest).map_err(|error| error.doing(step()))?;
        let owner = owner(&entry, form).doing(step)?;
        let Some((last, above)) = parts.split_last() else {
            set_owner(target, &entry, owner, form).failing(Kind::Workspace, step)?;
            continue;
        };
        let mut folder = target.try_clone_to_owned().failing(Kind::Internal, step)?;
        for part in above {
            folder = open_folder(&folder, part).failing(Kind::Workspace, step)?;
        }
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        match entry.kind {
            EntryKind::Directory => match mkdirat(&folder, last.as_path(), mode | Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {
                    let made = open_folder(&folder, last).failing(Kind::Workspace, step)?;
                    set_owner(made.as_fd(), &entry, owner, form).failing(Kind::Workspace, step)?;
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
                if let Some((uid, gid)) = owner {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    chownat(&folder, last.as_path(), Some(uid), Some(gid), flags).failing(Kind::Workspace, step)?;
                }
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
                set_owner(file.as_fd(), &entry, owner, form).failing(Kind::Workspace, step)?;
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

/// `None` unless the archive is a volume's.
fn owner(entry: &Entry, form: Form) -> Result<Option<(Uid, Gid)>> {
    if form != Form::Volume {
        return Ok(None);
    }
    let id = entry.uid.max(entry.gid);
    if id >= Range::SIZE {
        let words = format!("the id {id} is beyond the {} ids that a sandbox has", Range::SIZE);
        return Err(
            Error::new(Kind::Usage, words).hint("make the archive with other owners: tar --owner=1000 --group=1000")
        );
    }
    Ok(Some((Uid::from_raw(entry.uid), Gid::from_raw(entry.gid))))
}

/// An ordinary user's folders can always be entered by their owner.
fn set_owner(file: BorrowedFd<'_>, entry: &Entry, owner: Option<(Uid, Gid)>, form: Form) -> Result<(), Errno> {
    if let Some((uid, gid)) = owner {
        fchown(file, Some(uid), Some(gid))?;
    }
    let mode = match form {
        Form::Copy => return Ok(()),
        Form::Kept | Form::OwnVolume(..) if entry.kind == EntryKind::Directory => entry.mode | 0o700,
        Form::Kept | Form::OwnVolume(..) | Form::Volume => entry.mode,
    };
    fchmod(file, Mode::from_raw_mode(mode & VOLUME_MODES))
}

/// The path must begin with `name`, unless that is empty, and stay below it.
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
    let is_other = !name.as_os_str().is_empty() && parts.first().map(PathBuf::as_path) != Some(name);
    if is_other || parts.len() > deepest {
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

pub(crate) fn open_target(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::NotFound, || format!("open `{}`", path.display()))
}

pub(crate) fn unpack_at<R: BufRead>(source: R, target: &Path, name: &Path, bounds: Bounds) -> Result<()> {
    unpack(source, open_target(target)?.as_fd(), name, bounds)
}
