//! A tar reader for hostile archives, in bounded memory.
//!
//! An archive is refused where readers disagree about the next entry: sizes of entries without data, two extended
//! headers in a row, a global name. An entry that only one reader sees bypasses scanners (CVE-2025-62518).

pub(crate) use pax::MOST_EXTENTS;

mod header;
mod pax;
mod sparse;
pub(crate) mod write;

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use header::{BLOCK, Header};
use std::io::{BufRead, BufReader, Read, Seek};

/// Long names and extended headers are kept in memory.
const LARGEST_EXTENSION: u64 = 1 << 20;
/// Linux has 12 bits for a major and 20 for a minor number. Truncated, it would be another device.
const LARGEST_MAJOR: i64 = (1 << 12) - 1;
const LARGEST_MINOR: i64 = (1 << 20) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Character,
    Block,
    Directory,
    Fifo,
}

/// Names are bytes, unchanged from the archive.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// The twelve permission bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// A sparse file stores less.
    pub(crate) size: u64,
    /// Offset and length of stored bytes, if the file has holes.
    pub(crate) sparse: Option<Vec<(u64, u64)>>,
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// Of root, with mode 0644 and without data.
    pub(crate) fn new(kind: EntryKind, path: impl Into<Vec<u8>>) -> Entry {
        Entry {
            kind,
            path: path.into(),
            link: Vec::new(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            size: 0,
            sparse: None,
            device: (0, 0),
            xattrs: Vec::new(),
        }
    }
}

pub(crate) struct Reader<R> {
    source: R,
    /// Unread bytes of the current entry, and the padding after them.
    data_left: u64,
    padding: u64,
}

/// A test disables this to prove that its archives are ambiguous.
fn is_strict() -> bool {
    !weaken::is_off("image-tar-readers")
}

pub(crate) fn is_tar(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK>().is_some_and(|block| Header::read(block).is_ok())
}

pub(super) fn malformed(why: &str) -> Error {
    Error::new(Kind::Image, why)
}

impl<R: BufRead> Reader<R> {
    pub(crate) fn new(source: R) -> Reader<R> {
        Reader { source, data_left: 0, padding: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let (mut long_name, mut long_link, mut extended) = (None, None, None);
        loop {
            self.skip_data()?;
            let Some(block) = self.block()? else {
                return if long_name.is_some() || long_link.is_some() || extended.is_some() {
                    Err(malformed("an extended header has no entry behind it"))
                } else {
                    Ok(None)
                };
            };
            let header = Header::read(&block)?;
            let twice = || malformed("two extended headers of one kind stand before one entry");
            match header.kind() {
                b'L' => {
                    let old = long_name.replace(self.long_name(&header)?);
                    old.is_none().then_some(()).ok_or_else(twice)?;
                }
                b'K' => {
                    let old = long_link.replace(self.long_name(&header)?);
                    old.is_none().then_some(()).ok_or_else(twice)?;
                }
                b'x' => {
                    let old = extended.replace(pax::parse(&self.extension(&header)?)?);
                    old.is_none().then_some(()).ok_or_else(twice)?;
                }
                b'g' => pax::check_global(&self.extension(&header)?)?,
                _ => {
                    let pax = extended.unwrap_or_default();
                    return self.entry(&header, long_name, long_link, pax).map(Some);
                }
            }
        }
    }

    /// Passes the stored bytes to `sink`, with their offsets in the file.
    pub(crate) fn data(&mut self, entry: &Entry, mut sink: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let whole = [(0, entry.size)];
        let extents = entry.sparse.as_deref().unwrap_or(&whole);
        for &(mut offset, mut length) in extents {
            while length > 0 {
                let piece = self.source.fill_buf().map_err(unreadable)?;
                if piece.is_empty() {
                    return Err(truncated());
                }
                let count = piece.len().min(usize::try_from(length).unwrap_or(usize::MAX));
                sink(offset, &piece[..count])?;
                self.source.consume(count);
                self.data_left = self.data_left.saturating_sub(count as u64);
                offset += count as u64;
                length -= count as u64;
            }
        }
        Ok(())
    }

    pub(crate) fn source(&mut self) -> &mut R {
        &mut self.source
    }

    fn entry(
        &mut self,
        header: &Header<'_>,
        name: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
        pax: pax::Pax,
    ) -> Result<Entry> {
        let names = |of: &Option<Vec<u8>>, gnu: &Option<Vec<u8>>| of.is_some() && gnu.is_some() && is_strict();
        if names(&pax.path, &name) || names(&pax.link, &link) {
            return Err(malformed("it has two names: in an extended header, and in a long one of GNU tar"));
        }
        header.check_prefix()?;
        let path = pax.path.clone().or(name).unwrap_or_else(|| header.name());
        let link = pax.link.clone().or(link).unwrap_or_else(|| header.link());
        let said = pax.size.filter(|_| !weaken::is_off("image-pax-size"));
        let stored = said.map_or_else(|| header.size(), Ok)?;
        let kind = match header.kind() {
            // Before POSIX a directory was a file with a slash after its name.
            0 if path.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::Character,
            b'4' => EntryKind::Block,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            other => return Err(malformed(&format!("an entry has the unknown type {other:#04x}")).doing(named(&path))),
        };
        // Some writers put the file's size there; all readers agree that no data follows.
        let stored = if kind == EntryKind::HardLink { 0 } else { stored };
        if kind != EntryKind::File && stored != 0 {
            return Err(
                malformed("it is not a file and has data, so the next entry depends on the reader").doing(named(&path))
            );
        }
        let id = |number: i64| u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        let uid = pax.uid.map_or_else(|| header.uid(), |uid| Ok(uid.cast_signed()))?;
        let gid = pax.gid.map_or_else(|| header.gid(), |gid| Ok(gid.cast_signed()))?;
        let (Some(uid), Some(gid)) = (id(uid), id(gid)) else {
            return Err(malformed("its owner is out of range").doing(named(&path)));
        };
        let mut entry = Entry {
            kind,
            link,
            mode: u32::try_from(header.mode()? & 0o7777).unwrap_or(0),
            uid,
            gid,
            mtime: pax.mtime.map_or_else(|| header.mtime().map(|seconds| (seconds, 0)), Ok)?,
            size: stored,
            sparse: None,
            device: self.device(header, kind).map_err(|error| error.doing(named(&path)))?,
            xattrs: Vec::new(),
            path,
        };
        self.data_left = stored;
        self.padding = stored.next_multiple_of(BLOCK as u64) - stored;
        sparse::apply(self, header, &pax, &mut entry).map_err(|error| error.doing(named(&entry.path)))?;
        entry.xattrs = pax.xattrs;
        Ok(entry)
    }

    fn device(&self, header: &Header<'_>, kind: EntryKind) -> Result<(u32, u32)> {
        if !matches!(kind, EntryKind::Character | EntryKind::Block) {
            return Ok((0, 0));
        }
        let (major, minor) = header.device()?;
        if weaken::is_off("image-device-number") {
            return Ok((major as u32, minor as u32));
        }
        if !(0..=LARGEST_MAJOR).contains(&major) || !(0..=LARGEST_MINOR).contains(&minor) {
            return Err(malformed(&format!("the device number {major}:{minor} is out of range")));
        }
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }

    /// `None` at the end marker or where the stream ends between entries.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let Some(block) = self.raw_block()? else { return Ok(None) };
        if block != [0; BLOCK] {
            return Ok(Some(block));
        }
        match self.raw_block()? {
            None => Ok(None),
            Some(second) if second == [0; BLOCK] => Ok(None),
            Some(_) => Err(malformed("one empty block, and then more: neither an end nor an entry")),
        }
    }

