//! Writes ustar where possible, else a PAX header. Files with holes have version 1.0 of GNU tar's form, the most widely
//! supported.

use super::header::BLOCK;
use super::{Entry, EntryKind};
use crate::error::{Result, Step};
use std::io::Write;
use std::path::Path;

/// The file is executable and belongs to root.
pub(crate) fn one_file_archive(path: &Path, name: &str) -> Result<Vec<u8>> {
    const LONGEST: u64 = 256 << 20;
    let bytes = crate::files::read_bounded(path, LONGEST)?;
    let mut writer = Writer::new(Vec::with_capacity(bytes.len() + 8 * BLOCK));
    writer.entry(&Entry { mode: 0o755, size: bytes.len() as u64, ..Entry::new(EntryKind::File, name) })?;
    writer.data(&bytes)?;
    writer.finish()
}

pub(crate) struct Writer<W: Write> {
    sink: W,
    padding: usize,
}

/// The largest numbers in the octal fields of ustar.
const LARGEST_SIZE: u64 = 0o777_7777_7777;
const LARGEST_ID: u32 = 0o777_7777;

impl<W: Write> Writer<W> {
    pub(crate) fn new(sink: W) -> Writer<W> {
        Writer { sink, padding: 0 }
    }

    /// Exactly `entry.size` bytes of data, or those of `entry.sparse`, must follow.
    pub(crate) fn entry(&mut self, entry: &Entry) -> Result<()> {
        self.pad()?;
        let map = entry.sparse.as_deref().filter(|_| entry.kind == EntryKind::File).map(map_text);
        let stored = match (&map, &entry.sparse) {
            (Some(text), Some(map)) => text.len() as u64 + map.iter().map(|(_, length)| length).sum::<u64>(),
            _ => entry.size,
        };
        let records = records(entry, stored);
        if !records.is_empty() {
            let header = block(b"././@PaxHeader", b"", b'x', 0o644, (0, 0), records.len() as u64, 0, (0, 0));
            self.put(&header)?;
            self.put(&records)?;
            self.put(&vec![0; records.len().next_multiple_of(BLOCK) - records.len()])?;
        }
        let kind = match entry.kind {
            EntryKind::File => b'0',
            EntryKind::HardLink => b'1',
            EntryKind::Symlink => b'2',
            EntryKind::Character => b'3',
            EntryKind::Block => b'4',
            EntryKind::Directory => b'5',
            EntryKind::Fifo => b'6',
        };
        let size = if entry.kind == EntryKind::File { stored } else { 0 };
        let seconds = u64::try_from(entry.mtime.0).unwrap_or(0);
        let owner = (entry.uid.min(LARGEST_ID), entry.gid.min(LARGEST_ID));
        let header = block(&entry.path, &entry.link, kind, entry.mode, owner, size, seconds, entry.device);
        self.put(&header)?;
        self.put(&map.unwrap_or_default())?;
        self.padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0);
        Ok(())
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes)
    }

    pub(crate) fn finish(mut self) -> Result<W> {
        self.pad()?;
        self.put(&[0; 2 * BLOCK])?;
        self.sink.flush().map_err(|cause| crate::files::failed(cause, "write the archive".into()))?;
        Ok(self.sink)
    }

    fn pad(&mut self) -> Result<()> {
        let padding = std::mem::take(&mut self.padding);
        self.put(&[0; BLOCK][..padding])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.sink.write_all(bytes).map_err(|cause| match cause.downcast::<crate::error::Error>() {
            Ok(error) => error,
            Err(cause) => crate::files::failed(cause, "write the archive".into()),
        });
        written.doing(|| "write a tar stream")
    }
}

/// What the plain header cannot express.
fn records(entry: &Entry, stored: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if entry.path.len() > 100 {
        record(&mut out, b"path", &entry.path);
    }
    if entry.link.len() > 100 {
        record(&mut out, b"linkpath", &entry.link);
    }
    if stored > LARGEST_SIZE && entry.kind == EntryKind::File {
        record(&mut out, b"size", stored.to_string().as_bytes());
    }
    if entry.sparse.is_some() && entry.kind == EntryKind::File {
        record(&mut out, b"GNU.sparse.major", b"1");
        record(&mut out, b"GNU.sparse.minor", b"0");
        record(&mut out, b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
    }
    if entry.uid > LARGEST_ID {
        record(&mut out, b"uid", entry.uid.to_string().as_bytes());
    }
    if entry.gid > LARGEST_ID {
        record(&mut out, b"gid", entry.gid.to_string().as_bytes());
    }
    let (seconds, nanoseconds) = entry.mtime;
    if nanoseconds != 0 || !(0..=LARGEST_SIZE.cast_signed()).contains(&seconds) {
        // A time before 1970 counts its fraction away from zero.
        let text = match (seconds < 0, nanoseconds) {
            (true, 1..) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
            _ => format!("{seconds}.{nanoseconds:09}"),
        };
        record(&mut out, b"mtime", text.as_bytes());
    }
    for (name, value) in &entry.xattrs {
        record(&mut out, &[b"SCHILY.xattr.", name.as_slice()].concat(), value);
    }
    out
}

/// The count, then offset and length of each, padded to whole blocks.
fn map_text(map: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", map.len()).into_bytes();
    for (offset, length) in map {
        text.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    text.resize(text.len().next_multiple_of(BLOCK), 0);
    text
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[expect(clippy::too_many_arguments, reason = "one a field of the header, all of them plain numbers and bytes")]
fn block(
    name: &[u8],
    link: &[u8],
    kind: u8,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    mtime: u64,
    device: (u32, u32),
) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, room: usize, bytes: &[u8]| {
        let count = bytes.len().min(room);
        block[at..at + count].copy_from_slice(&bytes[..count]);
    };
    put(0, 100, name);
    put(100, 8, format!("{mode:07o}").as_bytes());
    put(108, 8, format!("{:07o}", owner.0).as_bytes());
    put(116, 8, format!("{:07o}", owner.1).as_bytes());
    put(124, 12, format!("{:011o}", size.min(LARGEST_SIZE)).as_bytes());
    put(136, 12, format!("{:011o}", mtime.min(LARGEST_SIZE)).as_bytes());
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link);
    put(257, 8, b"ustar\x0000");
    put(329, 8, format!("{:07o}", device.0).as_bytes());
    put(337, 8, format!("{:07o}", device.1).as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
