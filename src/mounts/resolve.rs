//! Opens paths below a container's root with openat2(2).
//!
//! The tree may be hostile: every component can be a symlink to any path. `RESOLVE_IN_ROOT` keeps `..` and absolute
//! links inside, `RESOLVE_NO_MAGICLINKS` refuses `/proc/*/fd` links (kernel 5.6). Callers use the descriptor and never
//! resolve the path again.

use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

pub(super) const NEW_FILE: OFlags =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::WRONLY).union(OFlags::CLOEXEC);

fn inside_root() -> ResolveFlags {
    if weaken::is_off("resolve") { ResolveFlags::empty() } else { ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS }
}

pub(crate) fn open(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    open_as(root, path, OFlags::PATH | OFlags::CLOEXEC)
}

/// Repeats after EAGAIN, which a rename in the tree causes.
pub(crate) fn open_as(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let inside = relative(path);
    let mut tries = 0;
    loop {
        match openat2(root, inside.as_path(), flags, Mode::empty(), inside_root()) {
            Err(Errno::AGAIN) if tries < 64 => tries += 1,
            other => return other.failing(Kind::Mount, || format!("open `{}` in the root", path.display())),
        }
    }
}

/// Does not follow a symlink at the end.
pub(super) fn itself(root: BorrowedFd<'_>, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, relative(path).as_path(), flags, Mode::empty(), inside_root())
}

/// Non-blocking, since the file may have changed since its check.
pub(super) fn regular(root: BorrowedFd<'_>, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat2(root, relative(path).as_path(), flags, Mode::empty(), inside_root())
}

/// Missing parents get 0755; existing directories stay unchanged. The boolean is whether the last component is new.
pub(crate) fn directory(root: BorrowedFd<'_>, path: &Path, mode: u32) -> Result<(OwnedFd, bool)> {
    make_directory(root, path, mode).or_else(|error| match real_path(root, path, &error)? {
        Some(real) => make_directory(root, &real, mode),
        None => Err(error),
    })
}

fn make_directory(root: BorrowedFd<'_>, path: &Path, mode: u32) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(root, relative(path).as_path(), flags, Mode::empty(), inside_root()) {
        Ok(there) => return Ok((there, false)),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, || format!("open `{}` in the root", path.display())),
    }
    let Some(name) = path.components().next_back().and_then(normal) else {
        return Err(Errno::NOENT).failing(Kind::Mount, || format!("open `{}` in the root", path.display()));
    };
    let above = Above::of(root, path)?;
    let new = match mkdirat(&above, Path::new(&name), Mode::from_raw_mode(mode)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno).failing(Kind::Mount, || format!("make `{}` in the root", path.display())),
    };
    // Follow a symlink of the image inside the root.
    Ok((open_as(root, path, flags)?, new))
}

/// The target of a dangling link, inside the root, as in runc. `None` if `path` stays the same, or if `error` does not
/// mean a missing file.
fn real_path(root: BorrowedFd<'_>, path: &Path, error: &Error) -> Result<Option<PathBuf>> {
    /// path_resolution(7).
    const MOST_LINKS: usize = 40;
    if !matches!(error.errno(), Some(libc::ENOENT | libc::EEXIST)) {
        return Ok(None);
    }
    let parts = |path: &Path| path.components().rev().filter_map(normal).collect::<Vec<_>>();
    let (mut left, mut real, mut links) = (parts(path), PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        let next = real.join(name);
        match itself(root, &next).and_then(|found| readlinkat(&found, "", Vec::new())) {
            Ok(target) if links < MOST_LINKS => {
                links += 1;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                left.extend(parts(target));
            }
            Ok(_) => return Err(Errno::LOOP).failing(Kind::Mount, || format!("open `{}` in the root", path.display())),
            Err(_) => real = next,
        }
    }
    Ok((real != path).then_some(real))
}

/// `None` for the root.
pub(super) fn above(path: &Path) -> Option<&Path> {
    path.parent().filter(|above| *above != Path::new("/") && *above != Path::new(""))
}

pub(crate) enum Above<'root> {
    Root(BorrowedFd<'root>),
    Below(OwnedFd),
}

