//! Files that git ignores in the base, such as build output: the changes leave them out and count them.
//!
//! The rules and the index are those of the base, or of the repository above it ([`Above`]): a rule that the agent
//! wrote hides nothing. git never ignores a tracked file. With an unreadable index, everything in the base counts as
//! tracked.
//! Never here: git itself, the user's own ignore file.

use super::index::{self, Above, Index, Worktree};
use super::path::TreePath;
use super::tree;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::io::Errno;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

/// Longer rule files are not read.
const LONGEST_RULES: u64 = 1 << 20;
/// A longer index is not read: it has millions of files.
const LONGEST_INDEX: u64 = 256 << 20;

pub(super) struct Rules {
    /// Bytes of a path in the repository that lead to the directory.
    depth: usize,
    own: Gitignore,
    above: Option<Rc<Rules>>,
}

/// In byte order.
pub(super) struct Tracked(Vec<Box<[u8]>>);

impl Rules {
    fn of_repository(lower: BorrowedFd<'_>, worktree: Option<&Worktree>) -> Option<Rc<Rules>> {
        match worktree {
            Some(worktree) => Rules::read(worktree.repository.as_fd(), b"info/exclude", 0, None),
            None => Rules::read(lower, b".git/info/exclude", 0, None),
        }
    }

    pub(super) fn of(directory: BorrowedFd<'_>, depth: usize, above: Option<Rc<Rules>>) -> Option<Rc<Rules>> {
        Rules::read(directory, b".gitignore", depth, above.clone()).or(above)
    }

    fn read(at: BorrowedFd<'_>, name: &[u8], depth: usize, above: Option<Rc<Rules>>) -> Option<Rc<Rules>> {
        let (file, status) = tree::file(at, name).ok()?;
        if tree::size(&status) > LONGEST_RULES {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(LONGEST_RULES).read_to_end(&mut bytes).ok()?;
        let mut builder = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
            // Skip an invalid pattern, as git does.
            let _ = builder.add_line(None, line);
        }
        let own = builder.build().ok().filter(|own| !own.is_empty())?;
        Some(Rc::new(Rules { depth, own, above }))
    }

    /// Whether the nearest matching rule ignores a path of the repository. The path is below the directory.
    pub(super) fn ignore(&self, path: &[u8], is_directory: bool) -> bool {
        let mut rules = Some(self);
        while let Some(each) = rules {
            let relative = tree::name_path(path.get(each.depth..).unwrap_or_default());
            match each.own.matched(relative, is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => rules = each.above.as_deref(),
            }
        }
        false
    }
}

#[derive(Default)]
pub(super) struct Repository<'a> {
    /// Those above the base's own `.gitignore`.
    pub(super) rules: Option<Rc<Rules>>,
    /// `None` if the index cannot be read or is not understood.
    pub(super) tracked: Option<Tracked>,
    /// The base's path in the repository: empty, or with a slash at the end.
    pub(super) prefix: &'a [u8],
}

impl<'a> Repository<'a> {
    pub(super) fn of(lower: BorrowedFd<'_>, worktree: Option<&Worktree>, above: Option<&'a Above>) -> Repository<'a> {
        // Rules that ignore the base itself do not hold in it: the user named the folder and wants its changes.
        above.and_then(|above| Repository::of_above(worktree, above)).unwrap_or_else(|| Repository {
            rules: Rules::of_repository(lower, worktree),
            tracked: Tracked::of_repository(lower, worktree, &[]),
            prefix: &[],
        })
    }

    /// `None` if the repository's rules ignore the base.
    fn of_above(worktree: Option<&Worktree>, above: &'a Above) -> Option<Repository<'a>> {
        let top = above.folders.first()?.as_fd();
        let mut rules = Rules::of_repository(top, worktree);
        let ends = above.prefix.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        let mut depth = 0;
        for (folder, end) in above.folders.iter().zip(ends) {
            rules = Rules::of(folder.as_fd(), depth, rules);
            if rules.as_ref().is_some_and(|rules| rules.ignore(&above.prefix[..end], true)) {
                return None;
            }
            depth = end + 1;
        }
        let tracked = Tracked::of_repository(top, worktree, &above.prefix);
        Some(Repository { rules, tracked, prefix: &above.prefix })
    }
}

