//! Looking for a command's program in a root that another runtime will put together: what is where, before anything is mounted there.

use super::plan::Ids;
use super::resolve;
use crate::error::Result;
use crate::spec::process::not_executed;
use crate::spec::root::Program;
use rustix::fs::{FileType, Stat, fstat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// As many links in one path as the kernel follows (path_resolution(7)).
const MOST_LINKS: u32 = 40;

/// The root to be.
struct View<'root> {
    /// Where the trees are that it binds.
    cell: BorrowedFd<'root>,
    root: BorrowedFd<'root>,
    /// Its mounts in their order: where, and where their tree is in the cell. `/` is one that the runtime makes.
    points: Vec<(PathBuf, PathBuf)>,
}

/// Refuses a command whose program is not there or cannot be executed, as execvp(3) would. What only the kernel can tell is left to it: a wrong format,
/// a missing interpreter, access by a group or a list.
pub(super) fn check(
    cell: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    points: &[(PathBuf, PathBuf)],
    program: &Program,
    user: Ids,
) -> Result<()> {
    let mut view = View { cell, root, points: Vec::new() };
    for (at, tree) in points {
        // The root's links lead its mounts elsewhere.
        let real = view.find(at).map_or_else(|_| at.clone(), |(real, _)| real);
        view.points.push((real, tree.clone()));
    }
    let mut refusal = Errno::NOENT;
    for place in &program.places {
        match view.find(place).and_then(|(_, status)| status.map_or(Ok(()), |status| executable(&status, user))) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => refusal = errno,
        }
    }
    Err(not_executed(&program.name, refusal))
}

fn executable(status: &Stat, user: Ids) -> std::result::Result<(), Errno> {
    let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    let bits = if status.st_uid == user.uid { 0o100 } else { 0o111 };
    if is_file && status.st_mode & bits != 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

impl View<'_> {
    /// Follows a path to its end: the path without links, and what is there. `None` where only the runtime's own mount can tell.
    fn find(&self, path: &Path) -> std::result::Result<(PathBuf, Option<Stat>), Errno> {
        let mut at = PathBuf::from("/");
        let mut rest = parts(path);
        let mut links = 0;
        let mut found = Some(fstat(self.root)?);
        while let Some(part) = rest.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            let opened =
                match self.points.iter().rev().find_map(|(point, tree)| Some((tree, next.strip_prefix(point).ok()?))) {
                    // The links of /proc and /dev are the kernel's and the runtime's; any other new file system is empty.
                    Some((tree, _))
                        if tree == Path::new("/") && (next.starts_with("/proc") || next.starts_with("/dev")) =>
                    {
                        rest.iter().rev().for_each(|part| at.push(part));
                        return Ok((at, None));
                    }
                    Some((tree, below)) if tree == Path::new("/") && below != Path::new("") => {
                        return Err(Errno::NOENT);
                    }
                    Some((tree, below)) => resolve::itself(self.cell, &tree.join(below))?,
                    None => resolve::itself(self.root, &next)?,
                };
            let status = fstat(&opened)?;
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Symlink if links == MOST_LINKS => return Err(Errno::LOOP),
                FileType::Symlink => {
                    links += 1;
                    let target = PathBuf::from(OsString::from_vec(readlinkat(&opened, "", Vec::new())?.into_bytes()));
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    rest.extend(parts(&target));
                }
                FileType::Directory => (at, found) = (next, Some(status)),
                _ if !rest.is_empty() => return Err(Errno::NOTDIR),
                _ => (at, found) = (next, Some(status)),
            }
        }
        Ok((at, found))
    }
}

/// The components of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let word = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(word).collect()
}
