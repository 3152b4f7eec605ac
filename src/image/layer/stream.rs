//! One thread reads, hashes and inflates a compressed blob; a second hashes the tar (the DiffID). The caller parses and
//! writes. Recycled chunks keep memory at a few MiB for a layer of any size.
//!
//! The content determines the compression: the media type is often wrong.

use super::limits::Budget;
use crate::error::{Error, Kind, Result};
use crate::files::lost;
use crate::image::Digest;
use crate::image::digest::{Algorithm, Hasher};
use crate::image::tar::{is_tar, unreadable};
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};

/// Few system calls, but within the second-level cache.
const CHUNK: usize = 256 << 10;
/// Absorbs a slow file.
const QUEUE: usize = 6;
/// Bytes of a refused blob that are read to verify its digest. A hostile server could send without end.
const LONGEST_REST: u64 = 64 << 20;
/// The most that zstd's own tools use without a special option.
const ZSTD_WINDOW_LOG: u32 = 27;

#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) blob: Digest,
    pub(crate) blob_size: u64,
    pub(crate) diff_id: Digest,
    pub(crate) size: u64,
}

/// Reads the tar to its end, since the DiffID covers it. The outer error means that the blob was not read to its end.
pub(crate) fn decode<'a, T>(
    blob: Box<dyn Read + Send + 'a>,
    algorithm: Algorithm,
    expected_size: Option<u64>,
    budget: &Budget,
    consume: impl FnOnce(&mut Stream) -> Result<T>,
) -> Result<(Result<T>, Measured)> {
    let pool = Arc::new(Pool::default());
    let (to_reader, from_decoder) = sync_channel(QUEUE);
    std::thread::scope(|threads| {
        let tar = TarHasher::start(threads);
        let hash = Hasher::new(algorithm);
        let decoder = threads.spawn(|| {
            let pool = Arc::clone(&pool);
            let tap = Tap { blob, hash, pool, current: None, position: 0, seen: 0, limit: expected_size, budget };
            inflate(tap, budget, tar, to_reader)
        });
        let mut stream = Stream { chunks: from_decoder, current: None, position: 0 };
        let outcome = consume(&mut stream).and_then(|value| stream.drain().map(|()| value));
        drop(stream);
        match (decoder.join().map_err(|_| lost())??, outcome) {
            (Some(measured), outcome) => Ok((outcome, measured)),
            (None, Err(error)) => Err(error.hint("if the blob was damaged on its way, fetch it again")),
            (None, Ok(_)) => Err(lost()),
        }
    })
}

/// Hashes the tar while the caller writes it.
struct TarHasher<'scope> {
    chunks: SyncSender<Arc<Chunk>>,
    thread: ScopedJoinHandle<'scope, Digest>,
}

impl<'scope> TarHasher<'scope> {
    fn start(threads: &'scope Scope<'scope, '_>) -> TarHasher<'scope> {
        let (sender, chunks) = sync_channel::<Arc<Chunk>>(QUEUE);
        let thread = threads.spawn(move || {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            chunks.iter().for_each(|chunk| hasher.update(&chunk.bytes));
            hasher.finish()
        });
        TarHasher { chunks: sender, thread }
    }

    fn push(&self, chunk: &Arc<Chunk>) {
        // If the thread panicked, `finish` reports that.
        let _ = self.chunks.send(Arc::clone(chunk));
    }

    fn finish(self) -> Result<Digest> {
        drop(self.chunks);
        self.thread.join().map_err(|_| lost())
    }
}

/// Hashes each chunk of a blob, and refuses more bytes than announced.
struct Tap<'a> {
    blob: Box<dyn Read + Send + 'a>,
    hash: Hasher,
    pool: Arc<Pool>,
    current: Option<Arc<Chunk>>,
    position: usize,
    seen: u64,
    limit: Option<u64>,
    budget: &'a Budget,
}

impl Tap<'_> {
    fn left(&self) -> u64 {
        self.limit.map_or(0, |limit| limit.saturating_sub(self.seen))
    }
}

impl BufRead for Tap<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|chunk| self.position == chunk.bytes.len()) {
            self.position = 0;
            self.current = None;
            if let Some(chunk) = self.pool.fill(&mut self.blob)? {
                let count = chunk.bytes.len() as u64;
                self.seen += count;
                self.budget.take_packed(count);
                if self.limit.is_some_and(|limit| self.seen > limit) {
                    return Err(io::Error::other(Error::new(
                        Kind::Image,
                        "the blob is longer than its descriptor announces",
                    )));
                }
                self.hash.update(&chunk.bytes);
                self.current = Some(chunk);
            }
        }
        Ok(self.current.as_ref().map_or(&[], |chunk| &chunk.bytes[self.position..]))
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl Read for Tap<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        copy_out(self, buffer)
    }
}

