//! The changes as a patch for `git apply` and `patch -p1`, in git's format.
//!
//! The result counts what a patch cannot express: directories, binary files, changed bases.
//! Never: git itself, which would run what the tree configures.

use super::binary;
use super::copy;
use super::hunks;
use super::path::TreePath;
use super::record::{Base, Changes, Content, Entry, Node};
use super::store::{BASES, Store};
use super::tree;
use crate::error::{Context, Kind, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Larger files are not compared: both sides are in memory.
pub(in crate::task) const LARGEST_TEXT: u64 = 16 << 20;
/// Time for one file's lines; then the rest is replaced as one block.
const FILE_TIME: Duration = Duration::from_secs(2);
const PATCH_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiffOptions {
    /// Include `.git`, for reading only: `git apply` refuses it.
    pub(crate) include_git: bool,
    pub(crate) binary: Binary,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Binary {
    /// `Binary files a/x and b/x differ`, for reading. `patch` skips it, `git apply` refuses the patch.
    #[default]
    Note,
    /// git's `GIT binary patch` with the whole content: `git apply` makes the same file, `patch` skips it.
    Literal,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Diffed {
    /// Files and links in the patch.
    pub(crate) files: usize,
    /// Files with a note only: binary, or too large to compare.
    pub(crate) noted: Vec<TreePath>,
    /// Left out: their base has changed since the collection.
    pub(crate) base_changed: Vec<TreePath>,
    /// Their base has changed since, so the kept copy of the base is compared.
    pub(crate) edited_since: Vec<TreePath>,
    /// The user edited their base while the agent ran. They are compared with that edit, which the agent may not have
    /// seen.
    pub(crate) edited_meanwhile: Vec<TreePath>,
    /// Files left out for `.git`.
    pub(crate) in_git: usize,
}

struct Side {
    /// `100644`, `100755` or `120000`.
    mode: &'static str,
    content: Body,
}

enum Body {
    Bytes(Vec<u8>),
    TooLarge,
}

enum Reading {
    Absent,
    There(Side),
    Changed,
}

/// `into` is the directory that [`super::collect()`] wrote.
pub(crate) fn diff(
    changes: &Changes,
    into: &Path,
    lower: Option<BorrowedFd<'_>>,
    options: DiffOptions,
    out: &mut impl Write,
) -> Result<Diffed> {
    let store = Store::open(into)?;
    // Older records have no kept bases.
    let bases = Store::open_at(into, BASES).ok();
    let mut diffed = Diffed::default();
    let end = Instant::now() + PATCH_TIME;
    for entry in &changes.entries {
        if entry.path.is_in_git() && !options.include_git {
            diffed.in_git += 1;
            continue;
        }
        let step = || format!("compare `{}`", entry.path);
        let old = match (old_side(entry, lower).failing(Kind::Workspace, step)?, &bases) {
            (Reading::Changed, Some(bases)) => {
                let kept = kept_side(entry, bases).failing(Kind::Store, step)?;
                if let Reading::There(_) = kept {
                    diffed.edited_since.push(entry.path.clone());
                }
                kept
            }
            (old, _) => old,
        };
        let new = new_side(entry, &store).failing(Kind::Store, step)?;
        let (old, new) = match (old, new) {
            (Reading::Changed, _) | (_, Reading::Changed) => {
                diffed.base_changed.push(entry.path.clone());
                continue;
            }
            (old, new) => (old.side(), new.side()),
        };
        let mut patch = Patch {
            path: &entry.path,
            binary: options.binary,
            deadline: end.min(Instant::now() + FILE_TIME),
            noted: false,
        };
        let written = patch.write(old.as_ref(), new.as_ref(), out).failing(Kind::Store, || "write the patch")?;
        diffed.files += usize::from(written);
        if written && entry.base_is_newer {
            diffed.edited_meanwhile.push(entry.path.clone());
        }
        if patch.noted {
            diffed.noted.push(entry.path.clone());
        }
    }
    Ok(diffed)
}

impl Reading {
    fn side(self) -> Option<Side> {
        if let Reading::There(side) = self { Some(side) } else { None }
    }
}

fn regular(mode: u32) -> &'static str {
    if mode & 0o100 != 0 { "100755" } else { "100644" }
}

fn read(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn new_side(entry: &Entry, store: &Store) -> io::Result<Reading> {
    let side = match &entry.now {
        None | Some(Node::Directory { .. }) => return Ok(Reading::Absent),
        Some(Node::Symlink { target }) => Side { mode: "120000", content: Body::Bytes(target.0.clone()) },
        Some(Node::File { mode, size, .. }) if *size > LARGEST_TEXT => {
            Side { mode: regular(*mode), content: Body::TooLarge }
        }
        Some(Node::File { mode, size, .. }) => {
            let file = store.file(&entry.path)?;
            Side { mode: regular(*mode), content: Body::Bytes(read(&file, *size)?) }
        }
    };
    Ok(Reading::There(side))
}

/// The base, if it has the recorded digest.
fn old_side(entry: &Entry, lower: Option<BorrowedFd<'_>>) -> io::Result<Reading> {
    let (mode, size, content) = match &entry.base {
        None | Some(Base::Directory { .. } | Base::Other) => return Ok(Reading::Absent),
        Some(Base::Symlink { target }) => {
            return Ok(Reading::There(Side { mode: "120000", content: Body::Bytes(target.0.clone()) }));
        }
        Some(Base::File { mode, size, content }) => (*mode, *size, content),
    };
    let Content::Sha256(expected) = content else {
        return Ok(Reading::There(Side { mode: regular(mode), content: Body::TooLarge }));
    };
    let Some(lower) = lower else { return Ok(Reading::Changed) };
    let opened = tree::parent(lower, &entry.path).and_then(|parent| tree::file(parent.as_fd(), entry.path.name()));
    // Removed, replaced by a link, or unreadable.
    let Ok((file, status)) = opened else { return Ok(Reading::Changed) };
    if tree::size(&status) != size {
        return Ok(Reading::Changed);
    }
    if size > LARGEST_TEXT {
        return Ok(Reading::There(Side { mode: regular(mode), content: Body::TooLarge }));
    }
    let bytes = read(&file, size)?;
    let is_base = copy::digest_of(&bytes) == *expected;
    Ok(if is_base {
        Reading::There(Side { mode: regular(mode), content: Body::Bytes(bytes) })
    } else {
        Reading::Changed
    })
}

/// The kept base, unless it is missing or differs from the record.
fn kept_side(entry: &Entry, bases: &Store) -> io::Result<Reading> {
    let Some(Base::File { mode, size, content: Content::Sha256(expected) }) = &entry.base else {
        return Ok(Reading::Changed);
    };
    let Ok(file) = bases.file(&entry.path) else { return Ok(Reading::Changed) };
    let bytes = read(&file, *size)?;
    if copy::digest_of(&bytes) != *expected {
        return Ok(Reading::Changed);
    }
    Ok(Reading::There(Side { mode: regular(*mode), content: Body::Bytes(bytes) }))
}

struct Patch<'a> {
    path: &'a TreePath,
    binary: Binary,
    deadline: Instant,
    noted: bool,
}

impl Patch<'_> {
    /// `false` if a patch cannot express the difference.
    fn write(&mut self, old: Option<&Side>, new: Option<&Side>, out: &mut impl Write) -> io::Result<bool> {
        match (old, new) {
            (None, None) => return Ok(false),
            // For git, a file that becomes a link, or the reverse, is two changes.
            (Some(old), Some(new)) if (old.mode == "120000") != (new.mode == "120000") => {
                self.write_one(Some(old), None, out)?;
                self.write_one(None, Some(new), out)?;
            }
            (Some(old), Some(new)) if old.mode == new.mode && old.is_same_text(new) => return Ok(false),
            (old, new) => self.write_one(old, new, out)?,
        }
        Ok(true)
    }

    fn write_one(&mut self, old: Option<&Side>, new: Option<&Side>, out: &mut impl Write) -> io::Result<()> {
        let (a, b) = (quoted(b"a/", self.path), quoted(b"b/", self.path));
        out.write_all(&[b"diff --git ", &a[..], b" ", &b[..], b"\n"].concat())?;
        match (old, new) {
            (None, Some(new)) => writeln!(out, "new file mode {}", new.mode)?,
            (Some(old), None) => writeln!(out, "deleted file mode {}", old.mode)?,
            (Some(old), Some(new)) if old.mode != new.mode => {
                writeln!(out, "old mode {}\nnew mode {}", old.mode, new.mode)?
            }
            _ => {}
        }
        let empty: &[u8] = b"";
        let (before, after) = match (old.map_or(Some(empty), Side::bytes), new.map_or(Some(empty), Side::bytes)) {
            // A mode change, or an empty file added or removed, has no hunk: `patch` needs the blobs' names.
            (Some(before), Some(after)) if before == after => {
                return if old.is_some() && new.is_some() {
                    Ok(())
                } else {
                    write_index(old, new, old.map(|_| before), new.map(|_| after), out)
                };
            }
            (Some(before), Some(after)) => (before, after),
            _ => return self.write_note(old.is_some(), new.is_some(), (&a, &b), out),
        };
        let (was, is) = (old.map(|_| before), new.map(|_| after));
        if !is_text(before) || !is_text(after) {
            return match self.binary {
                Binary::Note => self.write_note(old.is_some(), new.is_some(), (&a, &b), out),
                Binary::Literal => {
                    write_index(old, new, was, is, out)?;
                    binary::write(before, after, out)
                }
            };
        }
        write_index(old, new, was, is, out)?;
        // git writes a tab after a name with a space, to mark its end; a quoted name needs none.
        let a = if old.is_some() { a } else { b"/dev/null".to_vec() };
        let b = if new.is_some() { b } else { b"/dev/null".to_vec() };
        out.write_all(&[b"--- ", &a[..], b"\n+++ ", &b[..], b"\n"].concat())?;
        hunks::write(before, after, self.deadline, out)
    }

    fn write_note(&mut self, was: bool, is: bool, names: (&[u8], &[u8]), out: &mut impl Write) -> io::Result<()> {
        self.noted = true;
        let null: &[u8] = b"/dev/null";
        let (a, b) = (if was { names.0 } else { null }, if is { names.1 } else { null });
        out.write_all(&[b"Binary files ", a, b" and ", b, b" differ\n"].concat())
    }
}

/// Includes an unchanged mode: `patch` recognises a link by it.
fn write_index(
    old: Option<&Side>,
    new: Option<&Side>,
    before: Option<&[u8]>,
    after: Option<&[u8]>,
    out: &mut impl Write,
) -> io::Result<()> {
    write!(out, "index {}..{}", binary::blob(before), binary::blob(after))?;
    match (old, new) {
        (Some(old), Some(new)) if old.mode == new.mode => writeln!(out, " {}", new.mode),
        _ => writeln!(out),
    }
}

impl Side {
    fn bytes(&self) -> Option<&[u8]> {
        if let Body::Bytes(bytes) = &self.content { Some(bytes) } else { None }
    }

    fn is_same_text(&self, other: &Side) -> bool {
        self.bytes().is_some() && self.bytes() == other.bytes()
    }
}

/// git looks for a NUL in the first 8000 bytes only; `patch` needs all.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0)
}

/// As git writes it: quoted with C escapes if it has a quote, a backslash or a byte outside printable ASCII. Unlike
/// git, quotes names with a space: without hunks `patch` ends an unquoted name there.
fn quoted(prefix: &[u8], path: &TreePath) -> Vec<u8> {
    let whole = [prefix, path.as_bytes()].concat();
    if whole.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')) {
        return whole;
    }
    let mut quoted = vec![b'"'];
    for byte in whole {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            b'\n' => quoted.extend(b"\\n"),
            b'\t' => quoted.extend(b"\\t"),
            b' '..=b'~' => quoted.push(byte),
            other => quoted.extend(format!("\\{other:03o}").bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}
