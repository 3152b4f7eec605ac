//! What `finish` must finish, and what hides the layers below.
//!
//! Sorted by path: the paths below a directory are one range. Scans would take hours for a hostile archive of a
//! megabyte.

use super::limits::Budget;
use crate::error::Result;
use crate::image::form::{join, split};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// By real path below the root, without symlinks of this layer.
type Paths<V> = BTreeMap<Vec<u8>, V>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Folder {
    pub(super) mode: u32,
    pub(super) mtime: (i64, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Implicit {
    /// A parent of an entry: it inherits the metadata of the layers below.
    Inherits,
    /// It replaces something that this layer removed, and inherits nothing.
    Fresh,
}

/// A hard link to a name that this layer lacks.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) target: Vec<u8>,
    /// Order in the archive: earlier links determine the meaning of a target.
    turn: u64,
}

pub(super) struct PathRecords {
    implicit: Paths<Implicit>,
    folders: Paths<Folder>,
    opaque: Paths<()>,
    whiteouts: Paths<()>,
    links: Paths<Link>,
    turns: u64,
    budget: Arc<Budget>,
}

impl PathRecords {
    pub(super) fn new(budget: Arc<Budget>) -> PathRecords {
        PathRecords {
            implicit: Paths::new(),
            folders: Paths::new(),
            opaque: Paths::new(),
            whiteouts: Paths::new(),
            links: Paths::new(),
            turns: 0,
            budget,
        }
    }

    pub(super) fn make_implicit(&mut self, path: &[u8], how: Implicit) -> Result<()> {
        self.budget.take_path(path)?;
        self.implicit.insert(path.to_vec(), how);
        Ok(())
    }

    pub(super) fn pop_implicit(&mut self) -> Option<(Vec<u8>, Implicit)> {
        self.implicit.pop_first()
    }

    pub(super) fn has_implicit(&self) -> bool {
        !self.implicit.is_empty()
    }

    /// From an entry or the layers below.
    pub(super) fn set_folder(&mut self, path: Vec<u8>, folder: Folder) -> Result<()> {
        self.implicit.remove(&path);
        if !self.folders.contains_key(&path) {
            self.budget.take_path(&path)?;
        }
        self.folders.insert(path, folder);
        Ok(())
    }

    pub(super) fn has_folder(&self, path: &[u8]) -> bool {
        self.folders.contains_key(path)
    }

    /// Children before their parents.
    pub(super) fn folders_from_below(&self) -> impl Iterator<Item = (&Vec<u8>, &Folder)> {
        self.folders.iter().rev()
    }

    /// Returns whether that is new.
    pub(super) fn hide_below(&mut self, path: &[u8]) -> Result<bool> {
        if self.is_opaque(path) {
            return Ok(false);
        }
        self.budget.take_path(path)?;
        self.opaque.insert(path.to_vec(), ());
        Ok(true)
    }

    pub(super) fn is_opaque(&self, path: &[u8]) -> bool {
        self.opaque.contains_key(path)
    }

    /// The directory inherits nothing if no entry mentions it.
    pub(super) fn replace_below(&mut self, path: &[u8]) -> Result<()> {
        if let Some(how) = self.implicit.get_mut(path) {
            *how = Implicit::Fresh;
        }
        self.hide_below(path).map(drop)
    }

    pub(super) fn add_whiteout(&mut self, path: &[u8]) -> Result<()> {
        self.budget.take_path(path)?;
        self.whiteouts.insert(path.to_vec(), ());
        Ok(())
    }

    pub(super) fn take_whiteouts(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        std::mem::take(&mut self.whiteouts).into_keys()
    }

    pub(super) fn keep_whiteout(&mut self, path: Vec<u8>) {
        self.whiteouts.insert(path, ());
    }

    pub(super) fn forget_whiteout(&mut self, path: &[u8]) {
        self.whiteouts.remove(path);
    }

    pub(super) fn removes(&self) -> bool {
        !self.whiteouts.is_empty() || !self.opaque.is_empty()
    }

    pub(super) fn add_link(&mut self, path: &[u8], target: Vec<u8>) -> Result<()> {
        self.budget.take_path(path)?;
        self.budget.take_path(&target)?;
        self.turns += 1;
        self.links.insert(path.to_vec(), Link { target, turn: self.turns });
        Ok(())
    }

    /// A link to a link has its target.
    pub(super) fn linked_to(&self, path: &[u8]) -> Option<&[u8]> {
        self.links.get(path).map(|link| link.target.as_slice())
    }

    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    pub(super) fn is_link(&self, path: &[u8]) -> bool {
        self.links.contains_key(path)
    }

    pub(super) fn links_in_order(&self) -> Vec<(Vec<u8>, Link)> {
        let mut links: Vec<_> = self.links.iter().map(|(path, link)| (path.clone(), link.clone())).collect();
        links.sort_by_key(|(_, link)| link.turn);
        links
    }

    /// For a name that is made again. Returns whether a whiteout or link was there, which hid what is below.
    pub(super) fn forget_name(&mut self, path: &[u8]) -> bool {
        let removed = self.whiteouts.remove(path).is_some();
        self.links.remove(path).is_some() || removed
    }

    pub(super) fn forget_tree(&mut self, path: &[u8]) {
        self.forget_name(path);
        self.implicit.remove(path);
        self.folders.remove(path);
        self.opaque.remove(path);
        take_below(&mut self.implicit, path);
        take_below(&mut self.folders, path);
        take_below(&mut self.opaque, path);
        take_below(&mut self.whiteouts, path);
        take_below(&mut self.links, path);
    }

    /// Existing records there stay.
    pub(super) fn rename_below(&mut self, old: &[u8], new: &[u8]) {
        rename(&mut self.implicit, old, new, |_, _| {});
        rename(&mut self.folders, old, new, |_, _| {});
        rename(&mut self.opaque, old, new, |_, _| {});
        rename(&mut self.whiteouts, old, new, |_, _| {});
        rename(&mut self.links, old, new, |there, link| {
            if link.turn > there.turn {
                *there = link;
            }
        });
    }

    /// For a directory whose content moved elsewhere. Returns whether it hid what is below.
    pub(super) fn forget_folder(&mut self, path: &[u8]) -> bool {
        self.implicit.remove(path);
        self.folders.remove(path);
        self.opaque.remove(path).is_some()
    }

    pub(super) fn is_hidden(&self, path: &[u8]) -> bool {
        !self.opaque.is_empty() && above(path).any(|parent| self.opaque.contains_key(parent))
    }

    /// Whether this layer has removed a path of the layers below, or its parent.
    pub(super) fn is_removed(&self, path: &[u8]) -> bool {
        let gone = |parent: &[u8]| self.opaque.contains_key(parent) || self.whiteouts.contains_key(parent);
        above(path).any(gone)
    }

    /// Like `is_removed`, or a link of this layer replaces it.
    pub(super) fn is_replaced(&self, path: &[u8]) -> bool {
        let here = |path: &[u8]| self.links.contains_key(path) || self.whiteouts.contains_key(path);
        here(path) || self.is_opaque(path) || above(path).any(here) || self.is_hidden(path)
    }
}

/// The root is last.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = (!path.is_empty()).then_some(path);
    std::iter::from_fn(move || {
        let parent = split(rest?).0;
        rest = (!parent.is_empty()).then_some(parent);
        Some(parent)
    })
}

