//! The commit of an ended workspace, read as text without git. The agent's files are hostile, but they were copied by
//! descriptors into regular files.

use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::task::output::changes::{Changes, Node};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub commit: String,
    /// `None` if no branch is checked out.
    pub branch: Option<String>,
}

struct Layers<'run> {
    changes: Option<(&'run Changes, PathBuf)>,
    /// What the base's HEAD was. The base itself may have another one by now.
    start: Option<&'run Head>,
    base: PathBuf,
}

/// References are shorter.
const LONGEST: u64 = 64 << 20;
/// The longest chain of symbolic references.
const DEEPEST: u32 = 5;

/// SHA-1 or SHA-256, in full and in lower case.
pub(super) fn is_id(word: &[u8]) -> bool {
    matches!(word.len(), 40 | 64) && word.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn head(changes: Option<(&Changes, &Path)>, base: &Path) -> Result<Head> {
    look_up(changes, None, base)
}

/// The same, where the base's HEAD was `start` when the changes began.
pub(crate) fn head_since(start: &Head, changes: (&Changes, &Path), base: &Path) -> Result<Head> {
    look_up(Some(changes), Some(start), base)
}

fn look_up(changes: Option<(&Changes, &Path)>, start: Option<&Head>, base: &Path) -> Result<Head> {
    let changes = changes.map(|(changes, path)| (changes, path.join("files")));
    Layers { changes, start, base: base.to_owned() }.head().doing(|| "find the commit of the workspace")
}

/// A branch that the changes set to a commit.
pub(crate) fn branch_at((changes, path): (&Changes, &Path), commit: &str) -> Option<String> {
    let copies = path.join("files");
    changes.entries.iter().find_map(|entry| {
        let name = std::str::from_utf8(entry.path.as_bytes()).ok()?;
        let branch = name.strip_prefix(".git/refs/heads/")?;
        let is_file = matches!(entry.now, Some(Node::File { .. }));
        (is_file && text(&copies.join(name)).ok()?.trim() == commit).then(|| branch.to_owned())
    })
}

impl Layers<'_> {
    fn head(&self) -> Result<Head> {
        let mut name = "HEAD".to_owned();
        let mut branch = None;
        for _ in 0..DEEPEST {
            let Some(text) = self.reference(&name)? else {
                return Err(wrong(&format!("`{}` leads to no commit", name.escape_debug())));
            };
            let text = text.trim();
            if is_id(text.as_bytes()) {
                return Ok(Head { commit: text.to_owned(), branch });
            }
            let Some(next) = text.strip_prefix("ref:").map(str::trim).filter(|next| is_reference(next)) else {
                return Err(wrong(&format!("`{name}` is not a reference")));
            };
            branch = next.strip_prefix("refs/heads/").map(str::to_owned);
            name = next.to_owned();
        }
        Err(wrong("`HEAD` leads through too many references"))
    }

    /// From its file or from the packed references.
    fn reference(&self, name: &str) -> Result<Option<String>> {
        let changed = self.changed(name)?;
        if let Some(Some(text)) = changed {
            return Ok(Some(text));
        }
        let at_start = || self.start.filter(|_| changed.is_none()).and_then(|start| start.text_of(name));
        if changed.is_none()
            && let Some(file) = self.of_base(name)?
        {
            return Ok(at_start().or(Some(file)));
        }
        // A reference without a file may have been changed and packed again.
        let line = |text: String| packed_line(&text, name);
        match self.changed("packed-refs")? {
            Some(packed) => Ok(packed.and_then(line).or_else(at_start)),
            None => match at_start() {
                Some(text) => Ok(Some(text)),
                None => Ok(self.of_base("packed-refs")?.and_then(line)),
            },
        }
    }

    /// `None` if the changes do not have it, `Some(None)` if they remove it.
    fn changed(&self, name: &str) -> Result<Option<Option<String>>> {
        let path = format!(".git/{name}");
        if let Some((changes, copies)) = &self.changes {
            for entry in &changes.entries {
                let entry_path = entry.path.as_bytes();
                let above = path.as_bytes().strip_prefix(entry_path).is_some_and(|rest| rest.starts_with(b"/"));
                if entry_path == path.as_bytes() {
                    return match &entry.now {
                        None => Ok(Some(None)),
                        Some(Node::File { .. }) => text(&copies.join(&path)).map(|text| Some(Some(text))),
                        Some(_) => Err(wrong(&format!("`{path}` is not a file any more"))),
                    };
                }
                // The agent removed or replaced a folder above.
                if above && !matches!(entry.now, Some(Node::Directory { .. })) {
                    return if entry.now.is_none() {
                        Ok(Some(None))
                    } else {
                        Err(wrong(&format!("`{}` is not a folder", entry.path)))
                    };
                }
            }
        }
        Ok(None)
    }

    fn of_base(&self, name: &str) -> Result<Option<String>> {
        let path = self.base.join(".git").join(name);
        match std::fs::symlink_metadata(&path) {
            Ok(status) if status.is_file() => text(&path).map(Some),
            _ => Ok(None),
        }
    }
}

