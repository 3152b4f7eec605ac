//! A zstd:chunked layer is put together from blobs of the store and from ranges of the registry's blob.
//!
//! Order: fetch the blob's tail with its table of contents, look for its pieces in stored blobs, plan. Then the parts
//! are read in order as one stream. The reader checks the blob's digest, as of a download. If a table of contents is
//! wrong or saves little, the blob is fetched as a whole.

use super::resume::ResumingReader;
use super::{Extent, Registry};
use crate::error::{Error, Kind, Result};
use crate::image::Digest;
use crate::image::manifest::{self, Descriptor, Document};
use crate::image::store::Store;
use crate::image::toc::{Piece, TocPosition};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

/// Costs as much time as a request: 20 ms at 200 Mbit/s. Requests follow each other.
const REQUEST: u64 = 512 << 10;
const MOST_REQUESTS: usize = 256;
/// Bytes before the table of contents that are fetched with it: the tar's end is always there.
const LEAD: u64 = 16 << 10;
/// A smaller gain is not worth the effort.
const LEAST_GAIN: u64 = 1 << 20;
/// At least a tenth of the blob.
const LEAST_SHARE: u64 = 10;
const MOST_IMAGES: usize = 16;
const MOST_BLOBS: usize = 8;

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Registry,
    Tail,
    Stored { blob: usize, offset: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    offset: u64,
    length: u64,
    origin: Origin,
}

impl Part {
    fn end(&self) -> u64 {
        self.offset + self.length
    }

    fn skip(&mut self, count: u64) {
        self.offset += count;
        self.length -= count;
        if let Origin::Stored { offset, .. } = &mut self.origin {
            *offset += count;
        }
    }
}

impl<'a> Registry<'a> {
    /// The blob from byte `from`, and the number of bytes that the store contributes. `None` if the blob must be
    /// fetched as a whole.
    pub(super) fn assemble<'b>(
        &'b self,
        descriptor: &Descriptor,
        from: u64,
        store: &Store,
    ) -> Result<Option<(AssembledReader<'a, 'b>, u64)>> {
        let Some(position) = &descriptor.toc else { return Ok(None) };
        if descriptor.size - from < LEAST_GAIN {
            return Ok(None);
        }
        let candidates = self.candidates(store, descriptor)?;
        if candidates.is_empty() {
            return Ok(None);
        }
        let tail_from = position.offset.saturating_sub(LEAD);
        let mut tail = Vec::new();
        let extent = Extent::Range(tail_from..descriptor.size);
        match ResumingReader::new(self, descriptor, extent).read_to_end(&mut tail).map_err(super::client::unreachable) {
            Ok(_) => {}
            Err(error) if error.retryable() => return Err(error),
            Err(_) => return Ok(None),
        }
        let Ok(pieces) = position.pieces(&tail[(position.offset - tail_from) as usize..]) else { return Ok(None) };
        let (found, stored) = find(&pieces, &candidates, store);
        let parts = plan(&pieces, &found, from..descriptor.size, tail_from);
        let Some(gain) = gain(&parts, descriptor.size - from) else { return Ok(None) };
        let (registry, descriptor) = (self, descriptor.clone());
        let reader =
            AssembledReader { registry, descriptor, parts: parts.into(), stored, tail, tail_from, request: None };
        Ok(Some((reader, gain)))
    }

    /// The stored blobs that may share pieces with the layer. Only images of this registry count: the ranges that are
    /// not asked show which pieces the store has. Those of the same repository come first, then those of the most
    /// similar size.
    fn candidates(&self, store: &Store, wanted: &Descriptor) -> Result<Vec<Descriptor>> {
        let (mut same, mut of_registry) = (BTreeSet::<Digest>::new(), BTreeSet::new());
        for (name, digest) in store.names()?.into_iter().filter(|(name, _)| name.host() == self.reference.host()) {
            if name.name() == self.reference.name() {
                same.insert(digest.clone());
            }
            of_registry.insert(digest);
        }
        let mut images = store.images()?;
        images.retain(|image| of_registry.contains(&image.digest));
        images.sort_by_key(|image| std::cmp::Reverse((same.contains(&image.digest), image.added)));
        let mut all = Vec::new();
        for image in images.iter().take(MOST_IMAGES) {
            // The record has no annotations. A damaged manifest is not this pull's problem.
            let Ok(bytes) = store.read_blob(&image.manifest) else { continue };
            let Ok(Document::Manifest(manifest)) = manifest::parse(&bytes, None) else { continue };
            let is_same = same.contains(&image.digest);
            all.extend(manifest.layers.into_iter().filter(|layer| layer.toc.is_some()).map(|layer| (is_same, layer)));
        }
        all.sort_by_key(|(is_same, layer)| (!is_same, layer.size.abs_diff(wanted.size)));
        let mut seen = BTreeSet::from([wanted.digest.clone()]);
        let is_usable = |layer: &Descriptor| seen.insert(layer.digest.clone()) && store.has_blob(layer);
        Ok(all.into_iter().map(|(_, layer)| layer).filter(is_usable).take(MOST_BLOBS).collect())
    }
}