fn take_below<V>(paths: &mut Paths<V>, path: &[u8]) -> Vec<(Vec<u8>, V)> {
    // `0` is the next byte after `/`.
    let (first, end) = ([path, b"/"].concat(), [path, b"0"].concat());
    let range = (Bound::Included(first.as_slice()), Bound::Excluded(end.as_slice()));
    let below: Vec<Vec<u8>> = paths.range::<[u8], _>(range).map(|(path, _)| path.clone()).collect();
    below.iter().filter_map(|path| paths.remove_entry(path)).collect()
}

fn rename<V>(paths: &mut Paths<V>, old: &[u8], new: &[u8], meet: impl Fn(&mut V, V)) {
    for (path, value) in take_below(paths, old) {
        let renamed = join(new, &path[old.len() + 1..]);
        match paths.entry(renamed) {
            std::collections::btree_map::Entry::Vacant(free) => drop(free.insert(value)),
            std::collections::btree_map::Entry::Occupied(mut there) => meet(there.get_mut(), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::Limits;
    use super::*;

    fn folder() -> Folder {
        Folder { mode: 0o755, mtime: (0, 0) }
    }

    #[test]
    fn above_a_path_are_its_parents_and_the_root() {
        let check = |path: &str, expected: &[&str]| {
            let found: Vec<&[u8]> = above(path.as_bytes()).collect();
            assert_eq!(found, expected.iter().map(|path| path.as_bytes()).collect::<Vec<_>>(), "{path}");
        };
        check("", &[]);
        check("a", &[""]);
        check("a/b/c", &["a/b", "a", ""]);
    }

    #[test]
    fn what_begins_with_the_same_letters_is_not_below() {
        let mut records = PathRecords::new(Budget::new(Limits::default()));
        for path in ["a", "a-b", "a/b", "a/b/c", "a.b", "a0", "b"] {
            records.add_whiteout(path.as_bytes()).unwrap();
            records.set_folder(path.into(), folder()).unwrap();
        }
        records.rename_below(b"a", b"x/y");
        let names = |records: &mut PathRecords| -> Vec<String> {
            records.take_whiteouts().map(|path| String::from_utf8(path).unwrap()).collect()
        };
        assert_eq!(names(&mut records), ["a", "a-b", "a.b", "a0", "b", "x/y/b", "x/y/b/c"]);
        records.forget_tree(b"x/y/b");
        assert!(records.has_folder(b"a") && records.has_folder(b"a0"));
        assert!(!records.has_folder(b"x/y/b") && !records.has_folder(b"x/y/b/c") && !records.has_folder(b"a/b"));
    }

    #[test]
    fn into_the_root_nothing_is_renamed_with_a_slash_before_it() {
        let mut records = PathRecords::new(Budget::new(Limits::default()));
        records.set_folder(b"here/x".to_vec(), folder()).unwrap();
        records.rename_below(b"here", b"");
        assert!(records.has_folder(b"x"));
    }

    #[test]
    fn what_hides_a_path_is_above_it() {
        let mut records = PathRecords::new(Budget::new(Limits::default()));
        records.hide_below(b"o").unwrap();
        records.add_whiteout(b"w").unwrap();
        records.add_link(b"l", b"target".to_vec()).unwrap();
        for (path, hidden, removed, replaced) in [
            ("o", false, false, true),
            ("o/x/y", true, true, true),
            ("ox", false, false, false),
            ("w", false, false, true),
            ("w/x", false, true, true),
            ("l", false, false, true),
            ("l/x", false, false, true),
            ("x", false, false, false),
        ] {
            let path = path.as_bytes();
            let found = (records.is_hidden(path), records.is_removed(path), records.is_replaced(path));
            assert_eq!(found, (hidden, removed, replaced), "{}", String::from_utf8_lossy(path));
        }
        records.hide_below(b"").unwrap();
        assert!(records.is_hidden(b"x") && !records.is_hidden(b""));
    }

    #[test]
    fn the_last_link_of_a_name_counts_and_stands_where_it_was_made() {
        let mut records = PathRecords::new(Budget::new(Limits::default()));
        for (path, target) in [("a", "x"), ("b", "x"), ("d/a", "z"), ("a", "y")] {
            records.add_link(path.as_bytes(), target.into()).unwrap();
        }
        records.rename_below(b"d", b"");
        let links: Vec<_> = records.links_in_order().into_iter().map(|(path, link)| (path, link.target)).collect();
        let wanted = [("b", "x"), ("a", "y")].map(|(path, target)| (path.into(), target.into()));
        assert_eq!(links, wanted);
    }

    /// Scans would need ten thousand million comparisons.
    #[test]
    fn what_is_asked_of_one_path_does_not_go_through_all() {
        let busy = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let before = busy();
        let mut records = PathRecords::new(Budget::new(Limits::default()));
        for n in 0..50_000 {
            records.add_whiteout(format!("w/{n}").as_bytes()).unwrap();
            records.hide_below(format!("o/{n}").as_bytes()).unwrap();
            records.add_link(format!("l{n}/x").as_bytes(), format!("target{n}").into()).unwrap();
        }
        for n in 0..50_000 {
            assert!(!records.is_removed(format!("target{n}").as_bytes()));
            assert!(!records.is_replaced(format!("target{n}").as_bytes()));
            records.rename_below(format!("l{n}").as_bytes(), format!("k{n}").as_bytes());
            records.forget_tree(format!("o/{n}").as_bytes());
        }
        assert!(records.is_link(b"k77/x") && !records.is_opaque(b"o/77"));
        assert!(busy() - before < 20, "{} s", busy() - before);
    }
}
