//! Finds the directory of an entry inside a tree that the archive may have filled with symlinks. It uses descriptors
//! below one root, never host paths (CVE-2014-9356, CVE-2021-38511, CVE-2025-47290).
//!
//! A symlink in a parent is followed inside the tree, as in Docker and containerd: `lib/x` after `lib -> usr/lib` goes
//! to `usr/lib`.

use super::limits::{Budget, Limits};
use super::path_records::{Implicit, PathRecords};
use crate::error::{Context, Error, Kind, Result};
use crate::image::form::{Form, join, made, open_below, open_child};
use rustix::fs::{AtFlags, FileType, Mode, mkdirat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The kernel's limit of symlinks in one path (path_resolution(7)).
const MOST_HOPS: usize = 40;
/// Archives go depth first, so a few descriptors are enough.
const CACHED: usize = 64;

/// A directory and its real path below the root, without symlinks.
#[derive(Clone)]
pub(super) struct TreeDirectory {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) path: Arc<[u8]>,
}

impl TreeDirectory {
    pub(super) fn child(&self, name: &[u8]) -> Vec<u8> {
        join(&self.path, name)
    }
}

impl AsFd for TreeDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

pub(super) struct Tree {
    root: Arc<OwnedFd>,
    cache: HashMap<Vec<u8>, TreeDirectory>,
    pub(super) records: PathRecords,
    form: Form,
    limits: Limits,
}

impl Tree {
    pub(super) fn new(root: OwnedFd, form: Form, budget: &Arc<Budget>) -> Tree {
        let records = PathRecords::new(Arc::clone(budget));
        Tree { root: Arc::new(root), cache: HashMap::new(), records, form, limits: budget.limits }
    }

    pub(super) fn root(&self) -> TreeDirectory {
        TreeDirectory { directory: Arc::clone(&self.root), path: Arc::from(&b""[..]) }
    }

    /// After a removal or a replacement a cached path may mean another directory.
    pub(super) fn forget(&mut self) {
        self.cache.clear();
    }

    /// Makes missing directories. `path` is normalised.
    pub(super) fn directory(&mut self, path: &[u8]) -> Result<TreeDirectory> {
        if path.is_empty() {
            return Ok(self.root());
        }
        if let Some(place) = self.cache.get(path) {
            return Ok(place.clone());
        }
        let place = match open_below(self.root.as_fd(), path) {
            Ok(directory) => TreeDirectory { directory: Arc::new(directory), path: Arc::from(path) },
            // Missing, or with a symlink or another file in it.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => self.walk(path)?,
            Err(errno) => return Err(errno).failing(Kind::Store, || "open a directory of the layer"),
        };
        if self.cache.len() >= CACHED {
            self.cache.clear();
        }
        self.cache.insert(path.to_vec(), place.clone());
        Ok(place)
    }

    fn walk(&mut self, path: &[u8]) -> Result<TreeDirectory> {
        let mut pending: Vec<Vec<u8>> = components(path).map(<[u8]>::to_vec).rev().collect();
        let mut stack = vec![self.root()];
        let mut hops = 0;
        while let Some(component) = pending.pop() {
            if component == b".." {
                // `..` of the root is the root.
                if stack.len() > 1 {
                    stack.pop();
                }
                continue;
            }
            let Some(here) = stack.last().cloned() else { return Err(Error::new(Kind::Internal, "no root")) };
            let next = here.child(&component);
            self.limits.check_path(&next)?;
            match open_child(here.as_fd(), &component) {
                Ok(directory) => stack.push(TreeDirectory { directory: Arc::new(directory), path: Arc::from(next) }),
                // A link that is not made yet will not be a directory.
                Err(Errno::NOENT) if self.records.is_link(&next) => return Err(not_a_directory(&next)),
                Err(Errno::NOENT) => stack.push(self.make(&here, &component, next, Implicit::Inherits)?),
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let found = statat(here.as_fd(), component.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
                    let found = found.failing(Kind::Store, || "look at a layer's file")?;
                    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                        hops += 1;
                        if hops > MOST_HOPS {
                            return Err(Error::new(Kind::Image, "its path goes through too many symlinks"));
                        }
                        let target = readlinkat(here.as_fd(), component.as_slice(), Vec::new());
                        let target = target.failing(Kind::Store, || "read a layer's symlink")?.into_bytes();
                        if target.first() == Some(&b'/') {
                            stack.truncate(1);
                        }
                        pending.extend(components(&target).map(<[u8]>::to_vec).rev());
                        continue;
                    }
                    if !self.form.is_whiteout(here.as_fd(), &component)? {
                        return Err(not_a_directory(&next));
                    }
                    let removed = rustix::fs::unlinkat(here.as_fd(), component.as_slice(), AtFlags::empty());
                    removed.failing(Kind::Store, || "remove a whiteout")?;
                    self.records.forget_name(&next);
                    let made = self.make(&here, &component, next, Implicit::Fresh)?;
                    // At once: a later entry for it cannot tell that it hides something.
                    self.form.set_opaque(made.as_fd())?;
                    self.records.hide_below(&made.path)?;
                    stack.push(made);
                }
                Err(errno) => return Err(errno).failing(Kind::Store, || "open a directory of the layer"),
            }
        }
        stack.pop().ok_or_else(|| Error::new(Kind::Internal, "no root"))
    }

    /// Private until `finish` sets its mode.
    fn make(&mut self, parent: &TreeDirectory, name: &[u8], path: Vec<u8>, how: Implicit) -> Result<TreeDirectory> {
        mkdirat(parent, name, Mode::RWXU).map_err(made)?;
        let directory = open_child(parent.as_fd(), name).failing(Kind::Store, || "open a directory just made")?;
        self.records.make_implicit(&path, how)?;
        Ok(TreeDirectory { directory: Arc::new(directory), path: Arc::from(path) })
    }
}

fn not_a_directory(path: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(path).escape_debug().to_string();
    Error::new(Kind::Image, format!("its parent `{shown}` is not a directory"))
}

pub(super) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// `""` is the root. Absolute paths are below the root, too. Refuses a path that leaves the root.
pub(super) fn normalise(path: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in components(path) {
        if part != b".." {
            parts.push(part);
        } else if parts.pop().is_none() {
            return Err(Error::new(Kind::Image, "its path leads out of the root"));
        }
    }
    let normalised = parts.join(&b'/');
    limits.check_path(&normalised)?;
    Ok(normalised)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_become_paths_below_the_root_or_are_refused() {
        let rows: &[(&[u8], Option<&[u8]>)] = &[
            (b"./", Some(b"")),
            (b"/", Some(b"")),
            (b"a//b/./c/", Some(b"a/b/c")),
            (b"/etc/passwd", Some(b"etc/passwd")),
            (b"a/../b", Some(b"b")),
            (b"a/..", Some(b"")),
            (b"../a", None),
            (b"a/../../b", None),
            (b"/..", None),
        ];
        for (path, normalised) in rows {
            assert_eq!(normalise(path, &Limits::default()).ok().as_deref(), *normalised);
        }
    }

    proptest! {
        #[test]
        fn a_normalised_path_never_climbs(path in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..64)) {
            if let Ok(normalised) = normalise(&path, &Limits::default()) {
                prop_assert!(components(&normalised).all(|part| part != b".."));
                prop_assert!(!normalised.starts_with(b"/"));
            }
        }
    }
}