/// After an error the rest is only hashed, so that a corrupt blob is reported as corrupt. `None` if that rest is too
/// long.
fn inflate(
    mut tap: Tap<'_>,
    budget: &Budget,
    tar: TarHasher<'_>,
    to_reader: SyncSender<Result<Arc<Chunk>>>,
) -> Result<Option<Measured>> {
    let mut size = 0;
    let is_whole = match pump(&mut tap, budget, &to_reader, &tar, &mut size) {
        Ok(is_whole) => is_whole,
        Err(error) => {
            // The consumer has failed and receives no more.
            let _ = to_reader.send(Err(error));
            false
        }
    };
    drop(to_reader);
    if !is_whole && tap.left() > LONGEST_REST {
        return Ok(None);
    }
    loop {
        match tap.fill_buf().map_err(unreadable)?.len() {
            0 => break,
            count => tap.consume(count),
        }
    }
    Ok(Some(Measured { blob_size: tap.seen, blob: tap.hash.finish(), diff_id: tar.finish()?, size }))
}

fn pump(
    source: &mut Tap<'_>,
    budget: &Budget,
    to_reader: &SyncSender<Result<Arc<Chunk>>>,
    tar: &TarHasher<'_>,
    size: &mut u64,
) -> Result<bool> {
    let pool = Arc::clone(&source.pool);
    let head = source.fill_buf().map_err(unreadable)?;
    let mut decoder: Box<dyn Read + '_> = match Compression::of(head)? {
        Compression::None => Box::new(&mut *source),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(&mut *source)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(&mut *source).map_err(unreadable)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(unreadable)?;
            Box::new(decoder)
        }
    };
    while let Some(chunk) = pool.fill(&mut decoder).map_err(corrupt)? {
        let count = chunk.bytes.len() as u64;
        *size += count;
        budget.take_unpacked(count)?;
        tar.push(&chunk);
        if to_reader.send(Ok(chunk)).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn corrupt(cause: io::Error) -> Error {
    unreadable(cause).doing("decompress it")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub(crate) fn of(head: &[u8]) -> Result<Compression> {
        let found = Compression::by_magic(head)?;
        // A file may have such a name: readers that trust the media type see a tar, others the compressed data.
        if found != Compression::None && is_tar(head) && !crate::sys::weaken::is_off("image-tar-readers") {
            return Err(Error::new(
                Kind::Image,
                "it is a tar and begins as a compressed blob: readers disagree about what is in it",
            ));
        }
        Ok(found)
    }

    fn by_magic(head: &[u8]) -> Result<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
            // A frame, or a skippable one in front of it (zstd:chunked).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
            [b'B', b'Z', b'h', ..] => Err(Error::new(Kind::Image, "bzip2 layers are not supported")),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Err(Error::new(Kind::Image, "xz layers are not supported")),
            _ => Ok(Compression::None),
        }
    }
}

/// The last reader returns its memory to the pool.
struct Chunk {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}

/// Fresh memory costs a page fault for every 4 KiB, more than inflating into it.
#[derive(Default)]
struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    /// Only the last chunk is not full; `None` at the end.
    fn fill(self: &Arc<Pool>, source: &mut impl Read) -> io::Result<Option<Arc<Chunk>>> {
        let mut bytes = self.take();
        let mut filled = 0;
        while filled < CHUNK {
            match source.read(&mut bytes[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        let chunk = Chunk { bytes, pool: Arc::clone(self) };
        Ok((filled > 0).then(|| Arc::new(chunk)))
    }

    fn take(&self) -> Vec<u8> {
        let free = self.0.lock().ok().and_then(|mut free| free.pop());
        let mut bytes = free.unwrap_or_default();
        bytes.resize(CHUNK, 0);
        bytes
    }

    fn give_back(&self, bytes: Vec<u8>) {
        if let Ok(mut free) = self.0.lock() {
            free.push(bytes);
        }
    }
}

pub(crate) struct Stream {
    chunks: Receiver<Result<Arc<Chunk>>>,
    current: Option<Arc<Chunk>>,
    position: usize,
}

impl Stream {
    fn drain(&mut self) -> Result<()> {
        self.current = None;
        self.chunks.iter().try_for_each(|chunk| chunk.map(drop))
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|chunk| self.position == chunk.bytes.len()) {
            self.position = 0;
            self.current = match self.chunks.recv() {
                Ok(chunk) => Some(chunk.map_err(io::Error::other)?),
                Err(_) => None,
            };
        }
        Ok(self.current.as_ref().map_or(&[], |chunk| &chunk.bytes[self.position..]))
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        copy_out(self, buffer)
    }
}

fn copy_out(source: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
    let available = source.fill_buf()?;
    let count = available.len().min(buffer.len());
    buffer[..count].copy_from_slice(&available[..count]);
    source.consume(count);
    Ok(count)
}
