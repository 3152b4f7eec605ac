//! Selects changes to show, export or apply.
//!
//! The selected entries can be applied alone, and the others later. A new directory stays with its selected contents; a
//! directory is removed only with all its contents.

use super::path::{TreePath, unescape};
use super::record::{Base, Changes, Entry, Node};
use super::tree;
use crate::error::{Error, Kind, Result};
use crate::files::Patterns;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const LISTED: usize = 20;

/// A selection of a task's changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Files and folders from the workspace's root (also in a list's form), or patterns of gitignore(5). Empty: all.
    pub paths: Vec<OsString>,
    /// Patterns of gitignore(5), relative to the workspace's root.
    pub exclude: Vec<String>,
}

enum Matcher {
    Below(Vec<u8>),
    Pattern(Patterns),
}

impl Selection {
    /// Removes the other entries, and returns their number outside of `.git`. A path without a match is an error.
    pub(crate) fn apply(&self, changes: &mut Changes) -> Result<usize> {
        let exclude = Patterns::of_flag("--exclude", &self.exclude)?;
        let mut selected = vec![self.paths.is_empty(); changes.entries.len()];
        let mut unmatched = Vec::new();
        for given in &self.paths {
            match Matcher::of(given.as_bytes(), changes) {
                Some(matcher) => {
                    for (entry, is) in changes.entries.iter().zip(&mut selected) {
                        *is |= matcher.matches(entry);
                    }
                }
                None => unmatched.push(format!("`{}`", super::escape(given.as_bytes()))),
            }
        }
        if !unmatched.is_empty() {
            return Err(no_match(&unmatched));
        }
        for (entry, is) in changes.entries.iter().zip(&mut selected) {
            *is &= !is_matched(&exclude, entry);
        }
        add_directories(changes, &mut selected);
        keep_directories(changes, &mut selected);
        let before = changes.entries.iter().filter(|entry| !entry.path.is_in_git()).count();
        let mut selected = selected.into_iter();
        changes.entries.retain(|_| selected.next().unwrap_or_default());
        Ok(before - changes.entries.iter().filter(|entry| !entry.path.is_in_git()).count())
    }
}

impl Matcher {
    /// A path among the changes is that path, even if it looks like a pattern.
    fn of(given: &[u8], changes: &Changes) -> Option<Matcher> {
        let plain = |bytes: &[u8]| {
            let bytes = bytes.strip_prefix(b"./").unwrap_or(bytes);
            let below = Matcher::Below(bytes.strip_suffix(b"/").unwrap_or(bytes).to_vec());
            changes.entries.iter().any(|entry| below.matches(entry)).then_some(below)
        };
        let text = std::str::from_utf8(given).ok();
        let pattern = |line| {
            let pattern = Matcher::Pattern(Patterns::parse([line].into_iter()).ok()?);
            changes.entries.iter().any(|entry| pattern.matches(entry)).then_some(pattern)
        };
        plain(given).or_else(|| plain(&unescape(text?)?)).or_else(|| pattern(text?))
    }