impl Tracked {
    fn of_repository(top: BorrowedFd<'_>, worktree: Option<&Worktree>, prefix: &[u8]) -> Option<Tracked> {
        // A `.git` that is a file and no worktree's, as in a submodule, is NOTDIR: its index is elsewhere.
        let (file, status) = match index::open(top, worktree) {
            Err(Errno::NOENT) => return Some(Tracked(Vec::new())),
            opened => opened.ok()?,
        };
        if tree::size(&status) > LONGEST_INDEX {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(LONGEST_INDEX).read_to_end(&mut bytes).ok()?;
        parse(bytes, prefix).map(Tracked)
    }

    /// Also if git tracks a path below.
    pub(super) fn has(&self, path: &TreePath) -> bool {
        let path = path.as_bytes();
        let exact = self.0.binary_search_by(|each| each.as_ref().cmp(path)).is_ok();
        let below = [path, b"/"].concat();
        let next = self.0.partition_point(|each| each.as_ref() < below.as_slice());
        exact || self.0.get(next).is_some_and(|each| each.starts_with(&below))
    }
}

/// The names below `prefix`, without it; `None` if the index is not understood.
fn parse(bytes: Vec<u8>, prefix: &[u8]) -> Option<Vec<Box<[u8]>>> {
    let (mut names, mut index) = (Vec::new(), Index::new(bytes).ok()?);
    while index.read_entry().ok()?.is_some() {
        names.extend(index.name().strip_prefix(prefix).map(Box::from));
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::process::Command;

    fn git(at: &Path, words: &[&str]) -> Vec<u8> {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=x", "-c", "user.email=x@example"]).args(words).current_dir(at);
        let output = command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    #[test]
    fn the_index_of_every_version_is_read() {
        let lab = tempfile::tempdir().unwrap();
        git(lab.path(), &["init", "-q"]);
        for name in ["a", "dir/file", "dir/sub/other-file", "dir.x", "zoë"] {
            let path = lab.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        git(lab.path(), &["add", "-A"]);
        std::fs::write(lab.path().join("later"), "").unwrap();
        git(lab.path(), &["add", "-N", "later"]);
        for version in ["2", "3", "4"] {
            git(lab.path(), &["update-index", "--index-version", version]);
            let expected = git(lab.path(), &["ls-files", "-z"]);
            let index = std::fs::read(lab.path().join(".git/index")).unwrap();
            let names = parse(index.clone(), &[]).unwrap();
            let told: Vec<u8> = names.iter().flat_map(|name| [name.as_ref(), b"\0"].concat()).collect();
            assert_eq!(told, expected, "version {version}");
            for cut in 0..index.len() {
                let _ = parse(index[..cut].to_vec(), &[]);
            }
            let tracked = Tracked(names);
            let check = |path: &str, is| assert_eq!(tracked.has(&TreePath::new(path).unwrap()), is, "{path}");
            check("a", true);
            check("dir", true);
            check("dir/sub", true);
            check("dir/su", false);
            check("di", false);
            check("dir.x/y", false);
        }
        assert!(parse(Vec::new(), &[]).is_none() && parse(b"DIRC\0\0\0\x02\0\0\0\x01".to_vec(), &[]).is_none());
    }

    #[test]
    fn what_is_ignored_is_what_git_ignores() {
        let lab = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = lab.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        git(lab.path(), &["init", "-q"]);
        write(
            ".gitignore",
            "# comment\n/target\r\n*.log\n!keep.log\nbuild/\n**/gen/*.c\ndoc/*.txt\n\\!odd\ntrailing \nfoo[ab]\n",
        );
        write("sub/.gitignore", "!special.log\n/only-here\n*.tmp\n");
        write(".git/info/exclude", "mine\n*.tmp\n");
        let paths = [
            "target",
            "sub/target",
            "a.log",
            "keep.log",
            "sub/x.log",
            "sub/special.log",
            "build",
            "x/build",
            "gen/a.c",
            "deep/in/gen/a.c",
            "gen/sub/a.c",
            "doc/a.txt",
            "doc/sub/a.txt",
            "!odd",
            "trailing",
            "mine",
            "sub/mine",
            "only-here",
            "sub/only-here",
            "x.tmp",
            "sub/y.tmp",
            "fooa",
            "fooc",
            "src/main.rs",
        ];
        let open: std::os::fd::OwnedFd = File::open(lab.path()).unwrap().into();
        let root = Rules::of(open.as_fd(), 0, Rules::of_repository(open.as_fd(), None)).unwrap();
        let sub = tree::directory(open.as_fd(), b"sub").unwrap();
        let below = Rules::of(sub.as_fd(), "sub/".len(), Some(Rc::clone(&root))).unwrap();
        for path in paths {
            for is_directory in [false, true] {
                let told = git(
                    lab.path(),
                    &["check-ignore", "--no-index", &format!("{path}{}", if is_directory { "/" } else { "" })],
                );
                let rules = if path.starts_with("sub/") { &below } else { &root };
                let is = rules.ignore(path.as_bytes(), is_directory);
                assert_eq!(is, !told.is_empty(), "{path} {is_directory}");
            }
        }
    }
}
