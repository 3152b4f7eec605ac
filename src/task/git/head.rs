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
    let layers =
        Layers { changes: changes.map(|(changes, path)| (changes, path.join("files"))), base: base.to_owned() };
    layers.head().doing(|| "find the commit of the workspace")
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
        if let Some(text) = self.read(name)? {
            return Ok(Some(text));
        }
        let Some(packed) = self.read("packed-refs")? else { return Ok(None) };
        Ok(packed.lines().find_map(|line| {
            let (id, found) = line.split_once(' ')?;
            (found == name).then(|| id.to_owned())
        }))
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        let path = format!(".git/{name}");
        if let Some((changes, copies)) = &self.changes {
            for entry in &changes.entries {
                let entry_path = entry.path.as_bytes();
                let above = path.as_bytes().strip_prefix(entry_path).is_some_and(|rest| rest.starts_with(b"/"));
                if entry_path == path.as_bytes() {
                    return match &entry.now {
                        None => Ok(None),
                        Some(Node::File { .. }) => text(&copies.join(&path)).map(Some),
                        Some(_) => Err(wrong(&format!("`{path}` is not a file any more"))),
                    };
                }
                // The agent removed or replaced a folder above.
                if above && !matches!(entry.now, Some(Node::Directory { .. })) {
                    return if entry.now.is_none() {
                        Ok(None)
                    } else {
                        Err(wrong(&format!("`{}` is not a folder", entry.path)))
                    };
                }
            }
        }
        let path = self.base.join(&path);
        match std::fs::symlink_metadata(&path) {
            Ok(status) if status.is_file() => text(&path).map(Some),
            _ => Ok(None),
        }
    }
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
}
