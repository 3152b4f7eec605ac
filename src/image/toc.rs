//! The table of contents (TOC) of a zstd:chunked layer: which part of its blob has which content. Pure.
//!
//! Format: containers/storage, pkg/chunked. The blob is a zstd stream with a frame for each chunk of a file. The TOC
//! follows as a skippable frame of compressed JSON. The TOC only helps to save bytes, since the blob's digest is
//! checked as ever. Anything unusual is an error, and the blob is then fetched as a whole.

use super::Digest;
use crate::error::{Error, Kind, Result};
use crate::files::hash::{Hasher, sha256};
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read;

/// Older versions of containers/storage (1.43 and before) use the second.
const PREFIXES: [&str; 2] = ["io.github.containers", "io.containers"];
/// The only known type of TOC.
const CRFS: u64 = 1;
/// Bytes from the TOC to the blob's end; they are read into memory.
const LARGEST_TAIL: u64 = 16 << 20;
/// Bytes of JSON: some 200,000 entries.
const LARGEST_TOC: u64 = 64 << 20;
const MOST_ENTRIES: usize = 512 << 10;
/// Bytes of JSON. Room for extended attributes, but not for a bomb of tiny values.
const LONGEST_ENTRY: usize = 64 << 10;
const WINDOW_LOG: u32 = 25;

/// Where a layer's annotations say that its TOC is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TocPosition {
    pub(crate) offset: u64,
    length: u64,
    unpacked: u64,
    /// Of the compressed TOC.
    checksum: Digest,
}

/// A range of a blob with known content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Two pieces with one key and length are very likely the same bytes.
    pub(crate) key: u128,
}

impl TocPosition {
    /// `None` if `annotations` of a blob of `size` bytes name no TOC, or one that is wrong or too large.
    pub(crate) fn find(annotations: &BTreeMap<String, String>, size: u64) -> Option<TocPosition> {
        let value = |name: &str| {
            PREFIXES.iter().find_map(|prefix| annotations.get(&format!("{prefix}.zstd-chunked.manifest-{name}")))
        };
        let numbers: Option<Vec<u64>> = value("position")?.split(':').map(|number| number.parse().ok()).collect();
        let [offset, length, unpacked, CRFS] = numbers?[..] else { return None };
        let is_inside = offset.checked_add(length)? <= size;
        let is_bounded = is_inside && size - offset <= LARGEST_TAIL && unpacked <= LARGEST_TOC;
        is_bounded.then_some(TocPosition { offset, length, unpacked, checksum: value("checksum")?.parse().ok()? })
    }

    /// The pieces from the blob's beginning, without gaps. `tail` is the blob from `offset`.
    pub(crate) fn pieces(&self, tail: &[u8]) -> Result<Vec<Piece>> {
        let packed = usize::try_from(self.length).ok().and_then(|length| tail.get(..length));
        let packed = packed.ok_or_else(|| wrong("it is cut"))?;
        if Digest::of(packed) != self.checksum {
            return Err(wrong("its checksum differs"));
        }
        let mut decoder = zstd::stream::read::Decoder::with_buffer(packed).map_err(wrong)?;
        decoder.window_log_max(WINDOW_LOG).map_err(wrong)?;
        let mut text = Vec::new();
        decoder.take(self.unpacked + 1).read_to_end(&mut text).map_err(wrong)?;
        if text.len() as u64 != self.unpacked {
            return Err(wrong("its size differs"));
        }
        parse(&text, self.offset)
    }
}

fn wrong(cause: impl ToString) -> Error {
    Error::new(Kind::Image, cause.to_string()).doing("read the table of contents of a zstd:chunked layer")
}

#[derive(Deserialize)]
struct Toc<'a> {
    version: u64,
    #[serde(borrow)]
    entries: Entries<'a>,
}

/// Unparsed: a parsed entry can take many times the memory of its text.
struct Entries<'a>(Vec<&'a RawValue>);