impl Head {
    /// The text of HEAD, and of the branch that it names.
    fn text_of(&self, name: &str) -> Option<String> {
        let branch = self.branch.as_ref().map(|branch| format!("refs/heads/{branch}"));
        match (name, branch) {
            ("HEAD", Some(branch)) => Some(format!("ref: {branch}")),
            ("HEAD", None) => Some(self.commit.clone()),
            (name, Some(branch)) => (name == branch).then(|| self.commit.clone()),
            _ => None,
        }
    }
}

fn packed_line(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (id, found) = line.split_once(' ')?;
        (found == name).then(|| id.to_owned())
    })
}

fn text(path: &Path) -> Result<String> {
    let bytes = files::read_bounded(path, LONGEST)?;
    String::from_utf8(bytes).map_err(|_| wrong("a reference is not text"))
}

fn wrong(cause: &str) -> Error {
    Error::new(Kind::Workspace, cause.to_owned())
        .hint("the agent's repository is broken; its files are in `brig task diff`")
}

/// Whether it stays below `refs/`.
fn is_reference(name: &str) -> bool {
    name.starts_with("refs/")
        && !name.split('/').any(|part| part.is_empty() || part == "." || part == "..")
        && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::output::changes::Entry;
    use crate::task::output::changes::copy::Digest;
    use crate::task::output::changes::path::TreePath;

    const ID: &str = "0123456789012345678901234567890123456789";

    fn base(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(".git").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        directory
    }

    #[test]
    fn a_head_is_followed_through_files_and_packed_references_and_nowhere_else() {
        let check = |files: &[(&str, &str)], expected: Result<(&str, Option<&str>), &str>| {
            let found = head(None, base(files).path());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!((found.commit.as_str(), found.branch.as_deref()), expected),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                other => panic!("{files:?}: {other:?}"),
            }
        };
        let line = format!("{ID}\n");
        let packed = format!("# pack-refs with: peeled\n{ID} refs/heads/a/b\n^{ID}\n");
        check(&[("HEAD", &line)], Ok((ID, None)));
        check(&[("HEAD", "ref: refs/heads/main\n"), ("refs/heads/main", &line)], Ok((ID, Some("main"))));
        check(&[("HEAD", "ref: refs/heads/a/b\n"), ("packed-refs", &packed)], Ok((ID, Some("a/b"))));
        check(&[("HEAD", "ref: refs/heads/none\n")], Err("leads to no commit"));
        check(&[("HEAD", "ref: refs/../../../etc/passwd\n")], Err("is not a reference"));
        check(&[("HEAD", "ref: /etc/passwd\n")], Err("is not a reference"));
        check(&[("HEAD", "ref: refs/heads/x\n"), ("refs/heads/x", "ref: refs/heads/x\n")], Err("too many"));
        check(&[("HEAD", "-u evil\n")], Err("is not a reference"));
        let linked = base(&[("HEAD", "ref: refs/heads/main\n")]);
        std::fs::create_dir_all(linked.path().join(".git/refs/heads")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", linked.path().join(".git/refs/heads/main")).unwrap();
        assert!(head(None, linked.path()).is_err());
    }

    #[test]
    fn a_head_since_the_start_ignores_what_the_base_became() {
        const LATER: &str = "1123456789012345678901234567890123456789";
        let start = |branch: Option<&str>| Head { commit: ID.into(), branch: branch.map(str::to_owned) };
        let moved = base(&[("HEAD", "ref: refs/heads/own\n"), ("refs/heads/own", LATER), ("refs/heads/main", LATER)]);
        let check = |start: Head, changed: &[(&str, &str)], expected: (&str, Option<&str>)| {
            let copies = tempfile::tempdir().unwrap();
            let mut changes = Changes::default();
            for (name, text) in changed {
                let name = format!(".git/{name}");
                let path = copies.path().join("files").join(&name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
                let now = Some(Node::File { mode: 0o644, size: 0, sha256: Digest([0; 32]) });
                let path = TreePath::new(name.as_bytes()).unwrap();
                changes.entries.push(Entry { path, now, base: None, base_is_newer: false });
            }
            let found = head_since(&start, (&changes, copies.path()), moved.path()).unwrap();
            assert_eq!((found.commit.as_str(), found.branch.as_deref()), expected, "{changed:?}");
            let branch = branch_at((&changes, copies.path()), LATER);
            assert_eq!(branch.is_some(), changed.iter().any(|(name, text)| name.starts_with("refs") && *text == LATER));
        };
        check(start(Some("main")), &[], (ID, Some("main")));
        check(start(None), &[], (ID, None));
        check(start(Some("main")), &[("refs/heads/main", LATER)], (LATER, Some("main")));
        let topic = [("HEAD", "ref: refs/heads/topic"), ("refs/heads/topic", LATER)];
        check(start(Some("main")), &topic, (LATER, Some("topic")));
        // It was packed, changed, and packed again.
        let packed = format!("{LATER} refs/heads/packed\n");
        check(start(Some("packed")), &[("packed-refs", &packed)], (LATER, Some("packed")));
        check(start(Some("main")), &[("packed-refs", &packed)], (ID, Some("main")));
    }
}