impl<'root> Above<'root> {
    fn of(root: BorrowedFd<'root>, path: &Path) -> Result<Above<'root>> {
        Ok(match above(path) {
            None => Above::Root(root),
            Some(above) => Above::Below(directory(root, above, 0o755)?.0),
        })
    }
}

impl AsFd for Above<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Above::Root(root) => *root,
            Above::Below(directory) => directory.as_fd(),
        }
    }
}

/// The directory is made if missing.
pub(crate) fn parent<'root>(root: BorrowedFd<'root>, path: &Path) -> Result<(Above<'root>, PathBuf)> {
    let name = path.file_name().map(PathBuf::from).ok_or_else(|| {
        Error::new(Kind::Mount, "a path with a last component is needed").doing(format!("open `{}`", path.display()))
    })?;
    Ok((Above::of(root, path)?, name))
}

/// A missing file is made empty.
pub(crate) fn target(root: BorrowedFd<'_>, path: &Path, kind: FileType) -> Result<OwnedFd> {
    if kind == FileType::Directory {
        return Ok(directory(root, path, 0o755)?.0);
    }
    match openat2(root, relative(path).as_path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside_root()) {
        Err(Errno::NOENT) => {}
        other => return other.failing(Kind::Mount, || format!("open `{}` in the root", path.display())),
    }
    make_file(root, path).or_else(|error| match real_path(root, path, &error)? {
        Some(real) => make_file(root, &real),
        None => Err(error),
    })?;
    open(root, path)
}

fn make_file(root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let (directory, name) = parent(root, path)?;
    rustix::fs::openat(&directory, name.as_path(), NEW_FILE, Mode::from_raw_mode(0o644))
        .failing(Kind::Mount, || format!("make the mount point `{}`", path.display()))
        .map(drop)
}

pub(crate) fn host_directory(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Mount, || format!("open `{}`", path.display()))
}

pub(crate) fn file_type(descriptor: impl AsFd) -> Result<FileType> {
    let status = rustix::fs::fstat(descriptor).failing(Kind::Mount, || "read a file's type")?;
    Ok(FileType::from_raw_mode(status.st_mode))
}

/// The form of openat2: relative, and `.` for the root itself.
fn relative(path: &Path) -> PathBuf {
    let inside: PathBuf = path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
    if inside.as_os_str().is_empty() { PathBuf::from(".") } else { inside }
}

fn normal(part: Component<'_>) -> Option<std::ffi::OsString> {
    match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    pub(in crate::mounts) fn tree() -> (tempfile::TempDir, OwnedFd) {
        let outside = tempfile::tempdir().unwrap();
        std::fs::create_dir(outside.path().join("root")).unwrap();
        let root = std::fs::File::open(outside.path().join("root")).unwrap();
        (outside, root.into())
    }

    #[test]
    fn a_link_out_of_the_root_stays_inside() {
        let (outside, root) = tree();
        std::fs::create_dir(outside.path().join("victim")).unwrap();
        symlink("../victim", outside.path().join("root/dots")).unwrap();
        symlink(outside.path().join("victim"), outside.path().join("root/absolute")).unwrap();
        for link in ["/dots/made", "/absolute/made"] {
            directory(root.as_fd(), Path::new(link), 0o755).unwrap();
        }
        assert!(outside.path().join("root/victim/made").is_dir());
        assert_eq!(std::fs::read_dir(outside.path().join("victim")).unwrap().count(), 0);
    }

    #[test]
    fn missing_parents_are_made_and_a_file_target_is_empty() {
        let (outside, root) = tree();
        target(root.as_fd(), Path::new("/a/b/file"), FileType::RegularFile).unwrap();
        assert_eq!(std::fs::metadata(outside.path().join("root/a/b/file")).unwrap().len(), 0);
        assert!(directory(root.as_fd(), Path::new("/a/b"), 0o755).is_ok_and(|(_, new)| !new));
    }

    #[test]
    fn a_magic_link_is_refused() {
        let root: OwnedFd = std::fs::File::open("/proc").unwrap().into();
        assert!(open(root.as_fd(), Path::new("/self/exe")).is_err());
    }
}
