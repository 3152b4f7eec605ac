//! Finds new or changed files that a tool could run later on a host without an explicit start.
//!
//! A pattern of [`super::runnable_table`] matches the last components of a path at any depth, ignoring case. `*` is any
//! run of characters in one component, a last component `**` everything below. A user reads the list before applying: a
//! long list is a nuisance, a missing row is an attack.

use super::path::TreePath;
use super::record::{Base, Changes, Entry, Node};
use super::runnable_table::{GIT, TABLE};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runnable {
    pub(crate) path: TreePath,
    pub(crate) why: &'static str,
}

/// Each with the first matching reason.
pub(crate) fn runnable(changes: &Changes) -> Vec<Runnable> {
    let patterns = patterns();
    let look = |entry: &Entry| reason(&patterns, changes, entry).map(|why| Runnable { path: entry.path.clone(), why });
    changes.entries.iter().filter_map(look).collect()
}

fn reason(patterns: &[Pattern], changes: &Changes, entry: &Entry) -> Option<&'static str> {
    match &entry.now {
        None | Some(Node::Directory { .. }) => None,
        Some(node) => by_name(patterns, &entry.path)
            .or_else(|| bare_repository(changes, entry))
            .or_else(|| executable(node, entry.base.as_ref())),
    }
}

struct Pattern {
    components: Vec<&'static str>,
    has_below: bool,
    why: &'static str,
}

fn patterns() -> Vec<Pattern> {
    let rows = TABLE.iter().flat_map(|(why, text)| text.split_ascii_whitespace().map(move |pattern| (pattern, *why)));
    rows.map(|(pattern, why)| {
        let above = pattern.strip_suffix("/**");
        Pattern { components: above.unwrap_or(pattern).split('/').collect(), has_below: above.is_some(), why }
    })
    .collect()
}

fn by_name(patterns: &[Pattern], path: &TreePath) -> Option<&'static str> {
    let names: Vec<Vec<u8>> = path.names().map(<[u8]>::to_ascii_lowercase).collect();
    patterns.iter().find(|pattern| matches_path(pattern, &names)).map(|pattern| pattern.why)
}

/// For git, a directory with `HEAD`, `objects` and `refs` is a repository under any name: its `config` and `hooks` run
/// commands. The base may have the other parts, so one of them among the changes is enough.
fn bare_repository(changes: &Changes, entry: &Entry) -> Option<&'static str> {
    let is_repository = |directory: Option<&TreePath>| {
        let has = |name: &[u8]| {
            TreePath::join(directory, name)
                .is_ok_and(|path| changes.find(&path).is_some_and(|entry| entry.now.is_some()))
        };
        has(b"HEAD") || has(b"objects") || has(b"refs") || has(b"commondir") || has(b"gitdir")
    };
    let above = entry.path.parent();
    let above_that = above.as_ref().and_then(TreePath::parent);
    let runs = match (entry.path.name().to_ascii_lowercase().as_slice(), above.as_ref().map(TreePath::name)) {
        (b"config" | b"config.worktree", _) => is_repository(above.as_ref()),
        (b"attributes", Some(b"info")) | (_, Some(b"hooks")) => is_repository(above_that.as_ref()),
        // These alone make a directory a repository, with the base's configuration in it.
        (b"head", _) => has_both(changes, above.as_ref()),
        _ => false,
    };
    runs.then_some(GIT)
}

