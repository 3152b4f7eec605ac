//! Finds a command's program in a root that another runtime will assemble.

use crate::error::Result;
use crate::mounts::resolve;
use crate::spec::process::not_executed;
use crate::spec::root::Ids;
use crate::spec::root::Program;
use rustix::fs::{FileType, Stat, fstat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// path_resolution(7).
const MOST_LINKS: u32 = 40;

struct View<'root> {
    /// The parent directory of the trees that `root` binds.
    cell: BorrowedFd<'root>,
    root: BorrowedFd<'root>,
    /// Mount point, and tree in the cell, in order. The runtime makes a mount with the tree `/`.
    points: Vec<(PathBuf, PathBuf)>,
}

/// BINPRM_MAX_RECURSION of linux/fs/exec.c.
const MOST_INTERPRETERS: u32 = 5;
/// Linkers put the headers there. The kernel reads 256 bytes for a script's first line.
const HEAD: usize = 4096;
const FIRST_LINE: usize = 256;

/// Refuses a command as execvp(3) does, also for a program's format or interpreter. The kernel decides the rest: other
/// formats (binfmt_misc), access by a group or an ACL.
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
        match view.executable(place, user, MOST_INTERPRETERS) {
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

/// If it is known (execve(2), elf(5)).
fn interpreter(head: &[u8]) -> std::result::Result<Option<PathBuf>, Errno> {
    let first = &head[..head.len().min(FIRST_LINE)];
    if let Some(line) = first.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| b" \t\0".contains(byte)).filter(|word| !word.is_empty());
        return words.next().map(|word| Some(OsString::from_vec(word.to_vec()).into())).ok_or(Errno::NOEXEC);
    }
    if head.starts_with(b"\x7fELF") {
        return Ok(elf_interpreter(head));
    }
    // The kernel executes no text; it may know other binary formats.
    if first.contains(&0) { Ok(None) } else { Err(Errno::NOEXEC) }
}

/// PT_INTERP of a 64-bit little-endian ELF file, if it is in the head.
fn elf_interpreter(head: &[u8]) -> Option<PathBuf> {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if head.get(4..6)? != [2, 1] {
        return None;
    }
    let (table, entry, count) =
        (usize::try_from(number(32, 8)?).ok()?, number(54, 2)? as usize, number(56, 2)? as usize);
    let at = |index: usize| table.checked_add(index * entry);
    let found = (0..count).filter_map(at).find(|&at| number(at, 4) == Some(INTERPRETER))?;
    let (start, size) = (usize::try_from(number(found + 8, 8)?).ok()?, usize::try_from(number(found + 32, 8)?).ok()?);
    let name = head.get(start..start.checked_add(size)?)?;
    Some(OsString::from_vec(name.split(|&byte| byte == 0).next()?.to_vec()).into())
}

impl View<'_> {
    fn executable(&self, place: &Path, user: Ids, most: u32) -> std::result::Result<(), Errno> {
        let (real, Some(status)) = self.find(place)? else { return Ok(()) };
        executable(&status, user)?;
        match interpreter(&self.head(&real)?)? {
            Some(next) if next.is_absolute() && most > 0 => self.executable(&next, user, most - 1),
            _ => Ok(()),
        }
    }

    fn head(&self, real: &Path) -> std::result::Result<Vec<u8>, Errno> {
        let covered = self.points.iter().rev().find_map(|(point, tree)| Some((tree, real.strip_prefix(point).ok()?)));
        let file = match covered {
            Some((tree, below)) => resolve::regular(self.cell, &tree.join(below))?,
            None => resolve::regular(self.root, real)?,
        };
        let mut head = Vec::with_capacity(HEAD);
        let read = File::from(file).take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO)).map(|_| head)
    }

    /// The path without links, and the file's status; `None` if only the runtime's own mount decides.
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
                    // The kernel and the runtime make the links of /proc and /dev; any other new file system is empty.
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

/// The last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let word = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_told_from_the_beginning_of_a_program() {
        let check = |head: &[u8], expected: std::result::Result<Option<&str>, Errno>| {
            assert_eq!(interpreter(head), expected.map(|path| path.map(PathBuf::from)), "{head:?}");
        };
        check(b"#!/bin/sh\necho", Ok(Some("/bin/sh")));
        check(b"#! \t/usr/bin/env  -S python3\n", Ok(Some("/usr/bin/env")));
        check(b"#!/bin/sh", Ok(Some("/bin/sh")));
        check(b"#!\n/bin/sh", Err(Errno::NOEXEC));
        check(b"echo hello\n", Err(Errno::NOEXEC));
        check(b"", Err(Errno::NOEXEC));
        check(b"MZ\0\x01", Ok(None));
        check(b"\x7fELF", Ok(None));
        let mut elf = vec![0; 176];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[54], elf[56]) = (64, 56, 2); // offset of the headers, size of each, and count
        (elf[120], elf[128], elf[152]) = (3, 164, 8); // the second header: PT_INTERP, its offset and its size
        elf[164..172].copy_from_slice(b"/lib/ld\0");
        check(&elf, Ok(Some("/lib/ld")));
        for length in 6..172 {
            check(&elf[..length], Ok(None));
        }
    }
}