impl<'a, 'de: 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<'a>, D::Error> {
        deserializer.deserialize_seq(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Entries<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = all.next_element::<&RawValue>()? {
            if entries.len() == MOST_ENTRIES || entry.get().len() > LONGEST_ENTRY {
                return Err(de::Error::custom("too many entries, or one that is too long"));
            }
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// `end` is where the tar's frames end at the latest.
pub(super) fn parse(text: &[u8], end: u64) -> Result<Vec<Piece>> {
    let toc: Toc<'_> = serde_json::from_slice(text).map_err(wrong)?;
    if toc.version != 1 {
        return Err(wrong("its version is unknown"));
    }
    let mut pieces = Pieces { all: Vec::new(), at: 0, end };
    // The file that is not complete: the end of its last frame, and the key of the chunk that has begun.
    let mut open: Option<(u64, u128)> = None;
    let mut between = Hasher::sha256();
    for entry in toc.entries.0 {
        let mut entry: Map<String, Value> = serde_json::from_str(entry.get()).map_err(wrong)?;
        let mut taken = ["offset", "endOffset", "chunkDigest", "digest"].map(|name| entry.remove(name));
        let [offset, file_end] = [0, 1].map(|field| taken[field].as_ref().and_then(Value::as_u64).unwrap_or(0));
        let digest = taken[2..].iter_mut().flatten().find_map(|digest| digest.as_str());
        let digest = digest.map_or(0, |digest| key(sha256(digest.as_bytes())));
        let is_chunk = entry.get("type").is_some_and(|kind| kind == "chunk");
        if is_chunk {
            let (file_end, chunk) = open.take().ok_or_else(|| wrong("a chunk belongs to no file"))?;
            pieces.push(offset, chunk)?;
            open = Some((file_end, digest));
            continue;
        }
        if let Some((file_end, chunk)) = open.take() {
            pieces.push(file_end, chunk)?;
        }
        ["chunkSize", "chunkOffset", "chunkType"].iter().for_each(|name| drop(entry.remove(*name)));
        between.update(&serde_json::to_vec(&entry).map_err(wrong)?);
        if offset > 0 {
            // The tar headers between two files follow from the entries. A wrong guess changes the blob's digest.
            pieces.push(offset, key(std::mem::replace(&mut between, Hasher::sha256()).finish()))?;
            // The file's padding belongs to the next headers.
            between.update(entry.get("size").unwrap_or(&Value::Null).to_string().as_bytes());
            open = Some((file_end, digest));
        }
    }
    if let Some((file_end, chunk)) = open {
        pieces.push(file_end, chunk)?;
    }
    Ok(pieces.all)
}

fn key(hash: [u8; 32]) -> u128 {
    hash.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte))
}

struct Pieces {
    all: Vec<Piece>,
    at: u64,
    end: u64,
}

impl Pieces {
    /// From the last piece's end: pieces cannot overlap or leave gaps.
    fn push(&mut self, to: u64, key: u128) -> Result<()> {
        if to <= self.at || to > self.end {
            return Err(wrong("its offsets do not ascend, or leave the blob"));
        }
        self.all.push(Piece { offset: self.at, length: to - self.at, key });
        self.at = to;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(entries: &str) -> Option<Vec<u64>> {
        let text = format!(r#"{{"version":1,"entries":[{entries}]}}"#);
        parse(text.as_bytes(), 1000).ok().map(|pieces| pieces.iter().map(|piece| piece.length).collect())
    }

    #[test]
    fn pieces_are_headers_and_chunks_in_order_or_an_error() {
        let file = |from: i64, to: i64| {
            format!(
                r#"{{"type":"reg","name":"f{from}","size":9,"digest":"sha256:{from}","offset":{from},"endOffset":{to}}}"#
            )
        };
        let chunk = |at: i64| format!(r#"{{"type":"chunk","name":"f","chunkDigest":"sha256:c","offset":{at}}}"#);
        let check = |entries: &[String], expected: Option<&[u64]>| {
            assert_eq!(lengths(&entries.join(",")).as_deref(), expected, "{entries:?}");
        };
        let folder = r#"{"type":"dir","name":"d"}"#.to_owned();
        check(&[], Some(&[]));
        check(&[folder.clone(), file(10, 30)], Some(&[10, 20]));
        check(&[file(10, 30), folder, file(35, 1000)], Some(&[10, 20, 5, 965]));
        check(&[file(10, 30), chunk(15), chunk(25)], Some(&[10, 5, 10, 5]));
        // Reversed, overlapping, empty, outside, negative, and a chunk without a file.
        check(&[file(30, 40), file(10, 20)], None);
        check(&[file(10, 30), file(29, 40)], None);
        check(&[file(10, 10)], None);
        check(&[file(10, 1001)], None);
        check(&[file(10, -1)], None);
        check(&[file(10, 30), chunk(31)], None);
        check(&[chunk(5)], None);
    }

    #[test]
    fn headers_with_other_metadata_have_another_key() {
        let keys = |time: &str, offset: u64| {
            let end = offset + 20;
            let text = format!(
                r#"{{"version":1,"entries":[{{"type":"reg","modtime":"{time}","digest":"sha256:a","offset":{offset},"endOffset":{end}}}]}}"#
            );
            parse(text.as_bytes(), 1000).unwrap().iter().map(|piece| piece.key).collect::<Vec<_>>()
        };
        assert_eq!(keys("1", 10), keys("1", 11), "an offset is not content");
        assert_ne!(keys("1", 10)[0], keys("2", 10)[0]);
        assert_eq!(keys("1", 10)[1], keys("2", 10)[1]);
    }

    #[test]
    fn position_outside_the_blob_or_too_large_is_none() {
        let find = |position: &str, size| {
            let named = |(name, value): (&str, String)| (format!("io.containers.zstd-chunked.manifest-{name}"), value);
            let checksum = Digest::of(b"").to_string();
            let all = [("position", position.to_owned()), ("checksum", checksum)].map(named);
            TocPosition::find(&all.into_iter().collect(), size).is_some()
        };
        assert!(find("10:20:100:1", 30) && find("10:20:100:1", 1000));
        let far = format!("{}:20:100:1", u64::MAX - 3);
        for wrong in ["10:20:100:2", "10:20:100", "10:21:100:1", "10:20:99999999999:1", "-1:20:100:1", "", &far] {
            assert!(!find(wrong, 30), "{wrong}");
        }
        assert!(!find("10:20:100:1", 100 << 20), "the tail is too long for memory");
    }
}
