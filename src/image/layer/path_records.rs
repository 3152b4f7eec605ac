//! What is known of a layer's paths beside the tree itself: what `settle` must finish, and what hides the layers below.
//!
//! All of it is kept by path and in order, so that what lies below a directory is one range, and what lies above it as many
//! looks as the path is deep. Whoever went through everything for each entry would take hours for an archive of a megabyte.
//! Not here: the marks on disk, which whoever tells of something here has made or makes.

use super::limits::Budget;
use crate::error::Result;
use crate::image::form::{join, split};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Real paths below the root, without symlinks of this layer, and what is known of each.
type Paths<V> = BTreeMap<Vec<u8>, V>;

/// Mode and time of a directory, set when nothing will be written into it any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folder {
    pub(super) mode: u32,
    pub(super) mtime: (i64, u32),
}

/// How a directory that no entry mentions came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Implicit {
    /// Only on the way to something: its metadata are those of the layers below.
    Inherits,
    /// In place of something that this layer removed: nothing is inherited.
    Fresh,
}

/// A hard link to a name that this layer does not have.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// The name that it is linked to.
    pub(super) target: Vec<u8>,
    /// Its place among all links: what a target meant when the link was made depends on those before.
    turn: u64,
}

/// Everything that is known of one layer's paths.
pub(super) struct Known {
    implicit: Paths<Implicit>,
    folders: Paths<Folder>,
    /// Directories that hide what is below.
    opaque: Paths<()>,
    whiteouts: Paths<()>,
    links: Paths<Link>,
    turns: u64,
    budget: Arc<Budget>,
}

impl Known {
    pub(super) fn new(budget: Arc<Budget>) -> Known {
        Known {
            implicit: Paths::new(),
            folders: Paths::new(),
            opaque: Paths::new(),
            whiteouts: Paths::new(),
            links: Paths::new(),
            turns: 0,
            budget,
        }
    }

    /// A directory was made that no entry mentions.
    pub(super) fn make_implicit(&mut self, path: &[u8], how: Implicit) -> Result<()> {
        self.budget.take_path(path)?;
        self.implicit.insert(path.to_vec(), how);
        Ok(())
    }

    /// The first directory by name of which no entry has said anything; it is not implicit any more.
    pub(super) fn pop_implicit(&mut self) -> Option<(Vec<u8>, Implicit)> {
        self.implicit.pop_first()
    }

    pub(super) fn has_implicit(&self) -> bool {
        !self.implicit.is_empty()
    }

    /// An entry, or the layers below, say what a directory is.
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

    /// All directories, those inside another before it.
    pub(super) fn folders_from_below(&self) -> impl Iterator<Item = (&Vec<u8>, &Folder)> {
        self.folders.iter().rev()
    }

    /// A directory hides what is below; whether that is news.
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

    /// A directory hides what is below, and if nothing else has said what it is, it has nothing of it either.
    pub(super) fn replace_below(&mut self, path: &[u8]) -> Result<()> {
        if let Some(how) = self.implicit.get_mut(path) {
            *how = Implicit::Fresh;
        }
        self.hide_below(path).map(drop)
    }

    /// There is a whiteout at a name.
    pub(super) fn add_whiteout(&mut self, path: &[u8]) -> Result<()> {
        self.budget.take_path(path)?;
        self.whiteouts.insert(path.to_vec(), ());
        Ok(())
    }

    pub(super) fn take_whiteouts(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        std::mem::take(&mut self.whiteouts).into_keys()
    }

    /// Puts back one that stays.
    pub(super) fn keep_whiteout(&mut self, path: Vec<u8>) {
        self.whiteouts.insert(path, ());
    }

    pub(super) fn forget_whiteout(&mut self, path: &[u8]) {
        self.whiteouts.remove(path);
    }

    /// Whether anything of the layers below is removed.
    pub(super) fn removes(&self) -> bool {
        !self.whiteouts.is_empty() || !self.opaque.is_empty()
    }

    /// A name is to be linked to one of the layers below.
    pub(super) fn add_link(&mut self, path: &[u8], target: Vec<u8>) -> Result<()> {
        self.budget.take_path(path)?;
        self.budget.take_path(&target)?;
        self.turns += 1;
        self.links.insert(path.to_vec(), Link { target, turn: self.turns });
        Ok(())
    }

    /// What a name is to be linked to: a link to it is one to that.
    pub(super) fn linked_to(&self, path: &[u8]) -> Option<&[u8]> {
        self.links.get(path).map(|link| link.target.as_slice())
    }

    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    pub(super) fn is_link(&self, path: &[u8]) -> bool {
        self.links.contains_key(path)
    }

    /// All links with their names, in the order of the archive.
    pub(super) fn links_in_order(&self) -> Vec<(Vec<u8>, Link)> {
        let mut links: Vec<_> = self.links.iter().map(|(path, link)| (path.clone(), link.clone())).collect();
        links.sort_by_key(|(_, link)| link.turn);
        links
    }

    /// A name is made again: whether it was a whiteout or a link until now, which hide what is below as well.
    pub(super) fn forget_name(&mut self, path: &[u8]) -> bool {
        let removed = self.whiteouts.remove(path).is_some();
        self.links.remove(path).is_some() || removed
    }

    /// A directory is removed with everything in it.
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

