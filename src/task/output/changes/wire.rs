//! The record as JSON: one flat object an entry.
//!
//! `path`, `kind` (added, modified, deleted), then `type`, `mode`, `size`, `sha256`, `target` of the result (for a
//! deleted path of the base), and `base` with the same fields. Names are escaped as in [`super::path`].

use super::copy::Digest;
use super::path::{Raw, TreePath};
use super::record::{Base, Change, Changes, Content, Entry, Node, Skipped};
use crate::error::{self, Error, Kind, Step};
use crate::files::{self, Bounded, Durability};
use serde::{Deserialize, Serialize, Serializer};
use std::io::{BufWriter, Write};
use std::path::Path;

/// No other version is read.
const VERSION: u32 = 1;

/// [`super::Limits`] keep collections well below it.
pub(super) const LONGEST: u64 = 512 << 20;

/// Bytes of an entry without its names: two nodes with digests, sizes and times, and all keys.
#[cfg(test)]
pub(super) const ENTRY: u64 = 600;

impl Changes {
    /// Checks the version, every path, and the agreement of the entries.
    pub(crate) fn load(path: &Path) -> error::Result<Changes> {
        let step = || format!("read the changes `{}`", path.display());
        let bytes = files::read_bounded(path, LONGEST)?;
        Changes::parse(&bytes).map_err(|why| Error::new(Kind::Record, why)).doing(step)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Changes, String> {
        let mut changes = from_json(bytes)?;
        changes.entries.sort_by(|one, other| one.path.cmp(&other.path));
        changes.check()?;
        Ok(changes)
    }

    /// Whole or not at all. Refuses a record that is too long to read.
    pub(super) fn save(&self, path: &Path) -> error::Result<()> {
        self.save_within(path, LONGEST)
    }

    pub(super) fn save_within(&self, path: &Path, most: u64) -> error::Result<()> {
        files::replace_by(path, 0o600, Durability::Synced, |file| {
            let mut out = Bounded::new(BufWriter::new(file), most);
            write(self, &mut out)?;
            out.flush()
        })
    }
}

/// Entry by entry, to save the memory of the whole text.
pub(super) fn write(changes: &Changes, out: &mut dyn Write) -> std::io::Result<()> {
    let record = RecordWritten {
        version: VERSION,
        complete: changes.complete,
        entries: &changes.entries,
        skipped: &changes.skipped,
        skipped_more: changes.skipped_more,
        ignored: changes.ignored,
        first_ignored: &changes.first_ignored,
    };
    serde_json::to_writer(out, &record).map_err(std::io::Error::from)
}

pub(super) fn from_json(bytes: &[u8]) -> Result<Changes, String> {
    let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if head.version != VERSION {
        return Err(format!("version {} is not the {VERSION} that is known here", head.version));
    }
    let record: RecordRead = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let entries = record.entries.into_iter().map(entry_from_wire).collect::<Result<Vec<_>, _>>()?;
    let RecordRead { skipped, skipped_more, complete, ignored, first_ignored, .. } = record;
    Ok(Changes { entries, skipped, skipped_more, complete, ignored, first_ignored })
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

#[derive(Serialize)]
struct RecordWritten<'a> {
    version: u32,
    complete: bool,
    #[serde(serialize_with = "entries_to_wire")]
    entries: &'a [Entry],
    skipped: &'a [Skipped],
    skipped_more: u64,
    ignored: u64,
    first_ignored: &'a [TreePath],
}

fn entries_to_wire<S: Serializer>(entries: &&[Entry], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(entries.iter().map(entry_to_wire))
}

#[derive(Deserialize)]
struct RecordRead {
    entries: Vec<WireEntry>,
    skipped: Vec<Skipped>,
    skipped_more: u64,
    complete: bool,
    #[serde(default)]
    ignored: u64,
    #[serde(default)]
    first_ignored: Vec<TreePath>,
}

#[derive(Serialize, Deserialize)]
struct WireEntry {
    path: TreePath,
    kind: Change,
    #[serde(flatten)]
    node: WireNode,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<WireNode>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    base_is_newer: bool,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct WireNode {
    #[serde(rename = "type")]
    file_type: WireType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<[i64; 2]>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireType {
    Directory,
    File,
    Symlink,
    #[default]
    Other,
}

fn entry_to_wire(entry: &Entry) -> WireEntry {
    let base = entry.base.as_ref().map(base_to_wire);
    let node = entry.now.clone().map(|node| base_to_wire(&node.into())).or_else(|| base.clone()).unwrap_or_default();
    WireEntry { path: entry.path.clone(), kind: entry.change(), node, base, base_is_newer: entry.base_is_newer }
}

fn octal(mode: u32) -> Option<String> {
    Some(format!("{mode:04o}"))
}

fn base_to_wire(base: &Base) -> WireNode {
    let empty = WireNode::default();
    match base {
        Base::Directory { mode } => WireNode { file_type: WireType::Directory, mode: octal(*mode), ..empty },
        Base::File { mode, size, content } => {
            let (sha256, modified) = match content {
                Content::Sha256(digest) => (Some(*digest), None),
                Content::Unread(time) => (None, Some(*time)),
            };
            WireNode { file_type: WireType::File, mode: octal(*mode), size: Some(*size), sha256, modified, ..empty }
        }
        Base::Symlink { target } => WireNode { file_type: WireType::Symlink, target: Some(target.clone()), ..empty },
        Base::Other => empty,
    }
}

fn entry_from_wire(wire: WireEntry) -> Result<Entry, String> {
    let WireEntry { path, kind, node, base, base_is_newer } = wire;
    let wrong = |what: &str| format!("`{path}`: {what}");
    let now = match kind {
        Change::Deleted => None,
        Change::Added | Change::Modified => Some(base_from_wire(node).and_then(Node::try_from).map_err(wrong)?),
    };
    let base = base.map(base_from_wire).transpose().map_err(wrong)?;
    if base.is_some() == (kind == Change::Added) {
        return Err(wrong("the kind does not agree with the base"));
    }
    Ok(Entry { path, now, base, base_is_newer })
}

fn mode_from_wire(mode: Option<String>) -> Result<u32, &'static str> {
    let mode = mode.and_then(|text| u32::from_str_radix(&text, 8).ok()).ok_or("the mode is not an octal number")?;
    if mode > 0o777 { Err("the mode has more than permission bits") } else { Ok(mode) }
}

impl From<Node> for Base {
    fn from(node: Node) -> Base {
        match node {
            Node::Directory { mode } => Base::Directory { mode },
            Node::File { mode, size, sha256 } => Base::File { mode, size, content: Content::Sha256(sha256) },
            Node::Symlink { target } => Base::Symlink { target },
        }
    }
}

impl TryFrom<Base> for Node {
    type Error = &'static str;

