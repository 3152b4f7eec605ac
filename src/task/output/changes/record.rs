//! `changes.json`: an agent's changes as a versioned record.
//!
//! It may have been edited by hand: its paths and the agreement of its entries are checked when it is read.

use super::copy::Digest;
use super::path::{Raw, TreePath};
use crate::sandbox::size;
use serde::{Deserialize, Serialize};

/// Ordered by path: a directory is before its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) entries: Vec<Entry>,
    /// The first [`super::Limits::skipped`] of them.
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) skipped_more: u64,
    /// `false` if a limit on the number or the depth of names was reached.
    pub(crate) complete: bool,
    /// A directory counts as one.
    pub(crate) ignored: u64,
    pub(crate) first_ignored: Vec<TreePath>,
}

/// At least one of `base` and `now` is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: TreePath,
    /// `None` if it was deleted.
    pub(crate) now: Option<Node>,
    /// `None` if the path is new.
    pub(crate) base: Option<Base>,
    /// The user wrote the base after the agent's start.
    pub(crate) base_is_newer: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory { mode: u32 },
    File { mode: u32, size: u64, sha256: Digest },
    Symlink { target: Raw },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Directory { mode: u32 },
    File { mode: u32, size: u64, content: Content },
    Symlink { target: Raw },
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Sha256(Digest),
    /// Too large or unreadable: the time of modification (seconds, nanoseconds).
    Unread([i64; 2]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) path: Raw,
    pub(crate) reason: Reason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reason {
    Fifo,
    Device,
    Socket,
    /// It or its base cannot be read.
    Unreadable,
    TooLarge,
    OverTotal,
    OverDisk,
    /// The rest of this directory was not read.
    OutOfTime,
    /// Nothing below was read.
    TooDeep,
    /// The rest of this directory was not read.
    TooMany,
    Changing,
    /// Only the setuid or setgid bit was left out, not the file.
    SetIdBits,
    /// The folder may have a file of this name that the agent did not see.
    Hidden,
}

impl Reason {
    pub(crate) fn words(self) -> String {
        let limits = super::Limits::default();
        match self {
            Reason::Fifo => "a FIFO is not a file".to_owned(),
            Reason::Device => "a device is not a file".to_owned(),
            Reason::Socket => "a socket is not a file".to_owned(),
            Reason::Unreadable => "it, or what it was before, cannot be read".to_owned(),
            Reason::TooLarge => format!("a file may have {}", size(limits.file_bytes)),
            Reason::OverTotal => format!("all files together may have {}", size(limits.total_bytes)),
            Reason::OverDisk => {
                "all files together may take as much as the task's disk limit, and as the store's disk has free"
                    .to_owned()
            }
            Reason::OutOfTime => format!("the workspace is read for at most {} minutes", limits.time.as_secs() / 60),
            Reason::TooDeep => format!("it is more than {} folders deep, or its path is too long", limits.depth),
            Reason::TooMany => {
                format!(
                    "there are more than {} names, or they take more than {}",
                    limits.names,
                    size(limits.path_bytes)
                )
            }
            Reason::Changing => "it changed while it was read".to_owned(),
            Reason::Hidden => "--hide or .brigignore hides this name".to_owned(),
            Reason::SetIdBits => "only its setuid and setgid bits, the rest of it is".to_owned(),
        }
    }
}

impl Entry {
    pub(crate) fn change(&self) -> Change {
        match (&self.base, &self.now) {
            (None, _) => Change::Added,
            (Some(_), Some(_)) => Change::Modified,
            (Some(_), None) => Change::Deleted,
        }
    }

    /// Permissions of a file or directory that is still one.
    pub(super) fn changed_bits(&self) -> u32 {
        match (&self.base, &self.now) {
            (Some(Base::File { mode: was, .. }), Some(Node::File { mode, .. }))
            | (Some(Base::Directory { mode: was }), Some(Node::Directory { mode })) => mode ^ was,
            _ => 0,
        }
    }

    pub(crate) fn removes_directory(&self) -> bool {
        matches!(self.base, Some(Base::Directory { .. })) && !matches!(self.now, Some(Node::Directory { .. }))
    }
}

impl Changes {
    pub(super) fn ignore(&mut self, path: TreePath) {
        const LISTED: usize = 20;
        self.ignored += 1;
        if self.first_ignored.len() < LISTED {
            self.first_ignored.push(path);
        }
    }

    pub(crate) fn find(&self, path: &TreePath) -> Option<&Entry> {
        self.entries.binary_search_by(|entry| entry.path.cmp(path)).ok().map(|index| &self.entries[index])
    }