    fn matches(&self, entry: &Entry) -> bool {
        match self {
            Matcher::Below(path) if matches!(&path[..], b"" | b".") => true,
            Matcher::Below(path) => {
                let rest = entry.path.as_bytes().strip_prefix(&path[..]);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            Matcher::Pattern(pattern) => is_matched(pattern, entry),
        }
    }
}

/// As in git, also by a directory above the path.
fn is_matched(patterns: &Patterns, entry: &Entry) -> bool {
    let is_directory =
        matches!(entry.now, Some(Node::Directory { .. })) || matches!(entry.base, Some(Base::Directory { .. }));
    let mut above: Vec<_> = std::iter::successors(entry.path.parent(), TreePath::parent).collect();
    above.reverse();
    let matches = |path: &TreePath, is_directory| patterns.matches(tree::name_path(path.as_bytes()), is_directory);
    above.iter().any(|path| matches(path, true)) || matches(&entry.path, is_directory)
}

fn add_directories(changes: &Changes, selected: &mut [bool]) {
    for index in 0..selected.len() {
        if !selected[index] || changes.entries[index].now.is_none() {
            continue;
        }
        for above in std::iter::successors(changes.entries[index].path.parent(), TreePath::parent) {
            let Ok(at) = changes.entries.binary_search_by(|entry| entry.path.cmp(&above)) else { continue };
            let entry = &changes.entries[at];
            let was = matches!(entry.base, Some(Base::Directory { .. }));
            selected[at] |= !was && matches!(entry.now, Some(Node::Directory { .. }));
        }
    }
}

/// A directory with deselected contents stays.
fn keep_directories(changes: &Changes, selected: &mut [bool]) {
    // Deepest first: a directory that stays keeps its parents.
    for index in (0..selected.len()).rev() {
        let entry = &changes.entries[index];
        if !selected[index] || !entry.removes_directory() {
            continue;
        }
        let start = [entry.path.as_bytes(), b"/"].concat();
        let first = changes.entries.partition_point(|each| each.path.as_bytes() < &start[..]);
        let below = changes.entries[first..].iter().take_while(|each| each.path.as_bytes().starts_with(&start)).count();
        selected[index] = selected[first..first + below].iter().all(|is| *is);
    }
}

fn no_match(paths: &[String]) -> Error {
    let more = paths.len().saturating_sub(LISTED);
    let mut words = paths[..paths.len() - more].join(", ");
    if more > 0 {
        words.push_str(&format!(" and {more} more"));
    }
    let verb = if paths.len() == 1 { "matches" } else { "match" };
    Error::new(Kind::Usage, format!("{words} {verb} no change of the task"))
        .hint("list the paths from the workspace's root: brig task diff ID --stat")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::output::changes::lab::listing;
    use crate::task::output::changes::path::Raw;

    /// `+path` is new, `-path` deleted, `~path` modified; a slash at the end means a directory.
    fn changes(paths: &[&str]) -> Changes {
        let entry = |text: &&str| {
            let (sign, path) = text.split_at(1);
            let is_directory = path.ends_with('/');
            let path = TreePath::new(path.trim_end_matches('/')).unwrap();
            let now = || match is_directory {
                true => Node::Directory { mode: 0o755 },
                false => Node::Symlink { target: Raw(b"now".to_vec()) },
            };
            let base = || match is_directory {
                true => Base::Directory { mode: 0o700 },
                false => Base::Symlink { target: Raw(b"base".to_vec()) },
            };
            Entry { path, now: (sign != "-").then(now), base: (sign != "+").then(base), base_is_newer: false }
        };
        let mut changes = Changes { entries: paths.iter().map(entry).collect(), ..Changes::default() };
        changes.entries.sort_by(|one, other| one.path.cmp(&other.path));
        changes
    }

    const ALL: &[&str] = &[
        "+new/",
        "+new/deep/",
        "+new/deep/a.rs",
        "+new/b.txt",
        "-old/",
        "-old/x",
        "-old/y",
        "~src/main.rs",
        "~src/main.rsx",
        "~a*b",
        "~axb",
        "~top.txt",
        "+.git/hooks/x",
        "~mode/",
        "+mode/n",
    ];

    fn select(paths: &[&str], exclude: &[&str]) -> std::result::Result<(Vec<String>, usize), String> {
        let selection = Selection {
            paths: paths.iter().map(OsString::from).collect(),
            exclude: exclude.iter().map(ToString::to_string).collect(),
        };
        let mut changes = changes(ALL);
        let left = selection.apply(&mut changes).map_err(|error| error.to_string())?;
        let path = |line: &String| line.split(' ').nth(1).unwrap().to_owned();
        Ok((listing(&changes).iter().map(path).collect(), left))
    }

    #[test]
    fn only_the_given_paths_are_selected() {
        let check = |paths: &[&str], exclude: &[&str], expected: &[&str]| {
            let (found, left) = select(paths, exclude).unwrap();
            assert_eq!(found, expected, "{paths:?} {exclude:?}");
            let selected = found.iter().filter(|path| !path.starts_with(".git")).count();
            assert_eq!(left, ALL.len() - 1 - selected);
        };
        check(&["src"], &[], &["src/main.rs", "src/main.rsx"]);
        check(&["./src/"], &[], &["src/main.rs", "src/main.rsx"]);
        check(&["src/main.rs"], &[], &["src/main.rs"]);
        check(&["a*b"], &[], &["a*b"]);
        check(&["a?b"], &[], &["a*b", "axb"]);
        check(&["*.rs", "top.txt"], &[], &["new", "new/deep", "new/deep/a.rs", "src/main.rs", "top.txt"]);
        check(&["/*.txt"], &[], &["top.txt"]);
        check(&["new/deep"], &[], &["new", "new/deep", "new/deep/a.rs"]);
        // Its mode is a separate change.
        check(&["mode/n"], &[], &["mode/n"]);
        check(&["old"], &[], &["old", "old/x", "old/y"]);
        // A directory with remaining contents stays.
        check(&["old"], &["old/x"], &["old/y"]);
        check(&["old/x"], &[], &["old/x"]);
        check(&["."], &["*.txt", "old/", "/a*", "src", "mode"], &[".git/hooks/x", "new", "new/deep", "new/deep/a.rs"]);
        check(&["new"], &["*", "!deep", "!a.rs", "!new"], &["new", "new/deep", "new/deep/a.rs"]);
        check(&["new"], &["deep", "!a.rs"], &["new", "new/b.txt"]);
    }

    #[test]
    fn a_path_that_matches_nothing_is_an_error_that_names_it() {
        let error = select(&["src", "nowhere", "main.c"], &[]).unwrap_err();
        assert!(error.contains("`nowhere`, `main.c` match no change"), "{error}");
        for path in ["/etc", "../src", "!src", "#", "src/main.rs/x", "*/*/*/*", "\x1b"] {
            assert!(select(&[path], &[]).unwrap_err().contains("matches no change"), "{path}");
        }
        assert!(select(&[], &["a[z-a]"]).unwrap_err().contains("invalid pattern `a[z-a]` for `--exclude`"));
        let mut changes = changes(&["+a\x1bb"]);
        let selection = Selection { paths: vec!["a\\x1bb".into()], exclude: Vec::new() };
        assert_eq!(selection.apply(&mut changes).unwrap(), 0, "a path as a list shows it");
    }
}