/// Whether the changes add `objects` and `refs`.
fn has_both(changes: &Changes, directory: Option<&TreePath>) -> bool {
    [&b"objects"[..], b"refs"].iter().all(|name| {
        TreePath::join(directory, name).is_ok_and(|path| {
            changes.find(&path).is_some_and(|entry| matches!(entry.now, Some(Node::Directory { .. })))
        })
    })
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

fn matches_path(pattern: &Pattern, names: &[Vec<u8>]) -> bool {
    let parts = &pattern.components;
    if pattern.has_below {
        // At least one name must be left for the `**`.
        return names.len() > parts.len()
            && (0..names.len() - parts.len()).any(|start| all_match(parts, &names[start..]));
    }
    names.len() >= parts.len() && all_match(parts, &names[names.len() - parts.len()..])
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
    use super::super::runnable_table::{
        AGENT, BUILD, CI, CONTAINER, EDITOR, INTERPRETER, OTHER_VCS, PACKAGE, SHELL, TEST,
    };
    use super::*;
    use crate::task::output::changes::copy::Digest;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_sane() {
        let mut seen = HashSet::new();
        let patterns = patterns();
        let rows = TABLE.iter().flat_map(|(why, text)| text.split_ascii_whitespace().map(move |row| (row, why)));
        for (pattern, why) in rows {
            assert!(seen.insert(pattern), "{pattern} is there twice");
            assert_eq!(pattern, pattern.to_ascii_lowercase(), "names are compared in small letters");
            assert!(
                !pattern.starts_with('/') && !pattern.contains("//") && !why.ends_with('.') && why.len() > 20,
                "{pattern}"
            );
            assert!(
                !pattern.strip_suffix("/**").unwrap_or(pattern).contains("**"),
                "{pattern}: `**` is only understood at the end"
            );
            // A hidden row, or one that misses its own example, is a mistake.
            let example = TreePath::new(format!("deep/in/{}", pattern.replace("**", "x/y").replace('*', "z"))).unwrap();
            assert!(by_name(&patterns, &example).is_some(), "{pattern} does not find `{example}`");
        }
        assert!(patterns.len() > 150);
    }

    #[test]
    fn names_that_run_are_found_and_others_are_not() {
        let patterns = patterns();
        let check = |path: &str, why: Option<&str>| {
            assert_eq!(by_name(&patterns, &TreePath::new(path).unwrap()), why, "{path}");
        };
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
        for name in [".hg/hgrc", ".jj/repo/config.toml", "vendor/x/.HG/hgrc"] {
            check(name, Some(OTHER_VCS));
        }
        let agents = [".opencode/plugin/x.ts", ".kiro/hooks/a.json", ".windsurf/mcp.json", ".continue/config.yaml"];
        for name in agents.iter().chain(&[".roo/mcp.json", ".aider.conf.yml", "opencode.jsonc", "GEMINI.md"]) {
            check(name, Some(AGENT));
        }
        for name in ["gradlew", "sub/mvnw.cmd", "Justfile", ".bazelrc"] {
            check(name, Some(BUILD));
        }
        for name in [".npmrc", ".pnp.cjs", ".yarnrc.yml"] {
            check(name, Some(PACKAGE));
        }
        check("mise.local.toml", Some(SHELL));
        check("sitecustomize.py", Some(INTERPRETER));
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
        let old = |mode| Base::File { mode, size: 0, content: crate::task::output::changes::Content::Unread([0; 2]) };
        let entry = |name: &str, now, base| Entry { path: path(name), now, base, base_is_newer: false };
        let mut entries = vec![
            entry("gone.sh", None, Some(old(0o755))),
            entry("new.sh", Some(file(0o755)), None),
            entry("now.sh", Some(file(0o755)), Some(old(0o644))),
            entry("plain", Some(file(0o644)), Some(old(0o755))),
            entry("still.sh", Some(file(0o755)), Some(old(0o755))),
            entry("data/HEAD", Some(file(0o644)), None),
            entry("data/config", Some(file(0o644)), None),
            entry("data/hooks/x", Some(file(0o644)), None),
            entry("bare/HEAD", Some(file(0o644)), None),
            entry("bare/objects", Some(Node::Directory { mode: 0o755 }), None),
            entry("bare/refs", Some(Node::Directory { mode: 0o755 }), None),
            entry("other/hooks/x", Some(file(0o644)), None),
            entry("other/config", Some(file(0o644)), None),
            entry("makefile", Some(Node::Symlink { target: super::super::Raw(b"x".to_vec()) }), None),
            entry(".vscode", Some(Node::Directory { mode: 0o755 }), None),
        ];
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        let changes = Changes { entries, ..Changes::default() };
        let found: Vec<_> = runnable(&changes).into_iter().map(|each| format!("{}: {}", each.path, each.why)).collect();
        let git = format!("data/config: {GIT}");
        let hook = format!("data/hooks/x: {GIT}");
        let bare = format!("bare/HEAD: {GIT}");
        let make = format!("makefile: {BUILD}");
        assert_eq!(
            found,
            [
                &bare,
                &git,
                &hook,
                &make,
                "new.sh: it is executable now",
                "now.sh: it is executable now",
                "still.sh: a program that was changed"
            ]
        );
    }
}
