//! Copies files with their data, holes, owner, attributes, mode and times.

use super::form::{Form, Marks, Owners};
use crate::error::{Context, Kind, Result};
use crate::files::{copy_data, times};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags, chmod, chown, fchmod, fchown, fgetxattr, flistxattr,
    fsetxattr, futimens, getxattr, listxattr, mknodat, openat, readlinkat, setxattr, symlinkat, utimensat,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// XATTR_LIST_MAX and XATTR_SIZE_MAX.
const LONGEST: usize = 64 << 10;

/// Not for directories.
pub(crate) fn node(
    from: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
    to: BorrowedFd<'_>,
    new_name: &[u8],
    form: Form,
) -> Result<()> {
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        return regular(from, name, stat, to, new_name, form);
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = readlinkat(from, name, Vec::new()).failing(Kind::Store, || copying(name))?;
            symlinkat(target.as_c_str(), to, new_name).map_err(|errno| failed(errno, name))?;
        }
        kind => {
            mknodat(to, new_name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev).map_err(|errno| failed(errno, name))?;
        }
    }
    let hold = |directory: BorrowedFd<'_>, name: &[u8]| -> Result<OwnedFd> {
        openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .failing(Kind::Store, || copying(name))
    };
    let (source, target) = (magic(hold(from, name)?), magic(hold(to, new_name)?));
    if form.owners == Owners::Image {
        let ids = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        chown(&target.1, Some(ids.0), Some(ids.1)).map_err(|errno| failed(errno, name))?;
    }
    let list = read(|buffer| listxattr(&source.1, buffer)).map_err(|errno| failed(errno, name))?;
    for attribute in kept(&list, form) {
        let value = read(|buffer| getxattr(&source.1, attribute, buffer)).map_err(|errno| failed(errno, name))?;
        setxattr(&target.1, attribute, &value, XattrFlags::empty()).map_err(|errno| failed(errno, name))?;
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        chmod(&target.1, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(|errno| failed(errno, name))?;
    }
    utimensat(to, new_name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| failed(errno, name))
}

fn regular(
    from: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
    to: BorrowedFd<'_>,
    new_name: &[u8],
    form: Form,
) -> Result<()> {
    let source =
        openat(from, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let source = File::from(source.failing(Kind::Store, || copying(name))?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = openat(to, new_name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno, name))?;
    let target = File::from(target);
    copy_data(&source, &target, stat).map_err(|cause| crate::files::failed(cause, copying(name)))?;
    if form.owners == Owners::Image {
        let ids = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        fchown(&target, Some(ids.0), Some(ids.1)).map_err(|errno| failed(errno, name))?;
    }
    attributes(source.as_fd(), target.as_fd(), form)?;
    fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(|errno| failed(errno, name))?;
    capabilities(source.as_fd(), target.as_fd()).map_err(|errno| failed(errno, name))?;
    futimens(&target, &times(stat)).map_err(|errno| failed(errno, name))
}

/// What an image may have, also capabilities, sorted by name.
pub(crate) fn listed(file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    attributes_that(file, |name| {
        name == b"security.capability"
            || name.starts_with(b"user.") && !is_mark(name)
            || name.starts_with(b"system.posix_acl_")
    })
}

/// What hides names of lower layers, sorted by name.
pub(crate) fn marks(file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    attributes_that(file, is_mark)
}

fn is_mark(name: &[u8]) -> bool {
    name.starts_with(b"user.overlay.") || name.starts_with(b"trusted.overlay.")
}

fn attributes_that(file: BorrowedFd<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let all = (|| {
        let list = read(|buffer| flistxattr(file, buffer))?;
        let mut all = Vec::new();
        for name in list.split(|byte| *byte == 0).filter(|name| wanted(name)) {
            all.push((name.to_vec(), read(|buffer| fgetxattr(file, name, buffer))?));
        }
        all.sort();
        Ok::<_, Errno>(all)
    })();
    all.map_err(|errno| crate::files::failed(errno.into(), "read extended attributes".into()))
}

/// What an image may have, without overlayfs's marks.
pub(crate) fn attributes(source: BorrowedFd<'_>, target: BorrowedFd<'_>, form: Form) -> Result<()> {
    let copied = (|| {
        let list = read(|buffer| flistxattr(source, buffer))?;
        for attribute in kept(&list, form) {
            let value = read(|buffer| fgetxattr(source, attribute, buffer))?;
            fsetxattr(target, attribute, &value, XattrFlags::empty())?;
        }
        Ok::<(), Errno>(())
    })();
    copied.map_err(|errno| crate::files::failed(errno.into(), "copy extended attributes".into()))
}

/// Last, since a change of the owner clears capabilities.
fn capabilities(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    match read(|buffer| fgetxattr(source, c"security.capability", buffer)) {
        Ok(value) => fsetxattr(target, c"security.capability", &value, XattrFlags::empty()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn kept(list: &[u8], form: Form) -> impl Iterator<Item = &[u8]> {
    let own: &[u8] = match form.marks {
        Marks::Trusted => b"trusted.overlay.",
        Marks::User => b"user.overlay.",
    };
    list.split(|byte| *byte == 0).filter(move |name| {
        let image = name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
        image && !name.starts_with(own)
    })
}

fn read(get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 512];
    loop {
        match get(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < LONGEST => buffer.resize(LONGEST, 0),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
    }
}

/// The descriptor must outlive the path.
fn magic(held: OwnedFd) -> (OwnedFd, String) {
    let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    (held, path)
}

fn failed(errno: Errno, name: &[u8]) -> crate::error::Error {
    crate::files::failed(errno.into(), copying(name))
}

fn copying(name: &[u8]) -> String {
    format!("copy `{}`", String::from_utf8_lossy(name).escape_debug())
}