    fn try_from(base: Base) -> Result<Node, &'static str> {
        match base {
            Base::Directory { mode } => Ok(Node::Directory { mode }),
            Base::File { mode, size, content: Content::Sha256(sha256) } => Ok(Node::File { mode, size, sha256 }),
            Base::File { .. } => Err("the sha256 is missing"),
            Base::Symlink { target } => Ok(Node::Symlink { target }),
            Base::Other => Err("only files, directories and links can be taken"),
        }
    }
}

fn base_from_wire(wire: WireNode) -> Result<Base, &'static str> {
    Ok(match wire.file_type {
        WireType::Directory => Base::Directory { mode: mode_from_wire(wire.mode)? },
        WireType::File => Base::File {
            mode: mode_from_wire(wire.mode)?,
            size: wire.size.ok_or("the size is missing")?,
            content: match (wire.sha256, wire.modified) {
                (Some(digest), _) => Content::Sha256(digest),
                (None, Some(time)) => Content::Unread(time),
                (None, None) => return Err("the sha256 is missing"),
            },
        },
        WireType::Symlink => Base::Symlink { target: link_from_wire(wire.target)? },
        WireType::Other => Base::Other,
    })
}

fn link_from_wire(target: Option<Raw>) -> Result<Raw, &'static str> {
    target.filter(|raw| !raw.0.is_empty()).ok_or("the target of the link is missing")
}