    /// The entries must describe two trees: unique paths, and nothing below anything but a directory.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        if let Some(pair) = self.entries.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(format!("`{}` is there twice", pair[0].path));
        }
        for entry in &self.entries {
            let mut above = entry.path.parent();
            while let Some(directory) = above {
                if let Some(holder) = self.find(&directory) {
                    let held_now = entry.now.is_none() || matches!(holder.now, Some(Node::Directory { .. }));
                    let held_before = entry.base.is_none() || matches!(holder.base, Some(Base::Directory { .. }));
                    if !held_now || !held_before {
                        return Err(format!("`{}` is below `{directory}`, which is not a directory", entry.path));
                    }
                }
                above = directory.parent();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{self, LONGEST};
    use super::*;

    fn parse(entries: &str) -> std::result::Result<Changes, String> {
        let text = format!(r#"{{"version":1,"complete":true,"entries":[{entries}],"skipped":[],"skipped_more":0}}"#);
        Changes::parse(text.as_bytes())
    }

    #[test]
    fn a_hand_edited_record_is_refused_with_the_reason() {
        let sha = "0".repeat(64);
        let file = |path: &str| {
            format!(r#"{{"path":"{path}","kind":"added","type":"file","mode":"0644","size":1,"sha256":"{sha}"}}"#)
        };
        let link = r#"{"path":"a","kind":"added","type":"symlink","target":"/etc"}"#;
        let check = |entries: String, why: &str| {
            let error = parse(&entries).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        check(file("/etc/passwd"), "the path is absolute");
        check(file("a/../../b"), "a component `.` or `..`");
        check(file(r"a/\\x2e\\x2e/b"), "a component `.` or `..`");
        check(format!("{},{}", file("a"), file("a")), "`a` is there twice");
        check(format!("{link},{}", file("a/passwd")), "`a/passwd` is below `a`, which is not a directory");
        check(file("a").replace("0644", "4755"), "more than permission bits");
        check(file("a").replace("\"file\"", "\"other\""), "only files, directories and links");
        check(file("a").replace("added", "modified"), "the kind does not agree with the base");
        check(file("a").replace("added", "deleted"), "the kind does not agree with the base");
        check(file("a").replace(&sha, "abc"), "64 hexadecimal digits");
        assert!(
            parse(&format!("{},{}", file("b/x"), file("a")))
                .is_ok_and(|changes| changes.entries[0].path.name() == b"a")
        );
        assert!(Changes::parse(br#"{"version":2}"#).unwrap_err().contains("version 2"));
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = |bytes: &[u8]| TreePath::new(bytes).unwrap();
        let raw = |bytes: &[u8]| Raw(bytes.to_vec());
        let digest = Digest([7; 32]);
        let file = Node::File { mode: 0o640, size: 5, sha256: digest };
        let base = |content| Some(Base::File { mode: 0o600, size: 9, content });
        let entry = |name: &[u8], now, base, base_is_newer| Entry { path: path(name), now, base, base_is_newer };
        let changes = Changes {
            entries: vec![
                entry(b"a\nb\xff", Some(file.clone()), None, false),
                entry(b"d", Some(Node::Directory { mode: 0o755 }), Some(Base::Other), false),
                entry(b"d/l", Some(Node::Symlink { target: raw(b"..\x1b") }), None, false),
                entry(b"m", Some(file), base(Content::Unread([-1, 2])), true),
                entry(b"x", None, base(Content::Sha256(digest)), false),
                entry(b"y", None, Some(Base::Directory { mode: 0 }), false),
                entry(b"y/z", None, Some(Base::Symlink { target: raw(b"t") }), false),
            ],
            skipped: vec![Skipped { path: raw(b"f\0"), reason: Reason::Fifo, cause: Some("why".into()) }],
            skipped_more: 3,
            complete: true,
            ignored: 2,
            first_ignored: vec![path(b"target")],
        };
        let at = directory.path().join("changes.json");
        // A NUL cannot be in a file name: a record with one is refused.
        changes.save(&at).unwrap();
        assert_eq!(Changes::load(&at).unwrap_err().kind(), crate::error::Kind::Record);
        let changes = Changes { skipped: Vec::new(), ..changes };
        changes.save(&at).unwrap();
        assert_eq!(Changes::load(&at).unwrap(), changes);
        // A record too long to read is not written, and the old file stays.
        let length = std::fs::metadata(&at).unwrap().len();
        changes.save_within(&at, length).unwrap();
        let error = changes.save_within(&at, length - 1).unwrap_err();
        assert!(error.to_string().contains("longer than what is read back"), "{error}");
        assert_eq!(Changes::load(&at).unwrap(), changes);
    }

    #[test]
    fn no_entry_takes_more_than_is_reckoned_with() {
        let digest = Digest([255; 32]);
        let now = Some(Node::File { mode: 0o777, size: u64::MAX, sha256: digest });
        let base = |content| Some(Base::File { mode: 0o777, size: u64::MAX, content });
        for content in [Content::Sha256(digest), Content::Unread([i64::MIN; 2])] {
            let path = TreePath::new(*b"x").unwrap();
            let entry = Entry { path, now: now.clone(), base: base(content), base_is_newer: true };
            let changes = Changes { entries: vec![entry; 2], ..Changes::default() };
            let mut bytes = Vec::new();
            wire::write(&changes, &mut bytes).unwrap();
            assert!((bytes.len() as u64) < 2 * wire::ENTRY, "{} bytes", bytes.len());
        }
        let limits = crate::task::output::changes::Limits::default();
        let most = limits.names as u64 * wire::ENTRY + limits.path_bytes + limits.skipped_bytes;
        assert!(most + limits.skipped as u64 * wire::ENTRY < LONGEST, "{most} bytes");
    }
}