    fn raw_block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut block[filled..]).map_err(unreadable)? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(truncated()),
                count => filled += count,
            }
        }
        Ok(Some(block))
    }

    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>> {
        let size = header.size()?;
        if size > LARGEST_EXTENSION {
            return Err(malformed(&format!("an extended header of {size} bytes; {LARGEST_EXTENSION} are allowed")));
        }
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        let mut data = Vec::new();
        self.source.by_ref().take(size).read_to_end(&mut data).map_err(unreadable)?;
        if data.len() as u64 == size { Ok(data) } else { Err(truncated()) }
    }

    /// GNU tar and Python read into the padding up to a NUL; other readers stop at the size. Refuses a name that
    /// differs between them.
    fn long_name(&mut self, header: &Header<'_>) -> Result<Vec<u8>> {
        let data = self.extension(header)?;
        if data.last() != Some(&0) && self.padding > 0 {
            let next = self.source.fill_buf().map_err(unreadable)?.first().copied();
            if next.is_some_and(|byte| byte != 0) {
                return Err(malformed("a long name goes on behind its end"));
            }
        }
        c_string(data)
    }

    fn skip_data(&mut self) -> Result<()> {
        let mut left = std::mem::take(&mut self.data_left) + std::mem::take(&mut self.padding);
        while left > 0 {
            let piece = self.source.fill_buf().map_err(unreadable)?;
            if piece.is_empty() {
                return Err(truncated());
            }
            let count = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.source.consume(count);
            left -= count as u64;
        }
        Ok(())
    }
}

/// Printable, for errors.
pub(crate) fn named(path: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(path).chars().take(200).collect();
    format!("read the entry `{}`", shown.escape_debug())
}

fn c_string(mut data: Vec<u8>) -> Result<Vec<u8>> {
    if data.last() == Some(&0) {
        data.pop();
    }
    if data.contains(&0) || data.is_empty() {
        Err(malformed("a long name is empty or has a NUL in it"))
    } else {
        Ok(data)
    }
}

fn truncated() -> Error {
    malformed("the archive ends in the middle of an entry")
}

/// brig's errors pass through the decoders inside `io::Error`.
pub(crate) fn unreadable(cause: std::io::Error) -> Error {
    match cause.downcast::<Error>() {
        Ok(error) => error,
        Err(cause) if cause.raw_os_error().is_some() => Error::os(Kind::Image, cause),
        Err(cause) => Error::new(Kind::Image, cause.to_string()),
    }
}

impl<R: Read + Seek> Reader<BufReader<R>> {
    pub(crate) fn seek_past_data(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.data_left) + std::mem::take(&mut self.padding);
        let left = i64::try_from(left).map_err(|_| malformed("an entry is longer than any file"))?;
        self.source.seek_relative(left).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests;