    /// What was in the directory `old` is in `new` now. What is known of a path there already stays.
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

    /// Nothing is said of a directory itself any more: it is gone, and what was in it is elsewhere. Whether it hid what is
    /// below.
    pub(super) fn forget_folder(&mut self, path: &[u8]) -> bool {
        self.implicit.remove(path);
        self.folders.remove(path);
        self.opaque.remove(path).is_some()
    }

    /// Whether a directory above hides what the layers below have at a path.
    pub(super) fn is_hidden(&self, path: &[u8]) -> bool {
        !self.opaque.is_empty() && above(path).any(|parent| self.opaque.contains_key(parent))
    }

    /// Whether this layer has removed what the layers below have at a path, or a directory above it.
    pub(super) fn is_removed(&self, path: &[u8]) -> bool {
        let gone = |parent: &[u8]| self.opaque.contains_key(parent) || self.whiteouts.contains_key(parent);
        above(path).any(gone)
    }

    /// The same, or whether it has put a link there.
    pub(super) fn is_replaced(&self, path: &[u8]) -> bool {
        let here = |path: &[u8]| self.links.contains_key(path) || self.whiteouts.contains_key(path);
        here(path) || self.is_opaque(path) || above(path).any(here) || self.is_hidden(path)
    }
}

/// The directories above a path, the nearest first, the root last.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = (!path.is_empty()).then_some(path);
    std::iter::from_fn(move || {
        let parent = split(rest?).0;
        rest = (!parent.is_empty()).then_some(parent);
        Some(parent)
    })
}

fn take_below<V>(paths: &mut Paths<V>, path: &[u8]) -> Vec<(Vec<u8>, V)> {
    // All that begin with the path and a slash: before the path and the byte that follows it.
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
        let mut known = Known::new(Budget::new(Limits::default()));
        for path in ["a", "a-b", "a/b", "a/b/c", "a.b", "a0", "b"] {
            known.add_whiteout(path.as_bytes()).unwrap();
            known.set_folder(path.into(), folder()).unwrap();
        }
        known.rename_below(b"a", b"x/y");
        let names = |known: &mut Known| -> Vec<String> {
            known.take_whiteouts().map(|path| String::from_utf8(path).unwrap()).collect()
        };
        assert_eq!(names(&mut known), ["a", "a-b", "a.b", "a0", "b", "x/y/b", "x/y/b/c"]);
        known.forget_tree(b"x/y/b");
        assert!(known.has_folder(b"a") && known.has_folder(b"a0"));
        assert!(!known.has_folder(b"x/y/b") && !known.has_folder(b"x/y/b/c") && !known.has_folder(b"a/b"));
    }

    #[test]
    fn into_the_root_nothing_is_renamed_with_a_slash_before_it() {
        let mut known = Known::new(Budget::new(Limits::default()));
        known.set_folder(b"here/x".to_vec(), folder()).unwrap();
        known.rename_below(b"here", b"");
        assert!(known.has_folder(b"x"));
    }

    #[test]
    fn what_hides_a_path_is_above_it() {
        let mut known = Known::new(Budget::new(Limits::default()));
        known.hide_below(b"o").unwrap();
        known.add_whiteout(b"w").unwrap();
        known.add_link(b"l", b"target".to_vec()).unwrap();
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
            let found = (known.is_hidden(path), known.is_removed(path), known.is_replaced(path));
            assert_eq!(found, (hidden, removed, replaced), "{}", String::from_utf8_lossy(path));
        }
        known.hide_below(b"").unwrap();
        assert!(known.is_hidden(b"x") && !known.is_hidden(b""));
    }

    #[test]
    fn the_last_link_of_a_name_counts_and_stands_where_it_was_made() {
        let mut known = Known::new(Budget::new(Limits::default()));
        for (path, target) in [("a", "x"), ("b", "x"), ("d/a", "z"), ("a", "y")] {
            known.add_link(path.as_bytes(), target.into()).unwrap();
        }
        known.rename_below(b"d", b"");
        let links: Vec<_> = known.links_in_order().into_iter().map(|(path, link)| (path, link.target)).collect();
        let wanted = [("b", "x"), ("a", "y")].map(|(path, target)| (path.into(), target.into()));
        assert_eq!(links, wanted);
    }

    /// Fifty thousand of each kind, and four questions of each: through all of them that would be ten thousand million looks.
    #[test]
    fn what_is_asked_of_one_path_does_not_go_through_all() {
        let busy = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let before = busy();
        let mut known = Known::new(Budget::new(Limits::default()));
        for n in 0..50_000 {
            known.add_whiteout(format!("w/{n}").as_bytes()).unwrap();
            known.hide_below(format!("o/{n}").as_bytes()).unwrap();
            known.add_link(format!("l{n}/x").as_bytes(), format!("target{n}").into()).unwrap();
        }
        for n in 0..50_000 {
            assert!(!known.is_removed(format!("target{n}").as_bytes()));
            assert!(!known.is_replaced(format!("target{n}").as_bytes()));
            known.rename_below(format!("l{n}").as_bytes(), format!("k{n}").as_bytes());
            known.forget_tree(format!("o/{n}").as_bytes());
        }
        assert!(known.is_link(b"k77/x") && !known.is_opaque(b"o/77"));
        assert!(busy() - before < 20, "{} s", busy() - before);
    }
}