/// For each piece a stored blob with its offset there, and those blobs.
fn find(pieces: &[Piece], candidates: &[Descriptor], store: &Store) -> (Vec<Option<(usize, u64)>>, Vec<File>) {
    let (mut found, mut stored) = (vec![None; pieces.len()], Vec::new());
    for candidate in candidates {
        let Some((file, mut theirs)) = candidate.toc.as_ref().and_then(|toc| open(candidate, toc, store)) else {
            continue;
        };
        theirs.sort_unstable_by_key(|piece| (piece.key, piece.length));
        let mut is_used = false;
        for (piece, found) in pieces.iter().zip(&mut found).filter(|(piece, found)| found.is_none() && piece.key != 0) {
            let wanted = (piece.key, piece.length);
            if let Ok(at) = theirs.binary_search_by_key(&wanted, |piece| (piece.key, piece.length)) {
                *found = Some((stored.len(), theirs[at].offset));
                is_used = true;
            }
        }
        if is_used {
            stored.push(file);
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    (found, stored)
}

/// The open file stays readable if `prune` removes its name.
fn open(blob: &Descriptor, toc: &TocPosition, store: &Store) -> Option<(File, Vec<Piece>)> {
    let file = store.open_blob(&blob.digest).ok()?;
    let mut tail = vec![0; usize::try_from(blob.size - toc.offset).ok()?];
    file.read_exact_at(&mut tail, toc.offset).ok()?;
    let pieces = toc.pieces(&tail).ok()?;
    Some((file, pieces))
}

/// Covers `range` of the blob in order. Bytes from `tail` on are there already.
fn plan(pieces: &[Piece], found: &[Option<(usize, u64)>], range: std::ops::Range<u64>, tail: u64) -> Vec<Part> {
    let mut gap = REQUEST;
    loop {
        let mut parts = Vec::new();
        for (piece, found) in pieces.iter().zip(found) {
            let origin = found.map_or(Origin::Registry, |(blob, offset)| Origin::Stored { blob, offset });
            push(&mut parts, Part { offset: piece.offset, length: piece.length, origin }, range.start, tail, gap);
        }
        let at = pieces.last().map_or(0, |piece| piece.offset + piece.length);
        let rest = Part { offset: at, length: tail.saturating_sub(at), origin: Origin::Registry };
        push(&mut parts, rest, range.start, tail, gap);
        let end = Part { offset: tail, length: range.end - tail, origin: Origin::Tail };
        push(&mut parts, end, range.start, range.end, gap);
        if parts.iter().filter(|part| part.origin == Origin::Registry).count() <= MOST_REQUESTS {
            return parts;
        }
        gap *= 2;
    }
}

/// The bytes of the store. `None` if the requests take about as long as a download of all `size` bytes.
fn gain(parts: &[Part], size: u64) -> Option<u64> {
    let of_store = |part: &&Part| matches!(part.origin, Origin::Stored { .. });
    let stored: u64 = parts.iter().filter(of_store).map(|part| part.length).sum();
    let requests = parts.iter().filter(|part| part.origin == Origin::Registry).count() as u64;
    let gain = stored.saturating_sub(requests * REQUEST);
    (gain >= LEAST_GAIN && gain >= size / LEAST_SHARE).then_some(stored)
}

/// Appends the part, cut to `from..to`. Extends the last part, or replaces a short hole between two requests.
fn push(parts: &mut Vec<Part>, mut part: Part, from: u64, to: u64, gap: u64) {
    part.skip(from.saturating_sub(part.offset).min(part.length));
    part.length = part.length.min(to.saturating_sub(part.offset));
    if part.length == 0 {
        return;
    }
    if part.origin == Origin::Registry {
        let others = parts.iter().rev().take_while(|other| other.origin != Origin::Registry).count();
        let kept = parts.len() - others;
        if kept > 0 && part.offset - parts[kept - 1].end() < gap {
            parts.truncate(kept);
        }
    }
    let joins = |last: &Part| match (last.origin, part.origin) {
        (Origin::Stored { blob, offset }, Origin::Stored { blob: other, offset: next }) => {
            blob == other && offset + last.length == next
        }
        (last, next) => last == next,
    };
    match parts.last_mut() {
        Some(last) if joins(last) => last.length = part.end() - last.offset,
        _ => parts.push(part),
    }
}

pub(super) struct AssembledReader<'a, 'b> {
    registry: &'b Registry<'a>,
    descriptor: Descriptor,
    parts: VecDeque<Part>,
    stored: Vec<File>,
    tail: Vec<u8>,
    tail_from: u64,
    /// Of the first part.
    request: Option<ResumingReader<'b>>,
}

impl Read for AssembledReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(part) = self.parts.front_mut() else { return Ok(0) };
        let most = usize::try_from(part.length).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..most];
        let count = match part.origin {
            Origin::Tail => {
                let mut rest = self.tail.get((part.offset - self.tail_from) as usize..).unwrap_or_default();
                rest.read(buffer)?
            }
            Origin::Stored { blob, offset } => self.stored[blob].read_at(buffer, offset)?,
            Origin::Registry => {
                let extent = Extent::Range(part.offset..part.end());
                let new = || ResumingReader::new(self.registry, &self.descriptor, extent);
                self.request.get_or_insert_with(new).read(buffer)?
            }
        };
        if count == 0 && !buffer.is_empty() {
            return Err(std::io::Error::other(Error::new(Kind::Image, "a blob is shorter than its table of contents")));
        }
        part.skip(count as u64);
        if part.length == 0 {
            self.parts.pop_front();
            self.request = None;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    /// Pieces as `LENGTH` for missing ones and `LENGTH@BLOB` for stored ones, in KiB.
    fn check(pieces: &str, from: u64, tail: u64, size: u64, expected: &str) {
        let (mut all, mut found, mut at) = (Vec::new(), Vec::new(), 0);
        for piece in pieces.split_whitespace() {
            let (length, blob) = piece.split_once('@').map_or((piece, None), |(length, blob)| (length, Some(blob)));
            let length = length.parse::<u64>().unwrap() * K;
            all.push(Piece { offset: at, length, key: 1 });
            found.push(blob.map(|blob| (blob.parse().unwrap(), at + K)));
            at += length;
        }
        let parts = plan(&all, &found, from * K..size * K, tail * K);
        let mut next = from * K;
        let text = parts.iter().map(|part| {
            assert_eq!(part.offset, next, "{pieces}: a gap or an overlap");
            next = part.end();
            let name = match part.origin {
                Origin::Registry => "fetch".to_owned(),
                Origin::Tail => "tail".to_owned(),
                Origin::Stored { blob, offset } => {
                    assert_eq!(offset, part.offset + K, "{pieces}");
                    format!("copy-{blob}")
                }
            };
            format!("{name}:{}", part.length / K)
        });
        assert_eq!(text.collect::<Vec<_>>().join(" "), expected, "{pieces}");
        assert_eq!(next, size * K);
    }

    #[test]
    fn plan_covers_the_blob_and_joins_what_is_close() {
        check("", 0, 90, 100, "fetch:90 tail:10");
        check("1000@0 2000@0 500@1", 0, 3500, 4000, "copy-0:3000 copy-1:500 tail:500");
        check("10 1000@0 10", 0, 1020, 1030, "fetch:10 copy-0:1000 fetch:10 tail:10");
        // A short copy between two requests is fetched with them, one at an end is not.
        check("10 20@0 20@1 10", 0, 60, 70, "fetch:60 tail:10");
        check("20@0 10 1000@0 10 20@1", 0, 1060, 1070, "copy-0:20 fetch:10 copy-0:1000 fetch:10 copy-1:20 tail:10");
        check("10 400@0 10 400@0 10", 0, 830, 840, "fetch:830 tail:10");
        // Continue in the middle of a copy, of a request, and of the tail.
        check("100@0 100 100@1", 50, 300, 310, "copy-0:50 fetch:100 copy-1:100 tail:10");
        check("100@0 100 100@1", 150, 300, 310, "fetch:50 copy-1:100 tail:10");
        check("100@0", 105, 100, 110, "tail:5");
        // The tail begins within a piece.
        check("100@0 100@1", 0, 150, 210, "copy-0:100 copy-1:50 tail:60");
        check("100@0", 0, 120, 130, "copy-0:100 fetch:20 tail:10");
    }

    #[test]
    fn plan_has_no_more_requests_than_the_bound() {
        let pieces = "1 600@0 ".repeat(MOST_REQUESTS + 1);
        let count = (MOST_REQUESTS as u64 + 1) * 601;
        check(&pieces, 0, count, count + 1, &format!("fetch:{} copy-0:600 tail:1", count - 600));
    }

    #[test]
    fn gain_of_many_requests_is_small() {
        let stored = |length| Part { offset: 0, length: length * K, origin: Origin::Stored { blob: 0, offset: 0 } };
        let fetched = || Part { offset: 0, length: K, origin: Origin::Registry };
        assert_eq!(gain(&[stored(2000)], 9000 * K), Some(2000 * K));
        assert_eq!(gain(&[stored(1000)], 9000 * K), None);
        assert_eq!(gain(&[stored(2000)], 30_000 * K), None);
        assert_eq!(gain(&[stored(1000), fetched(), stored(1000)], 9000 * K), Some(2000 * K));
        assert_eq!(gain(&[stored(1000), fetched(), stored(1000), fetched()], 9000 * K), None);
    }
}
