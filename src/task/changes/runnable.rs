//! Which new or changed files could run later, on a host, without anybody starting them by name.
//!
//! The names are in one table ([`super::runnable_table`]); a row is a pattern and its reason. A pattern matches the last components of a path at any depth, letters in either case;
//! `*` stands for any run of characters in one component, a last component `**` for everything below. To be read by a person
//! before the changes are applied: too long a list is a nuisance, a missing row is an attack.

use super::path::TreePath;
use super::record::{Base, Changes, Entry, Node};
use super::runnable_table::{GIT, TABLE};

/// A file that could run later, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runnable {
    pub(crate) path: TreePath,
    pub(crate) why: &'static str,
}

/// Every new or changed file or link that could run later, each with the first reason that fits.
pub(crate) fn runnable(changes: &Changes) -> Vec<Runnable> {
    let look = |entry: &Entry| reason(changes, entry).map(|why| Runnable { path: entry.path.clone(), why });
    changes.entries.iter().filter_map(look).collect()
}

fn reason(changes: &Changes, entry: &Entry) -> Option<&'static str> {
    match &entry.now {
        None | Some(Node::Directory { .. }) => None,
        Some(node) => by_name(&entry.path)
            .or_else(|| bare_repository(changes, entry))
            .or_else(|| executable(node, entry.base.as_ref())),
    }
}

fn by_name(path: &TreePath) -> Option<&'static str> {
    let names: Vec<Vec<u8>> = path.names().map(<[u8]>::to_ascii_lowercase).collect();
    TABLE.iter().find(|(pattern, _)| matches_path(pattern, &names)).map(|(_, why)| *why)
}

/// A directory with `HEAD` and `config` is a repository for git, without being called `.git`.
fn bare_repository(changes: &Changes, entry: &Entry) -> Option<&'static str> {
    let above = entry.path.parent();
    let beside = |name: &[u8]| {
        TreePath::join(above.as_ref(), name)
            .is_ok_and(|path| changes.find(&path).is_some_and(|entry| entry.now.is_some()))
    };
    let is_config = matches!(entry.path.name(), b"config" | b"config.worktree");
    (is_config && (beside(b"HEAD") || beside(b"objects") || beside(b"refs"))).then_some(GIT)
}

fn executable(node: &Node, base: Option<&Base>) -> Option<&'static str> {
    let is = matches!(node, Node::File { mode, .. } if mode & 0o111 != 0);
    let was = matches!(base, Some(Base::File { mode, .. }) if mode & 0o111 != 0);
    match (is, was) {
        (true, true) => Some("a program that was changed"),
        (true, false) => Some("it is executable now"),
        _ => None,
    }
}

/// Whether the end of a path, in small letters, is as the pattern says.
fn matches_path(pattern: &str, names: &[Vec<u8>]) -> bool {
    let parts: Vec<&str> = pattern.split('/').collect();
    if let Some((&"**", above)) = parts.split_last() {
        // At least one name stays for the `**`.
        return names.len() > above.len()
            && (0..names.len() - above.len()).any(|start| all_match(above, &names[start..]));
    }
    names.len() >= parts.len() && all_match(&parts, &names[names.len() - parts.len()..])
}

fn all_match(parts: &[&str], names: &[Vec<u8>]) -> bool {
    parts.iter().zip(names).all(|(part, name)| matches_name(part.as_bytes(), name))
}

/// `*` matches any run of bytes; everything else itself.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let Some(first) = pieces.next() else { return name.is_empty() };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.windows(piece.len().max(1)).position(|window| window == piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::runnable_table::{BUILD, CI, CONTAINER, EDITOR, PACKAGE, SHELL, TEST};
    use super::*;
    use crate::task::changes::copy::Digest;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_sane() {
        let mut seen = HashSet::new();
        for (pattern, why) in TABLE {
            assert!(seen.insert(pattern), "{pattern} is there twice");
            assert_eq!(*pattern, pattern.to_ascii_lowercase(), "names are compared in small letters");
            assert!(
                !pattern.starts_with('/') && !pattern.contains("//") && !why.ends_with('.') && why.len() > 20,
                "{pattern}"
            );
            assert!(
                !pattern.strip_suffix("/**").unwrap_or(pattern).contains("**"),
                "{pattern}: `**` is only understood at the end"
            );
            // A row that another one before it hides, or that does not find its own example, is a mistake.
            let example = TreePath::new(format!("deep/in/{}", pattern.replace("**", "x/y").replace('*', "z"))).unwrap();
            assert!(by_name(&example).is_some(), "{pattern} does not find `{example}`");
        }
        assert!(TABLE.len() > 150);
    }

    #[test]
    fn names_that_run_are_found_and_others_are_not() {
        let check = |path: &str, why: Option<&str>| assert_eq!(by_name(&TreePath::new(path).unwrap()), why, "{path}");
        check(".git/hooks/post-checkout", Some(GIT));
        check("vendor/x/.GIT/config", Some(GIT));
        check(".git", Some(GIT));
        check("docs/.vscode/tasks.json", Some(EDITOR));
        check("a/.envrc", Some(SHELL));
        check(".github/workflows/ci.yml", Some(CI));
        check("Jenkinsfile.release", Some(CI));
        check(".circleci/config.yml", Some(CI));
        check("package.json", Some(PACKAGE));
        check("GNUmakefile", Some(BUILD));
        check("tests/conftest.py", Some(TEST));
        check("crates/a/build.rs", Some(BUILD));
        check("docker-compose.prod.yaml", Some(CONTAINER));
        check("Dockerfile", Some(CONTAINER));
        check(".husky/pre-commit", Some(GIT));
        check("src/main.rs", None);
        check("README.md", None);
        check("git/hooks.md", None);
        check("a.git/x", None);
        check("workflows/ci.yml", None);
    }

    #[test]
    fn modes_and_bare_repositories_count_and_deletions_do_not() {
        let path = |text: &str| TreePath::new(text).unwrap();
        let file = |mode| Node::File { mode, size: 0, sha256: Digest([0; 32]) };
        let old = |mode| Base::File { mode, size: 0, content: crate::task::changes::Content::Unread([0; 2]) };
        let entry = |name: &str, now, base| Entry { path: path(name), now, base, base_is_newer: false };
        let mut entries = vec![
            entry("gone.sh", None, Some(old(0o755))),
            entry("new.sh", Some(file(0o755)), None),
            entry("now.sh", Some(file(0o755)), Some(old(0o644))),
            entry("plain", Some(file(0o644)), Some(old(0o755))),
            entry("still.sh", Some(file(0o755)), Some(old(0o755))),
            entry("data/HEAD", Some(file(0o644)), None),
            entry("data/config", Some(file(0o644)), None),
            entry("other/config", Some(file(0o644)), None),
            entry("makefile", Some(Node::Symlink { target: super::super::Raw(b"x".to_vec()) }), None),
            entry(".vscode", Some(Node::Directory { mode: 0o755 }), None),
        ];
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        let changes = Changes { entries, ..Changes::default() };
        let found: Vec<_> = runnable(&changes).into_iter().map(|each| format!("{}: {}", each.path, each.why)).collect();
        let git = format!("data/config: {GIT}");
        let make = format!("makefile: {BUILD}");
        assert_eq!(
            found,
            [
                &git,
                &make,
                "new.sh: it is executable now",
                "now.sh: it is executable now",
                "still.sh: a program that was changed"
            ]
        );
    }
}
